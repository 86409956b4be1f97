//! Rounds of faults of a cluster of real processes: the leader's host is cut off while a device is dead, a clock jumps,
//! a device comes back with an older copy of its folder or without its disk, a part is killed. Images are captured
//! before, meanwhile and after. Whatever was acknowledged must come back with the same bytes, nothing may hang, nothing
//! may be taken for a restored cluster, and once the fault is over all must be well.
//!
//! The faults of a round follow from its seed. It needs root, etcd, faketime and the tools of ext4.

mod health;
mod site;

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;

use base::Chance;
use site::{DEVICES, INSTANCES, Part, Result, Running, Site};

/// Rounds of one cluster, which then ends, so that the next ones find little.
const ROUNDS_OF_A_CLUSTER: usize = 10;
const IMAGE_BYTES: usize = 2 << 20;
/// Jumps of clocks, in seconds.
const JUMPS: [i64; 5] = [2 * 3600, -2 * 3600, -3 * 86_400, 86_400, 600];

/// What runs rounds.
#[derive(Debug, Clone, Copy)]
pub struct ClusterFaults<'a> {
    /// The program `diskcast`.
    pub program: &'a Path,
    /// A folder that exists; each cluster makes one of its own in it, and removes it.
    pub folder: &'a Path,
}

/// A cluster, and the images of which a capture was acknowledged.
struct Cluster {
    site: Site,
    images: Vec<Image>,
}

/// An image of random bytes that follow from a seed.
struct Image {
    name: String,
    seed: u64,
}

/// What goes wrong. Devices count from 0.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The leader's host is cut off for so many seconds, and a device is dead.
    Cut { device: u32, seconds: u64 },
    /// A clock jumps.
    Jump { part: Part, seconds: i64 },
    /// A device comes back with an older copy of its folder.
    OldCopy { device: u32 },
    /// A device starts without its disk.
    Unmounted { device: u32 },
    /// A part is killed.
    Killed { part: Part },
}

impl ClusterFaults<'_> {
    /// For tests: whether this machine can run rounds. If not, prints the reason on stderr.
    ///
    /// # Panics
    /// If it cannot and `CI` is set: CI must not skip tests.
    #[must_use]
    #[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
    pub fn available_or_skip() -> bool {
        if !crate::available_or_skip() {
            return false;
        }
        let Some(package) = site::lacks() else { return true };
        assert!(std::env::var_os("CI").is_none(), "CI needs {package}");
        eprintln!("left out: it needs the package {package}");
        false
    }

    /// Runs the rounds of these seeds. Returns what is wrong: an entry for each wrong round, with its seed and faults.
    #[must_use]
    pub fn run(&self, seeds: Range<u64>) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut cluster = None;
        for (round, seed) in seeds.enumerate() {
            if round % ROUNDS_OF_A_CLUSTER == 0 {
                cluster = None;
            }
            let faults = faults(seed);
            if let Err(error) = self.round(&mut cluster, seed, &faults) {
                let logs = cluster.take().map(|cluster| cluster.site.logs()).unwrap_or_default();
                wrong.push(format!("seed {seed}, {faults:?}: {}{logs}", base::chain(&*error)));
            }
        }
        wrong
    }

    fn round(&self, cluster: &mut Option<Cluster>, seed: u64, faults: &[Fault]) -> Result<()> {
        if cluster.is_none() {
            let site = Site::start(self.program, self.folder)?;
            *cluster = Some(Cluster { site, images: Vec::new() });
        }
        let Some(cluster) = cluster else { return Ok(()) };
        cluster.round(seed, faults)
    }
}

/// One or two faults. The first is of each kind in turn.
fn faults(seed: u64) -> Vec<Fault> {
    let mut chance = Chance::from_seed(seed);
    let device = number(&mut chance, DEVICES);
    let first = match seed % 5 {
        0 => Fault::Cut { device, seconds: 5 + chance.below(10) },
        1 => Fault::Jump { part: part(&mut chance), seconds: jump(&mut chance) },
        2 => Fault::OldCopy { device },
        3 => Fault::Unmounted { device },
        _ => Fault::Killed { part: part(&mut chance) },
    };
    let mut faults = vec![first];
    if chance.below(2) == 0 {
        let part = part(&mut chance);
        let second = match first {
            // Two devices are away already.
            Fault::Cut { .. } | Fault::Killed { .. } => Fault::Jump { part, seconds: jump(&mut chance) },
            _ => Fault::Killed { part },
        };
        if second.part() != first.part() {
            faults.push(second);
        }
    }
    faults
}

fn part(chance: &mut Chance) -> Part {
    if chance.below(2) == 0 {
        Part::Metadata(number(chance, INSTANCES))
    } else {
        Part::Device(number(chance, DEVICES))
    }
}

fn jump(chance: &mut Chance) -> i64 {
    JUMPS[usize::try_from(chance.below(JUMPS.len() as u64)).expect("below its length")]
}

fn number(chance: &mut Chance, of: u32) -> u32 {
    u32::try_from(chance.below(u64::from(of))).expect("below a number of 32 bits")
}

impl Fault {
    /// The part that it names.
    fn part(self) -> Part {
        match self {
            Self::Cut { device, .. } | Self::OldCopy { device } | Self::Unmounted { device } => {
                Part::Device(device)
            }
            Self::Jump { part, .. } | Self::Killed { part } => part,
        }
    }

    /// How many devices are away meanwhile.
    fn away(self) -> u32 {
        match self {
            Self::Cut { .. } => 2,
            Self::OldCopy { .. } | Self::Unmounted { .. } => 1,
            Self::Killed { part } => u32::from(matches!(part, Part::Device(_))),
            Self::Jump { .. } => 0,
        }
    }
}

