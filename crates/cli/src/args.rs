//! The command line as types. Help, usage errors and examples grow from here.

use std::path::PathBuf;

use base::units;
use clap::{Args, Parser, Subcommand, ValueEnum};

mod attached;
mod mount;

pub use attached::{Attach, Detach, Disks, DisksFolder, RunningDisk};
pub use mount::Mount;

const EXIT_CODES: &str = "\
Exit codes:
  0 done    1 failed    2 wrong usage    3 partly done    10 not found
  11 refused before anything was changed    12 verification failed    130 interrupted

A NAME is `image` (its newest version), `image:tag` or `image@version`.
Sizes take K, M, G, T (1024); rates take K, M, G bits per second (1000).";

const EXAMPLES: &str = "\
Examples:
  diskcast capture /dev/sda classroom            keep a disk as a new version of `classroom`
  diskcast serve                                 offer all images to the network
  diskcast fetch https://10.0.0.1:7717 classroom /dev/sda --token-file join.token
  diskcast install classroom@3 disk.img          without a network, into a file";

/// Captures disks, keeps them as versioned images and multicasts them to many machines.
#[derive(Debug, Parser)]
#[command(name = "diskcast", version, after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
#[command(propagate_version = true, disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Common options")]
pub struct Global {
    /// Folder of the repository, or s3://BUCKET/PREFIX [default: the system's state folder for root, the user's data
    /// folder else]
    #[arg(long, global = true, value_name = "URL|FOLDER", env = "DISKCAST_REPO", hide_env_values = true)]
    pub repo: Option<String>,
    /// Folder that keeps what was read from a repository in S3, and which files of a repository in a folder were checked
    /// within a day; or `off` [default: /var/cache/diskcast for root, the user's cache folder else]
    #[arg(long, global = true, value_name = "FOLDER|off", env = "DISKCAST_CACHE", hide_env_values = true)]
    pub cache: Option<String>,
    /// Most bytes in it
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_cache, default_value = "4G",
          env = "DISKCAST_CACHE_SIZE", hide_env_values = true)]
    pub cache_size: u64,
    /// Print one JSON object a line, each with a `type`
    #[arg(long, global = true)]
    pub json: bool,
    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Do not ask before a disk is overwritten or something is removed
    #[arg(short, long, global = true)]
    pub yes: bool,
    /// Check everything and say what would be done, but change nothing
    #[arg(short = 'n', long, global = true)]
    pub dry_run: bool,
    #[command(flatten)]
    pub keys: Keys,
}

/// Keys that sign, that encrypt, and those that are trusted. They come from files only.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Keys")]
pub struct Keys {
    /// Sign versions and tags with the key in this file, which `diskcast key new` makes
    #[arg(long, global = true, value_name = "FILE", env = "DISKCAST_SIGN_KEY", hide_env_values = true)]
    pub sign_key: Option<PathBuf>,
    /// Key of the repository, if it is encrypted, here or at the server
    #[arg(long, global = true, value_name = "FILE", env = "DISKCAST_ENCRYPTION_KEY", hide_env_values = true)]
    pub encryption_key: Option<PathBuf>,
    /// Use only what one of these keys signed: a file of public keys, or a folder of *.pub; may be repeated
    #[arg(
        long,
        global = true,
        value_name = "FILE|FOLDER",
        env = "DISKCAST_TRUST",
        value_delimiter = ':',
        hide_env_values = true
    )]
    pub trust: Vec<PathBuf>,
    /// Warn instead of refusing what nobody trusted has signed
    #[arg(long, global = true)]
    pub allow_untrusted: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    Init(Init),
    Capture(Capture),
    Install(Install),
    Fetch(Fetch),
    Serve(Serve),
    Attach(Attach),
    Detach(Detach),
    Disks(Disks),
    Mount(Mount),
    Token(Token),
    #[command(visible_alias = "ls")]
    Images(Images),
    #[command(visible_alias = "info")]
    Inspect(Inspect),
    Log(Log),
    Diff(Diff),
    Create(Create),
    Clone(Clone),
    Commit(Commit),
    /// Show what images take: for themselves, shared with others, together
    ///
    /// LOGICAL is what the versions of an image have allocated, all together; OWN is what pruning frees once the image is
    /// removed; SHARED is needed by other images as well. The last line counts everything once.
    #[command(after_help = "\
