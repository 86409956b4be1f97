//! What a deployment is told.

use std::path::PathBuf;
use std::time::Duration;

use net::api::Copies;
use net::deploy::{Rules, Ssh};

use crate::args::QUIESCE;
use crate::args::parse::{parse_lifetime, parse_window};
use crate::commands::hosts::{At, Terms};
use crate::exit::{Exit, Failure, Result};
use crate::runtime;

/// Put an image on many hosts: by ssh, by their agents, or by booting from the network
///
/// With `--to`, hosts get the image into `--target` at once, by ssh: each runs `diskcast work`, and all that fetch at
/// the same time share one multicast. Images of a repository on this machine are served by the deploy itself; with
/// `--server`, or `--repo https://...`, by that server. Each host is ready when its own copy is there and checked. A
/// host that fails is tried again, and continues where it was.
///
/// Without `--to`, with `--target`, agents of hosts that run take the job (`diskcast agent --server`), without ssh.
/// `--to` with `--agents` is both: jobs for agents, with waves, attempts and variables.
///
/// Without both options, machines that boot from the network take the job when they boot, or at once if they wait in
/// our system. `diskcast hosts` shows how far they are, `--follow` stays until they are done.
///
/// Shows which machines it is for, and asks before it overwrites them; without a terminal it needs --yes.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "diskcast deploy [OPTIONS] <NAME> --to <HOSTS> --target <TARGET> [-- OPTIONS OF FETCH]\n       \
                      diskcast deploy [OPTIONS] <NAME> <HOSTS>... --target <TARGET> [-- OPTIONS OF FETCH]\n       \
                      diskcast deploy [OPTIONS] <NAME> <MACHINES>...",
    after_help = "\
Examples:
  diskcast deploy web --to 'node[01-16]' --target /dev/vg0/web
  diskcast deploy web:stable --to rack4 --inventory hosts.ini --target /srv/vm/{host}.img --wave 8 -- --grow
  diskcast deploy web --to @deploy-web.retry
  diskcast deploy shop --commit --to db1,web1,web2 --target vm1      their disks at one moment
  diskcast deploy shop --resume --to db7,web7,web8 --target vm1 --server https://10.0.0.1:7717
  diskcast deploy web rack4 --target '/srv/vm/{host}.img' --follow   by agents
  diskcast deploy web --to rack4 --agents --wave 8 --target '/srv/vm/{host}.img'
  diskcast deploy classroom lab-07                                   boots from the network
  diskcast deploy classroom 'n[01-16]' --wake
  diskcast deploy classroom@12 lab --wake --at 2026-12-01T22:30:00+01:00"
)]
pub(crate) struct Args {
    /// `image`, `image:tag` or `image@version`
    pub name: String,
    /// Machines that boot from the network or run an agent: names with ranges such as `n[01-16]`, addresses of network
    /// cards, groups, `@FILE` with lines of these, or `*` for all
    #[arg(
        required_unless_present = "to",
        conflicts_with = "to",
        value_name = "MACHINES",
        value_delimiter = ','
    )]
    pub machines: Vec<String>,
    /// Leave the disk as it was captured: without a host name and identity of its own
    #[arg(long, conflicts_with = "to")]
    pub as_captured: bool,
    /// Give machines an identity of their own even if files that can't be changed name old identifiers: they may not
    /// start
    #[arg(long, conflicts_with_all = ["to", "as_captured"])]
    pub accept_stale_ids: bool,
    /// Grow the last partition to the end of the disk
    #[arg(long, conflicts_with = "to")]
    pub grow: bool,
    /// How long the first machine waits for the others, so that they begin together
    #[arg(long, value_name = "TIME", value_parser = parse_window, default_value = "15s")]
    pub window: Duration,
    /// Stay until all machines have done it or failed, and tell of each. Ctrl-C does not end their jobs
    #[arg(long, conflicts_with = "to")]
    pub follow: bool,
    #[command(flatten)]
    pub terms: Terms,
    #[command(flatten)]
    pub server: At,
    #[command(flatten)]
    pub by_ssh: BySsh,
}

/// What a set has no use for.
const NOT_OF_SETS: [&str; 12] = [
    "copy",
    "serve_for",
    "at_once",
    "wave",
    "stagger",
    "failures",
    "host_time",
    "before",
    "written",
    "after",
    "advertise",
    "options",
];

