//! The table that the demo prints at its end.

use std::fmt;
use std::time::Duration;

use base::units::{show_bytes, show_duration};

use crate::disks::Disk;
use crate::program::{Captured, Fetched, Statistics};
use crate::{Failure, per_second};

/// All results of the demo.
pub(crate) struct Report {
    pub place: String,
    pub source: Disk,
    pub captured: Captured,
    pub fetched: Vec<Fetched>,
    pub statistics: Option<Statistics>,
    /// Time until the login prompt, if the hosts are a lab.
    pub booted: Option<Result<Duration, Failure>>,
    /// The boot of the sixth machine, if the hosts are a lab.
    pub at_once: Option<Result<AtOnce, Failure>>,
}

/// A boot from an attached disk that had no chunks of the image at the start.
pub(crate) struct AtOnce {
    /// Time until the login prompt.
    pub until_prompt: Duration,
    /// Bytes of objects that the machine had received by then.
    pub moved_bytes: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sizes(f)?;
        self.hosts(f)?;
        self.server(f)?;
        line(
            f,
            "verified",
            "every disk: used space as on the source, free space untouched; a file system check is clean",
        )?;
        match &self.booted {
            Some(Ok(time)) => {
                line(f, "boot", &format!("{} until the login prompt, emulated", show_duration(*time)))?;
            }
            Some(Err(_)) => line(f, "boot", "failed")?,
            None => {
                line(f, "left out", &format!("links of a rate and booting: the hosts were {}", self.place))?;
            }
        }
        match &self.at_once {
            Some(Ok(AtOnce { until_prompt, moved_bytes })) => {
                let (moved, image) = (show_bytes(*moved_bytes), show_bytes(self.captured.image_bytes));
                let machine = "until the login prompt of a machine that began with no disk";
                let until = show_duration(*until_prompt);
                line(f, "at once", &format!("{until} {machine}: {moved} of {image} had come"))
            }
            Some(Err(_)) => line(f, "at once", "failed"),
            None => Ok(()),
        }
    }
}

impl Report {
    /// Why the last steps failed.
    pub(crate) fn failures(&self) -> Vec<&Failure> {
        let booted = self.booted.as_ref().and_then(|booted| booted.as_ref().err());
        booted.into_iter().chain(self.at_once.as_ref().and_then(|at_once| at_once.as_ref().err())).collect()
    }

    fn sizes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (disk, allocated, image) =
            (self.source.bytes(), self.source.allocated_bytes(), self.captured.image_bytes);
        line(f, "disk", &show_bytes(disk))?;
        line(f, "allocated", &show_bytes(allocated))?;
        line(
            f,
            "image",
            &format!("{}, {} of what is allocated", show_bytes(image), ratio(image, allocated)),
        )?;
        let took = self.captured.took;
        line(
            f,
            "capture",
            &format!("{}, {} of what is allocated", show_duration(took), per_second(allocated, took)),
        )
    }

    fn hosts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<10} {:>10} {:>10} {:>10} {:>12}  came by",
            "host", "joined at", "received", "installed", "rate"
        )?;
        let first = self.fetched[0].began;
        for (index, host) in self.fetched.iter().enumerate() {
            let joined = show_duration(host.began - first);
            let (received, installed) = (show_duration(host.received), show_duration(host.installed));
            // A user cares about this rate: the content of the disk over the time until it is installed.
            let rate = per_second(self.source.allocated_bytes(), host.installed);
            let (name, transport) = (index + 1, &host.transport);
            writeln!(f, "{name:<10} {joined:>10} {received:>10} {installed:>10} {rate:>12}  {transport}")?;
        }
        writeln!(f)
    }

    fn server(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Statistics { payload_bytes, image_bytes, resent_blocks: [late, full, lost] }) =
            &self.statistics
        else {
            return line(f, "server", "no multicast session");
        };
        let (sent, again) = (ratio(*payload_bytes, *image_bytes), late + full + lost);
        let causes = format!("joined late {late}, buffer full {full}, lost {lost}");
        line(f, "server", &format!("sent {sent} images by multicast for {} hosts", self.fetched.len()))?;
        line(f, "sent again", &format!("{again} blocks: {causes}"))
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    writeln!(f, "{name:<10} {value}")
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn ratio(part: u64, whole: u64) -> String {
    format!("{:.2}", part as f64 / whole.max(1) as f64)
}