Examples:
  diskcast usage
  diskcast usage --repo s3://images/lab --json")]
    Usage,
    Copy(Copy),
    Tag(Tag),
    #[command(visible_alias = "rm")]
    Remove(Remove),
    Profile(Profile),
    Prune(Prune),
    Verify(Verify),
    Key(Key),
    Repository(RepositoryArgs),
}

/// Make an empty repository, encrypted if a key is given
///
/// `diskcast capture` makes one that is not encrypted by itself. Who loses the key of an encrypted repository has lost
/// what is in it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast init --repo /srv/images
  diskcast key new --encryption repository.key && diskcast init --encryption-key repository.key")]
pub struct Init {}

/// Keep a disk as a new version of an image
///
/// Reads what the filesystems have in use, and all of what is not understood. Refuses a disk that others write to: mounted
/// read-write, swap space, a file open for writing; and fails if it changed while it was read. A version appears when all of
/// it is safe on disk, or not at all.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast capture /dev/sda classroom
  diskcast capture /dev/sdb data --freeze         its filesystems are mounted, and wait meanwhile
  diskcast capture disk.img web --partition 2 --label os=debian-12
  diskcast capture /dev/sda web --to https://10.0.0.1:7717 --token-file write.token")]
pub struct Capture {
    /// Disk to read: a block device or a raw image file
    pub source: PathBuf,
    /// Image to add a version to; it need not exist yet
    pub name: String,
    /// Keep this partition only
    #[arg(long, value_name = "NUMBER", conflicts_with = "skip")]
    pub partition: Option<u32>,
    /// Leave out the content of this partition; may be repeated
    #[arg(long, value_name = "NUMBER")]
    pub skip: Vec<u32>,
    /// Keep every sector, without looking at filesystems
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub taking: Taking,
    /// Note kept with the version; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// Send to this server and store nothing here
    #[arg(long, value_name = "SERVER")]
    pub to: Option<String>,
    #[command(flatten)]
    pub reach: Reach,
    /// Logical size of a chunk, a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk_bytes, default_value = "256K")]
    pub chunk: u32,
    #[command(flatten)]
    pub effort: Effort,
}

/// How a source is taken.
#[derive(Debug, Clone, Args)]
pub struct Taking {
    /// Keep the disk's mounted filesystems still while it is read: who writes to them waits
    #[arg(long)]
    pub freeze: bool,
    /// Take a disk that is in use, or changes while it is read, as it is. The version is marked: it may hold what was never
    /// on the disk at one time
    #[arg(long)]
    pub live: bool,
    /// Take these bytes as a disk although they begin as a file of another format does, such as QCOW2
    #[arg(long, value_enum)]
    pub format: Option<SourceForm>,
}

/// Forms of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceForm {
    /// The disk, byte by byte
    Raw,
}

/// Write a version of an image to a disk or a file
///
/// Refuses before the first write if the target is too small, mounted, in use, or the disk that the image came from. Asks before
/// a disk, or a file that holds something, is overwritten. Reads back what it wrote. After an
/// interruption, the same command with --resume goes on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast install classroom /dev/sdb
  diskcast install web@3 disk.img --free zero
  diskcast install web@4 disk.img --overwrite
  diskcast install web:stable /dev/sdb --resume --yes
  diskcast install lab-pc /dev/sda --onto-source        back onto the disk that it was captured from")]
pub struct Install {
    /// What to install: image, image:tag or image@version
    pub name: String,
    /// Block device, or file to be made or overwritten; `null:` decodes and verifies, and writes nothing
    pub target: PathBuf,
    #[command(flatten)]
    pub writing: Writing,
    #[command(flatten)]
    pub effort: Effort,
}

/// Get an image from a server and write it to a disk or a file
///
/// Takes part in the server's multicast session, at any time, and fills the rest by unicast. Says at the end which way
/// the bytes came. Goes on if the multicast group or, for a while, the server is lost.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast fetch https://10.0.0.1:7717 classroom /dev/sda --token-file join.token
  diskcast fetch https://images.example:7717 web:stable disk.img --transport unicast")]