impl Cluster {
    fn round(&mut self, seed: u64, faults: &[Fault]) -> Result<()> {
        self.site.wait_until_well()?;
        self.capture(&format!("before-{seed}"), seed)?;
        // One capture begins before, and may be hit at any place.
        let hit = self.begin(&format!("hit-{seed}"), seed)?;
        let mut cut = None;
        for fault in faults {
            cut = cut.or(self.strike(*fault, seed)?);
        }
        let busy = self.begin(&format!("while-{seed}"), seed)?;
        self.read(&format!("before-{seed}"))?;
        if let [Fault::Jump { part: Part::Device(device), .. }, ..] = faults {
            self.site.wait_for_skew(*device)?;
        }
        let away: u32 = faults.iter().map(|fault| fault.away()).sum();
        // A write needs five of the six devices. Without them it may end with an error.
        for capture in [hit, busy] {
            self.end(capture, away < 2)?;
        }
        for fault in faults {
            self.heal(*fault, cut, seed)?;
        }
        self.site.wait_until_well()?;
        if let Some(Fault::OldCopy { device }) = faults.first() {
            self.two_may_fail(*device, seed)?;
        }
        self.capture(&format!("after-{seed}"), seed)?;
        let names: Vec<_> = self.images.iter().map(|image| image.name.clone()).collect();
        names.iter().try_for_each(|name| self.read(name))
    }

    /// Lets a fault happen. Returns the host that is cut off.
    fn strike(&mut self, fault: Fault, seed: u64) -> Result<Option<u32>> {
        match fault {
            Fault::Cut { device, seconds } => {
                let leader = self.site.leader()?;
                self.site.kill(Part::Device(device));
                self.site.cut(leader)?;
                site::pass(seconds);
                return Ok(Some(leader));
            }
            Fault::Jump { part, seconds } => self.site.set_clock(part, seconds)?,
            Fault::OldCopy { device } => {
                self.site.end(Part::Device(device))?;
                self.site.copy_device(device)?;
                self.site.start_part(Part::Device(device))?;
                self.site.wait_until_well()?;
                self.capture(&format!("newer-{seed}"), seed)?;
                self.site.kill(Part::Device(device));
            }
            Fault::Unmounted { device } => {
                self.site.kill(Part::Device(device));
                self.site.unmount(device)?;
                self.site.must_refuse(device)?;
            }
            Fault::Killed { part } => self.site.kill(part),
        }
        Ok(None)
    }

    /// Ends a fault.
    fn heal(&mut self, fault: Fault, cut: Option<u32>, seed: u64) -> Result<()> {
        match fault {
            Fault::Cut { device, .. } => {
                if let Some(host) = cut {
                    self.site.heal(host)?;
                }
                // All are there but one: who takes this for a restored cluster waits for that one.
                self.site.wait_for_leader()?;
                self.read(&format!("before-{seed}"))?;
                self.site.start_part(Part::Device(device))
            }
            Fault::Jump { part, .. } => self.site.set_clock(part, 0),
            Fault::OldCopy { device } => {
                self.site.put_copy_back(device)?;
                self.site.start_part(Part::Device(device))
            }
            Fault::Unmounted { device } => {
                self.site.mount(device)?;
                self.site.start_part(Part::Device(device))
            }
            Fault::Killed { part } => self.site.start_part(part),
        }
    }

    /// All is well with a device that had forgotten something: then two others may fail, and what it forgot is there.
    fn two_may_fail(&mut self, device: u32, seed: u64) -> Result<()> {
        let others = [1, 2].map(|next| Part::Device((device + next) % DEVICES));
        others.iter().for_each(|other| self.site.kill(*other));
        let read = self.read(&format!("newer-{seed}"));
        read.map_err(|error| {
            format!(
                "with {others:?} away: {}; when all was well: {}",
                base::chain(&*error),
                self.site.when_well()
            )
        })?;
        others.iter().try_for_each(|other| self.site.start_part(*other))?;
        self.site.wait_until_well()
    }

    /// A capture that must be acknowledged.
    fn capture(&mut self, name: &str, seed: u64) -> Result<()> {
        let capture = self.begin(name, seed)?;
        self.end(capture, true)
    }

    fn begin(&self, name: &str, seed: u64) -> Result<(Image, Running)> {
        let seed = seed ^ name.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
        let image = Image { name: name.to_owned(), seed };
        fs::write(self.site.path(&format!("{name}.img")), image.bytes())?;
        let running = self.site.begin(&format!("capture {name}.img {name} --raw -q"))?;
        Ok((image, running))
    }

    /// Waits for a capture. What it acknowledged is checked from now on.
    fn end(&mut self, (image, running): (Image, Running), must: bool) -> Result<()> {
        match self.site.finish(running)? {
            Ok(_) => self.images.push(image),
            Err(said) if must => return Err(said.into()),
            Err(_) => {}
        }
        Ok(())
    }

    /// Installs an image, which must have the bytes that were captured.
    fn read(&self, name: &str) -> Result<()> {
        let target = self.site.path("read.img");
        let _ = fs::remove_file(&target);
        self.site.run(&format!("install {name} read.img --yes -q"))?;
        let image = self.images.iter().find(|image| image.name == name).ok_or("it was not captured")?;
        let bytes = image.bytes();
        let same =
            File::open(&target)?.metadata()?.len() == bytes.len() as u64 && fs::read(&target)? == bytes;
        if same {
            Ok(())
        } else {
            Err(format!("`{name}` has other bytes than those that were captured").into())
        }
    }
}

impl Image {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; IMAGE_BYTES];
        Chance::from_seed(self.seed).fill(&mut bytes);
        bytes
    }
}
