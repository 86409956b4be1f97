//! Folders whose filesystem has no hard links. The kernel refuses what FAT and exFAT do not have: a filter of system
//! calls, which perl sets before it becomes the test program. seccomp(2), bpf(4). exFAT itself, behind its FUSE driver,
//! is one of the places of `conformance`.

use std::process::Command;

use base::ErrorKind;
use image::NoProgress;
use store::{Location, Repository, Scope};

use crate::common::{self, image, in_exfat, publish, reference, stamp};

/// Set in the child processes of these tests.
const CHILD: &str = "DISKCAST_TEST_WITHOUT_NAMES";

/// Sets the filter that its arguments describe: the numbers of system calls, then the program.
const FILTER: &str = "
    my ($prctl, $linkat, $link, $rename, $openat, $open, @program) = @ARGV;
    my @code = (
        [0x20, 0, 0, 0],                                # load the number of the call
        [0x15, 8, 0, $linkat], [0x15, 7, 0, $link],     # -> EPERM
        [0x15, 7, 0, $rename],                          # -> EINVAL
        [0x15, 1, 0, $openat], [0x15, 2, 7, $open],     # if it is to open, load its flags
        [0x20, 0, 0, 32], [5, 0, 0, 1], [0x20, 0, 0, 24],
        [0x45, 2, 3, 0x400000],                         # O_TMPFILE -> EOPNOTSUPP
        [6, 0, 0, 0x50001], [6, 0, 0, 0x50016], [6, 0, 0, 0x5005f], [6, 0, 0, 0x7fff0000],
    );
    my $code = join '', map { pack 'SCCL', @$_ } @code;
    my $filter = pack 'S x![P] P', scalar @code, $code;
    syscall($prctl + 0, 38, 1, 0, 0, 0) == 0 and syscall($prctl + 0, 22, 2, $filter, 0, 0) == 0 or die $!;
    exec @program or die $!;
";

/// Number of a system call that there is not.
const NONE: &str = "4294967295";

/// Runs the tests `name` of this program where the kernel refuses to link, and to make files without names; without
/// `renames`, also to rename without replacing.
fn run_without_links(name: &str, renames: bool) {
    let [prctl, linkat, link, rename, openat, open] = match std::env::consts::ARCH {
        "x86_64" => ["157", "265", "86", "316", "257", "2"],
        _ => ["167", "37", NONE, "276", "56", NONE],
    };
    let rename = if renames { NONE } else { rename };
    let mut command = Command::new("perl");
    command.args(["-e", FILTER, prctl, linkat, link, rename, openat, open]);
    let done = command.arg(std::env::current_exe().unwrap()).arg(name).env(CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(!said.contains(" 0 passed"), "{said}");
}

#[test]
fn a_repository_does_without_links() {
    run_without_links("conformance::folder::", true);
}

#[test]
fn a_filesystem_that_can_only_replace_is_refused() {
    run_without_links("links::only_replaces", false);
}

/// Not a test, but a child process.
#[test]
fn only_replaces() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Folder(folder.path().join("repository"));
    let refused = Repository::create(&location).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
    let told = base::chain(&refused);
    assert!(told.contains("has no hard links") && told.contains("use a folder of a disk"), "{told}");
    assert!(!folder.path().join("repository/format").exists());
}

#[test]
fn what_a_medium_lost_is_healed_on_exfat() {
    let Some(place) = in_exfat() else { return };
    let other = common::in_folder();
    for seed in [1, 2] {
        publish(&place.repository, "debian", seed);
        publish(&other.repository, "debian", seed);
    }
    let chunks = place.folder().join("chunks");
    let first = |folder: &std::path::Path| {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).min().unwrap()
    };
    std::fs::write(first(&first(&chunks)), b"damaged").unwrap();
    let found = place.repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!(found.damaged.len(), 1);
    let healed =
        place.repository.repair(&Scope::All, Some(&other.repository), &stamp(), &NoProgress).unwrap();
    assert_eq!(healed.healed.len(), 1, "{healed:?}");
    place.repository.remove(&reference("debian@1"), &stamp()).unwrap();
    assert_eq!(place.repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
    // The next program finds all as it was.
    let again = place.another().unwrap();
    assert_eq!(again.versions(&image("debian")).unwrap(), [2]);
}