pub struct Fetch {
    /// URL of the server
    pub server: String,
    /// What to fetch: image, image:tag or image@version
    pub name: String,
    /// Block device, or file to be made or overwritten; `null:` receives and verifies, and keeps nothing
    pub target: PathBuf,
    #[command(flatten)]
    pub reach: Reach,
    /// How to get it
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Network interface for multicast, by name or address [default: the one that leads to the server]
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    /// What the server's statistics call this machine [default: its host name]
    #[arg(long, value_name = "NAME")]
    pub receiver: Option<String>,
    /// Memory for what multicast brings until it is whole and the disk takes it; more helps a slow disk
    #[arg(long, value_name = "SIZE", value_parser = parse_buffer, default_value = "64M")]
    pub buffer: u64,
    #[command(flatten)]
    pub writing: Writing,
    #[command(flatten)]
    pub effort: Effort,
}

/// Offer all images of a repository to the network
///
/// One process serves every image: HTTPS for lists, manifests and chunks, and a multicast session per image that
/// starts with its first client and ends after its last. Makes a certificate and a secret on first start and prints
/// a token with which machines join. Ends on SIGINT or SIGTERM.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast serve
  diskcast serve --listen 10.0.0.1:7717 --interface eth1 --rate 800M
  diskcast serve --token-out join.token --repo /srv/images")]
pub struct Serve {
    /// Address and TCP port of the API
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7717")]
    pub listen: std::net::SocketAddr,
    #[command(flatten)]
    pub state: StateFolder,
    /// Network interface for multicast, by name or address [default: that of the client's route]
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    /// Most that all multicast sessions send together, in bits per second on the wire [default: what the network bears]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Least that a session sends while it has something to send, however congested the network is
    #[arg(long, value_name = "RATE", value_parser = parse_rate, default_value = "1M")]
    pub rate_floor: u64,
    /// Routers that multicast may pass, plus one: 1 keeps it in the local network
    #[arg(long, value_name = "HOPS", default_value_t = 1)]
    pub ttl: u8,
    /// Unicast only
    #[arg(long)]
    pub no_multicast: bool,
    /// Plain HTTP; allowed on a loopback address only
    #[arg(long)]
    pub no_tls: bool,
    /// Also write the join token to this file (mode 0600), and a new one there before that one ends
    #[arg(long, value_name = "FILE")]
    pub token_out: Option<PathBuf>,
    /// How long the printed join token is good for
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "30d")]
    pub token_expires: std::time::Duration,
}

/// Make a token for machines that join this machine's server
///
/// A token names the server's certificate and says which images its holder may read or write, and until when.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast token > join.token
  diskcast token --image 'lab-*' --write --expires 8h > write.token")]
pub struct Token {
    /// Images that it is good for, `*` stands for any letters; may be repeated [default: all]
    #[arg(long = "image", value_name = "PATTERN")]
    pub images: Vec<String>,
    /// Also allow capture --to
    #[arg(long)]
    pub write: bool,
    /// How long it is good for: 30d, 8h, 15m
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "30d")]
    pub expires: std::time::Duration,
    /// It ends then for good; without this a client that runs for longer (attach, mount) gets another one from the server before,
    /// which grants the same for as long again
    #[arg(long)]
    pub no_renewal: bool,
    /// The server runs with --no-tls
    #[arg(long)]
    pub no_tls: bool,
    #[command(flatten)]
    pub state: StateFolder,
}

/// List images, or the versions of one
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast images
  diskcast images classroom --json")]
pub struct Images {
    /// List the versions of this image
    pub name: Option<String>,
}

/// Show what a version holds
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast inspect classroom
  diskcast inspect classroom@3 --json")]
pub struct Inspect {
    /// What to show: image, image:tag or image@version
    pub name: String,
}

/// List the versions of an image, newest first, with what each was made from
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast log classroom
  diskcast log classroom --limit 5 --json")]