/// Where hosts have their mounts of the repository.
const MOUNT: &str = "/mnt/diskcast";

/// How hosts get it that are reached by ssh.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "On hosts that run")]
pub(crate) struct BySsh {
    /// Hosts as ssh takes them, with ranges such as `node[01-16]`; groups of the inventory; or @FILE with lines of
    /// hosts and variables. Separated by commas; may be repeated
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub to: Vec<String>,
    /// Reach the hosts of --to by their agents, which take jobs from --server, instead of by ssh. They are called as in
    /// `diskcast hosts`, by names, cards or groups
    #[arg(
        long,
        requires = "to",
        conflicts_with_all = ["ssh", "program", "sudo", "advertise", "commit", "suspend", "resume"]
    )]
    pub agents: bool,
    /// Hosts, groups and variables, as Ansible's inventories in INI form
    #[arg(long, value_name = "FILE", requires = "to")]
    pub inventory: Option<PathBuf>,
    /// Where each host gets it: a device, a volume or a file there. `{host}` and, with --to, `{VARIABLE}` stand for
    /// what the host has [default: the variable `target`]
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
    /// Keep the image on each host, and make the target a copy of it: at once, if the host has the image
    #[arg(long, value_enum, value_name = "FORM", conflicts_with_all = ["written", "options"])]
    pub copy: Option<CopyForm>,
    /// For `--copy demand`: where each host has a mount of the repository (`diskcast mount`)
    #[arg(long, value_name = "FOLDER", default_value = MOUNT)]
    pub mount: String,
    /// Let each host serve the image to others for this time after it got it, for hosts of later waves and deployments;
    /// what fits into its memory, up to 1 GiB
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    pub serve_for: Option<Duration>,
    /// Make NAME a set: the attached disks that --target names, as they are at one moment on all hosts
    #[arg(long, requires = "to", conflicts_with_all = NOT_OF_SETS)]
    pub commit: bool,
    /// Like --commit, but the machines end with that moment: their disks are detached when the set is there
    #[arg(long, requires = "to", conflicts_with = "commit", conflicts_with_all = NOT_OF_SETS)]
    pub suspend: bool,
    /// Attach the disks of the set NAME: its members in their order, one on each host, with the name --target.
    /// `{member}` stands for the host that a disk comes from. Options behind `--` are those of `diskcast attach`
    #[arg(long, requires = "to", conflicts_with_all = ["commit", "suspend", "copy", "written"])]
    pub resume: bool,
    /// For --commit and --suspend: freeze the machine, too, as `diskcast commit --quiesce` does
    #[arg(long, value_name = QUIESCE, requires = "to")]
    pub quiesce: Option<String>,
    /// Maximum time that machines stay frozen until all are; if one needs longer, all run on, and no set is made
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "10s", requires = "to")]
    pub quiesce_limit: Duration,
    /// Hosts that are at work at the same time
    #[arg(long, value_name = "HOSTS", default_value_t = 64, requires = "to")]
    pub at_once: usize,
    /// Hosts of a wave: the next wave begins when all of this one are ready or given up [default: all]
    #[arg(long, value_name = "HOSTS", requires = "to")]
    pub wave: Option<usize>,
    /// Time from the start of one host to that of the next
    #[arg(long, value_name = "TIME", value_parser = parse_window, default_value = "0s", requires = "to")]
    pub stagger: Duration,
    /// How often a host is tried
    #[arg(long, value_name = "TIMES", default_value_t = 3, requires = "to")]
    pub attempts: u32,
    /// Start no more hosts when this number of hosts has failed
    #[arg(long, value_name = "HOSTS", requires = "to")]
    pub failures: Option<usize>,
    /// Try a host again if it says nothing for this time, or makes no progress for ten times as long
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "30s", requires = "to")]
    pub silence: Duration,
    /// Maximum time for one attempt of a host [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, requires = "to")]
    pub host_time: Option<Duration>,
    /// Maximum time for all [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    pub time: Option<Duration>,
    /// Command that each host runs before anything is written; if it fails, the host is left as it is
    #[arg(long, value_name = "COMMAND")]
    pub before: Option<String>,
    /// Script of this machine that runs inside the written system of each host
    #[arg(long, value_name = "FILE")]
    pub written: Option<PathBuf>,
    /// Command that each host runs when its copy is there and checked: it is ready when that has succeeded
    #[arg(long, value_name = "COMMAND")]
    pub after: Option<String>,
    /// OpenSSH's client, with options
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "to")]
    pub ssh: String,
    /// Program that hosts run
    #[arg(long, value_name = "PROGRAM", default_value = "diskcast", requires = "to")]
    pub program: String,
    /// Run it there by sudo, which must not ask for a password
    #[arg(long, requires = "to")]
    pub sudo: bool,
    /// Address of this machine for the hosts [default: the one from which ssh reached them]
    #[arg(long, value_name = "ADDRESS", requires = "to")]
    pub advertise: Option<String>,
    /// File for a list of the hosts that did not get the image; `--to @FILE` takes it [default: deploy-IMAGE.retry]
    #[arg(long, value_name = "FILE", requires = "to")]
    pub retry_file: Option<PathBuf>,
    /// Further options of `diskcast fetch`, for each host: `-- --grow --hostname {host}`
    #[arg(last = true, value_name = "OPTIONS OF FETCH")]
    pub options: Vec<String>,
}

