//! Rights to write the index: a client that appends may insert entries of what lies in its own segments. Who deletes or
//! moves what others stored asks for more. formats/cluster.md, section 5.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result};
use proto::cluster::{Capability, DeviceId, rights};

use super::cluster::Metadata;
use crate::wire::{ClientRequest, IndexRequest, IndexRights, SegmentState};

impl Metadata {
    /// For each device a capability to insert entries of what lies in a segment.
    pub(super) fn rights_of_segment(
        &self,
        group: u32,
        segment: u64,
        client: u64,
    ) -> Result<BTreeMap<DeviceId, String>> {
        self.capabilities(&self.map(), client, |capability| Capability {
            group: Some(group),
            number: Some(segment),
            rights: rights::WRITE_INDEX,
            ..capability
        })
    }

    /// The same for a client whose segment is open.
    pub(super) fn index_of_segment(&self, number: u64, request: &IndexRequest) -> Result<IndexRights> {
        let segment = self.segment(number)?;
        let is_open = segment.state == SegmentState::Open && segment.fence == 0;
        if !is_open || segment.client != request.client || self.is_client_gone(request.client) {
            let detail = format!("segment {number} is not this client's any more");
            return Err(Error::new(ErrorKind::Refused, detail));
        }
        let capabilities = self.rights_of_segment(segment.group, number, request.client)?;
        Ok(IndexRights { capabilities })
    }

    /// For each device a capability to change the entries of all names of a group.
    pub(super) fn index_of_group(&self, client: u64, request: &ClientRequest) -> Result<IndexRights> {
        if self.is_client_gone(client) {
            return Err(Error::new(ErrorKind::NotFound, format!("the lease of client {client} has ended")));
        }
        let capabilities = self.capabilities(&self.map(), client, |capability| Capability {
            group: Some(request.group),
            rights: rights::WRITE_INDEX,
            ..capability
        })?;
        Ok(IndexRights { capabilities })
    }
}