pub struct Log {
    /// The image
    pub name: String,
    /// Most versions to list
    #[arg(long, value_name = "COUNT", default_value = "1000")]
    pub limit: usize,
}

/// Show where two versions differ
///
/// A line for each range: offset and length in bytes, and whether it was written, allocated or freed. Versions of one
/// chunk size are compared by what they do not share, so that this is quick; what differs counts by whole chunks then.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast diff classroom@3 classroom
  diskcast diff classroom@3 lab-pc@1 --exact --summary")]
pub struct Diff {
    /// Version before: image, image:tag or image@version
    pub before: String,
    /// Version after
    pub after: String,
    /// Read the chunks that differ and say which sectors really do
    #[arg(long)]
    pub exact: bool,
    /// Print the sums only
    #[arg(long)]
    pub summary: bool,
}

/// Make an empty image, to be written with `commit`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast create scratch 20G
  diskcast create archive 64T --chunk 1M --sector 4096")]
pub struct Create {
    /// The new image
    pub name: String,
    /// Size of its disk
    #[arg(value_parser = parse_size)]
    pub size: u64,
    /// Logical size of a chunk, a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk_bytes, default_value = "256K")]
    pub chunk: u32,
    /// Logical sector of the disk in bytes
    #[arg(long, value_name = "BYTES", default_value = "512")]
    pub sector: u32,
    #[command(flatten)]
    pub there: There,
}

/// Make a new image that begins as a version of another
///
/// Takes no time and no space, whatever the size: both share everything until one of them changes. With --disk the new
/// image begins as an attached disk is at this moment, while it runs on; what was written to it is kept for good by that,
/// and later commits of the disk go to the new image.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast clone classroom@3 lab-pc
  diskcast clone classroom:stable lab-pc --json
  diskcast clone --disk vm1 lab-pc                      of an attached disk")]
pub struct Clone {
    /// What to clone: image, image:tag or image@version; with --disk the new image
    pub name: String,
    /// The new image
    #[arg(required_unless_present = "disk", conflicts_with = "disk")]
    pub new: Option<String>,
    #[command(flatten)]
    pub running: RunningDisk,
    #[command(flatten)]
    pub there: There,
}

/// Keep what changed on a disk as a new version of its image
///
/// Without --range, --at, --free or --append the disk is compared with the image's newest version, of the same size, and what
/// differs is kept. Only chunks that changed are stored. Others may commit to the same image meanwhile; each commit is a
/// version that holds all before it.
///
/// With --disk it is an attached disk, which runs on: the version holds what it was at one moment, and goes where the disk's image
/// came from. It follows the version that the disk began as, or was last committed as, and is refused if somebody else
/// published one meanwhile, unless --merge is given and they changed other sectors.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast commit lab-pc disk.img                       what differs from the newest version
  diskcast commit lab-pc disk.img --range 1M+4096 --range 3G+64K --expect 7
  diskcast commit lab-pc part.img --at 1M               all of a file, to this offset
  diskcast commit archive day.tar --append              behind the end
  diskcast commit lab-pc disk.img --free-holes          and what the guest discarded is free
  diskcast commit lab-pc disk.img --range 1M+4096 --to https://10.0.0.1:7717 --token-file write.token
  diskcast commit --disk vm1 --quiesce agent:/run/vm1.qga                      an attached disk")]
