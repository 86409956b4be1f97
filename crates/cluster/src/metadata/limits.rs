//! What groups may use: kept here, told to devices with their heartbeats, and enforced by them.

use base::{Error, ErrorKind, Result};
use proto::cluster::{Map, State};

use super::cluster::{Metadata, parse};
use super::engine::{Write, for_each};
use crate::wire::{GroupLimits, Limits};

impl Metadata {
    /// Sets what a group may use, on all devices together.
    pub(super) fn set_limits(&self, group: u32, limits: Limits) -> Result<()> {
        if group == 0 || group == u32::MAX {
            return Err(Error::new(ErrorKind::Invalid, "a group has a number from 1 to 2^32 - 2"));
        }
        let text = serde_json::to_vec(&GroupLimits { group, limits }).expect("it is plain data");
        self.engine.commit(&[], &[Write::Put(format!("limits/{group:08x}"), text)]).map(drop)
    }

    /// What groups may use for which that was said, also that there is no limit any more.
    pub(super) fn limits(&self) -> Result<Vec<GroupLimits>> {
        let mut all = Vec::new();
        for_each(self.engine.as_ref(), "limits/", |key, stored| {
            all.push(parse(key, &stored.value)?);
            Ok(())
        })?;
        Ok(all)
    }

    /// The share of one device in what groups may use.
    pub(super) fn limits_of_device(&self, map: &Map) -> Result<Vec<GroupLimits>> {
        let devices = map.devices.iter().filter(|device| device.state != State::Lost).count().max(1) as u64;
        let share = |limit: Option<u64>| limit.map(|limit| limit.div_ceil(devices));
        let of = |GroupLimits { group, limits }| GroupLimits {
            group,
            limits: Limits { quota: share(limits.quota), rate: share(limits.rate) },
        };
        Ok(self.limits()?.into_iter().map(of).collect())
    }
}