/// How a target becomes a copy of the image that its host keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CopyForm {
    /// A QCOW2 over the image, which has what differs
    Overlay,
    /// A file that shares the image's blocks, on XFS or btrfs
    Share,
    /// A snapshot of a logical volume with the image, which the host keeps in the target's volume group
    Snapshot,
    /// A QCOW2 over the version's file in the mount of --mount, which fetches what the machine reads
    Demand,
    /// An attached disk with the target's name, which runs at once and fetches what it needs from the server
    Attach,
}

impl CopyForm {
    pub(super) fn of_job(self) -> Copies {
        match self {
            Self::Overlay => Copies::Overlay,
            Self::Share => Copies::Share,
            Self::Snapshot => Copies::Snapshot,
            Self::Demand => Copies::Demand,
            Self::Attach => Copies::Attach,
        }
    }
}

impl BySsh {
    /// Where a host finds versions whose content comes when it is read, if it is to.
    pub(super) fn mount(&self) -> Option<String> {
        (self.copy == Some(CopyForm::Demand)).then(|| self.mount.clone())
    }

    /// For how long hosts serve others.
    pub(super) fn serve_seconds(&self) -> Result<u64> {
        let Some(time) = self.serve_for else { return Ok(0) };
        if self.attaches() || self.copy == Some(CopyForm::Demand) {
            let text = "--serve-for is for hosts that fetch the image: attached disks, and mounts with --share, \
                        serve it while they are there";
            return Err(Failure::new(Exit::Usage, text));
        }
        let is_other =
            |option: &&String| ["--serve-for", "--no-peers"].iter().any(|own| option.starts_with(own));
        match self.options.iter().find(is_other) {
            Some(option) => {
                Err(Failure::new(Exit::Usage, format!("--serve-for leaves no room for `{option}`")))
            }
            None => Ok(time.as_secs()),
        }
    }

    /// Whether targets become attached disks.
    pub(super) fn attaches(&self) -> bool {
        self.resume || self.copy == Some(CopyForm::Attach)
    }

    /// What runs inside the written system.
    pub(super) fn script(&self) -> Result<Option<String>> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path)
                .map_err(|error| base::Error::from_io(format!("read `{}`", path.display()), error))
        };
        Ok(self.written.as_ref().map(read).transpose()?)
    }

    /// How hosts are reached.
    pub(super) fn ssh(&self) -> Ssh {
        Ssh::new(&self.ssh, self.program.clone(), self.sudo, runtime::folder_for("ssh").ok())
    }

    pub(super) fn rules(&self, hosts: usize) -> Rules {
        Rules {
            at_once: self.at_once,
            wave: self.wave.unwrap_or(hosts),
            stagger: self.stagger,
            attempts: self.attempts,
            pause: Duration::from_secs(2),
            silence: self.silence,
            standstill: self.silence.saturating_mul(10),
            host_time: self.host_time,
            time: self.time,
            failures: self.failures,
        }
    }
}