pub struct Commit {
    /// The image [with --disk the default: that of the disk's base]
    #[arg(required_unless_present = "disk")]
    pub name: Option<String>,
    /// Disk with the changes: a block device or a raw file
    #[arg(required_unless_present = "disk", conflicts_with = "disk")]
    pub source: Option<PathBuf>,
    #[command(flatten)]
    pub running: RunningDisk,
    /// Make a version also if others have published meanwhile, as long as they changed other sectors
    #[arg(long, requires = "disk")]
    pub merge: bool,
    /// Keep these bytes, at the same place; may be repeated
    #[arg(long = "range", value_name = "OFFSET+LENGTH", value_parser = parse_range, conflicts_with_all = ["at", "append", "disk"])]
    pub ranges: Vec<std::ops::Range<u64>>,
    /// Write all of SOURCE at this offset of the image
    #[arg(long, value_name = "OFFSET", value_parser = parse_size, conflicts_with_all = ["append", "disk"])]
    pub at: Option<u64>,
    /// Write all of SOURCE behind the image's end
    #[arg(long, conflicts_with_all = ["expect", "disk"])]
    pub append: bool,
    /// These bytes are free from now on: they read as zeros, and are neither stored nor installed; may be repeated
    #[arg(long = "free", value_name = "OFFSET+LENGTH", value_parser = parse_range, conflicts_with_all = ["append", "disk"])]
    pub freed: Vec<std::ops::Range<u64>>,
    /// What is a hole in SOURCE is free from now on, too: for disks of virtual machines that discard what they no longer need.
    /// Else it counts as zeros
    #[arg(long, conflicts_with_all = ["append", "disk"])]
    pub free_holes: bool,
    /// Refuse unless this is the number of the newest version
    #[arg(long, value_name = "NUMBER", conflicts_with = "disk")]
    pub expect: Option<u64>,
    /// Take SOURCE as a disk although it begins as a file of another format does, such as QCOW2
    #[arg(long, value_enum, conflicts_with = "disk")]
    pub format: Option<SourceForm>,
    #[command(flatten)]
    pub there: There,
}

/// Copy versions into another repository
///
/// Only what is missing there is sent. Content and digests stay the same; the number is the next one there. What was
/// copied before is known again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast copy classroom:stable /mnt/backup
  diskcast copy classroom /mnt/backup --all --as classroom-site2")]
pub struct Copy {
    /// What to copy: image, image:tag or image@version
    pub name: String,
    /// Folder or URL of the other repository; it is made if there is none
    pub to: String,
    /// Name of the image there [default: the same]
    #[arg(long = "as", value_name = "IMAGE")]
    pub r#as: Option<String>,
    /// All versions of the image
    #[arg(long)]
    pub all: bool,
    /// Key of the other repository, if it is encrypted by another one
    #[arg(long, value_name = "FILE")]
    pub to_key: Option<PathBuf>,
    /// Copy from an encrypted repository into one that is not
    #[arg(long)]
    pub decrypt: bool,
}

/// Give a version a name that can be moved
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast tag classroom@3 stable        then: diskcast install classroom:stable /dev/sdb")]
pub struct Tag {
    /// Which version: image, image:tag or image@version
    pub name: String,
    /// The tag; if it exists it moves
    pub tag: String,
}

/// Remove a version, or a tag
///
/// A version's number is never used again. Its data stays until `diskcast prune`, and what other versions share for
/// longer. A version that a tag names stays until the tag is moved or removed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast remove classroom@3
  diskcast remove classroom:stable     the tag only")]
pub struct Remove {
    /// What to remove: image@version, or image:tag for the tag alone
    pub name: String,
}

/// Delete what no version needs any more
///
/// Frees the space of removed versions, and of captures that were given up, while others read and write. It waits for
/// those who write since before; one that shows no sign of life for so long as --patience is taken for dead, and starts
/// again if it is not. A prune that is interrupted leaves nothing that the next one does not clear up.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast remove classroom@3 && diskcast prune
  diskcast prune --dry-run                  how much there is to free
  diskcast prune --patience 1m --json       no writer of another machine may be slow")]
pub struct Prune {
    /// How long a writer may show no sign of life; those that live give one every minute
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "10m")]
    pub patience: std::time::Duration,
}

/// Check that every stored byte is what it was, and who signed it
///
/// A signature that is not its key's own is damage. So is, with --trust, whatever no trusted key signed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast verify                      everything
  diskcast verify classroom@3          what one version needs
  diskcast verify --repair             mend what can be mended from this repository alone
  diskcast verify --repair /mnt/backup
  diskcast verify --trust /etc/diskcast/keys")]
pub struct Verify {
    /// What to check [default: the whole repository]
    pub name: Option<String>,
    /// Mend damaged records; take what is damaged or missing from this repository, where it is whole
    #[arg(long, value_name = "URL|FOLDER")]
    #[allow(clippy::option_option, reason = "a flag whose value may be left out")]
    pub repair: Option<Option<String>>,
}

/// Make keys that sign versions and tags, or encrypt a repository
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast key new --encryption repository.key    for `diskcast init --encryption-key`; keep a copy
  diskcast key new lab.key                        also writes lab.key.pub, for those who are to trust it
  diskcast capture /dev/sda classroom --sign-key lab.key
  diskcast install classroom /dev/sdb --trust lab.key.pub")]
pub struct Key {
    #[command(subcommand)]
    pub what: KeyCommand,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a key that signs: the private half in FILE (mode 0600), the public one in FILE.pub
    New {
        /// Make a key that encrypts a repository instead; it has no public half
        #[arg(long, conflicts_with = "name")]
        encryption: bool,
        /// File to make; it must not exist
        file: PathBuf,
        /// What others see beside the key [default: user and host]
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
    },
    /// Print the public half of the key in FILE
    Show {
        /// File that `diskcast key new` or `openssl genpkey -algorithm ed25519` made
        file: PathBuf,
    },
}

/// Show or remove what is known of how machines start from an image
///
/// `diskcast attach` keeps what a machine reads when it starts from a new disk, and prefetches what others have read. A clone
/// begins with what is known of its original.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast profile show classroom
  diskcast profile remove classroom     after a change that makes machines start otherwise")]
pub struct Profile {
    #[command(subcommand)]
    pub what: ProfileCommand,
}

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Show how much of the image the next machine is expected to read, and of how many boots that is known
    Show {
        /// image, image:tag or image@version
        image: String,
    },
    /// Forget it; also what a clone has from its original
    Remove {
        /// image, image:tag or image@version
        image: String,
    },
}

/// Show where the repository is and what its store can do
///
/// An S3 store is reached by the variables that other programs for S3 read as well: AWS_ENDPOINT_URL (of any store but
/// Amazon's), AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE and AWS_PROFILE;
/// AWS_SESSION_TOKEN; AWS_CA_BUNDLE. Before diskcast first writes to a store it tries whether the store keeps writers
/// apart, and keeps what it found; what it found is shown here.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast repository
  diskcast repository --repo s3://images/lab --probe     try the store again, after its software was changed")]
pub struct RepositoryArgs {
    /// Try the store now, and keep what is found
    #[arg(long)]
    pub probe: bool,
}

/// How a target is written.
#[derive(Debug, Clone, Args)]
pub struct Writing {
    /// What becomes of space that the image's filesystems do not use
    #[arg(long, value_enum, default_value_t = Free::Skip)]
    pub free: Free,
    /// Read the target first and write only what differs
    #[arg(long)]
    pub resume: bool,
    /// Do not read back what was written
    #[arg(long)]
    pub no_verify: bool,
    /// Leave signatures of what was on the target before where the image has free space
    #[arg(long)]
    pub keep_signatures: bool,
    /// Leave a file that is longer than the image as long as it is
    #[arg(long)]
    pub keep_size: bool,
    /// Leave the backup GPT where the image has it, also on a larger disk
    #[arg(long)]
    pub keep_gpt: bool,
    /// Overwrite a file that holds something without asking; --resume does, too
    #[arg(long)]
    pub overwrite: bool,
    /// Write onto the disk or file that the image was captured from
    #[arg(long)]
    pub onto_source: bool,
}

/// How much of this machine to use.
#[derive(Debug, Clone, Args)]
pub struct Effort {
    /// Threads that compress or decompress [default: two a core, memory permitting]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<std::num::NonZeroUsize>,
    /// Memory for data between the stages
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "64M")]
    pub memory: u64,
}

/// A server that does it, in its repository.
#[derive(Debug, Clone, Args)]
pub struct There {
    /// Do it in the repository of this server
    #[arg(long, value_name = "SERVER")]
    pub to: Option<String>,
    #[command(flatten)]
    pub reach: Reach,
}

/// How a server is reached. Its token never comes from an argument, which every user of the machine could read.
#[derive(Debug, Clone, Args)]
pub struct Reach {
    /// File that holds the server's token, `-` for standard input [or the token itself in DISKCAST_TOKEN]
    #[arg(long, value_name = "FILE", env = "DISKCAST_TOKEN_FILE", hide_env_values = true)]
    pub token_file: Option<PathBuf>,
    /// How long to wait for the server's first answer; one that has answered is waited for for two minutes
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "20s")]
    pub wait: std::time::Duration,
}

/// Where the server keeps its certificate and secret.
#[derive(Debug, Clone, Args)]
pub struct StateFolder {
    /// Folder for the server's certificate and secret [default: beside the default repository]
    #[arg(long, value_name = "FOLDER", env = "DISKCAST_STATE", hide_env_values = true)]
    pub state: Option<PathBuf>,
}

/// What becomes of free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Free {
    /// Leave it as it is: fastest
    Skip,
    /// Fill it with zeros
    Zero,
    /// Tell the medium that it is unused (TRIM)
    Discard,
}

/// Ways to get an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Multicast if it works on this network, unicast for the rest
    Auto,
    /// Multicast only: fail where it does not work
    Multicast,
    /// Unicast only
    Unicast,
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    units::parse_bytes(text).ok_or_else(|| "expected a number of bytes, such as 4096 or 20G".to_owned())
}

fn parse_range(text: &str) -> Result<std::ops::Range<u64>, String> {
    let parsed = text.split_once('+').and_then(|(offset, length)| {
        let (offset, length) = (units::parse_bytes(offset)?, units::parse_bytes(length)?);
        Some(offset..offset.checked_add(length)?)
    });
    parsed
        .filter(|range| !range.is_empty())
        .ok_or_else(|| "expected OFFSET+LENGTH, such as 1M+4096".to_owned())
}

fn parse_chunk_bytes(text: &str) -> Result<u32, String> {
    use base::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN};
    units::parse_bytes(text)
        .and_then(|bytes| u32::try_from(bytes).ok())
        .filter(|bytes| bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(bytes))
        .ok_or_else(|| "expected a power of two from 64K to 16M".to_owned())
}

fn parse_memory(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 32 << 20;
    units::parse_bytes(text)
        .filter(|&bytes| bytes >= LEAST)
        .ok_or_else(|| "expected a size from 32M on".to_owned())
}

fn parse_cache(text: &str) -> Result<u64, String> {
    units::parse_bytes(text)
        .filter(|&bytes| bytes >= store::CACHE_BYTES_MIN)
        .ok_or_else(|| format!("expected a size from {} on", units::show_bytes(store::CACHE_BYTES_MIN)))
}

fn parse_buffer(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 4 << 20;
    units::parse_bytes(text)
        .filter(|&bytes| bytes >= LEAST)
        .ok_or_else(|| "expected a size from 4M on".to_owned())
}

fn parse_rate(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 1_000_000;
    let expected = || "expected a rate from 1M on, such as 800M or 10G".to_owned();
    units::parse_bits_per_second(text).filter(|&rate| rate >= LEAST).ok_or_else(expected)
}

fn parse_lifetime(text: &str) -> Result<std::time::Duration, String> {
    let parsed = text.char_indices().last().and_then(|(last, unit)| {
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        };
        text[..last].parse::<u64>().ok()?.checked_mul(seconds).filter(|&total| total > 0)
    });
    let century = 100 * 366 * 86_400;
    let seconds = parsed.filter(|&seconds| seconds <= century);
    seconds
        .map(std::time::Duration::from_secs)
        .ok_or_else(|| "expected a time such as 30d, 8h or 15m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn values_are_checked() {
        assert_eq!(parse_lifetime("8h").unwrap().as_secs(), 28_800);
        for text in ["", "d", "0d", "5", "-1d", "9999999999999999999d", "400000d", "1é"] {
            assert!(parse_lifetime(text).is_err(), "{text}");
        }
        assert_eq!(parse_chunk_bytes("1M"), Ok(1 << 20));
        for text in ["3K", "300K", "32M", ""] {
            assert!(parse_chunk_bytes(text).is_err(), "{text}");
        }
        assert!(parse_rate("10").is_err() && parse_rate("1G").is_ok());
        assert_eq!(parse_label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(parse_label("=x").is_err() && parse_label("x").is_err());
    }
}
