//! Tests that a real Debian, whatever filesystem its root has, boots from larger and from smaller disks.

use std::process::Command;

use crate::common::{Bench, boot, with_debian};

/// Makes `made.img` of `debian.img`: the same system, but its root is of kind `$1`, made by `$2`, and begins with a
/// subvolume if it is btrfs. There is no swap space.
const OTHER_ROOT: &str = r#"
set -e
kind=$1 mkfs=$2
start=264192 uuid=$(blkid -p -O $((264192 * 512)) -S $((3403776 * 512)) -s UUID -o value debian.img)
truncate -s 2G made.img
printf 'label: gpt\nstart=2048, size=262144, type=U\nstart=%s, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709\n' $start |
    sfdisk --quiet made.img
dd if=debian.img of=made.img bs=1M skip=1 seek=1 count=128 conv=notrunc,sparse status=none
new=$(losetup --find --show --offset $((start * 512)) --sizelimit $((2040 * 1048576 - start * 512)) made.img)
trap 'umount old new 2>/dev/null || true; losetup --detach $new $old' EXIT
# Before the other one is attached: mkfs.btrfs refuses an identifier that another device has.
$mkfs$uuid $new
old=$(losetup --find --show --read-only --offset $((start * 512)) --sizelimit $((3403776 * 512)) debian.img)
mkdir old new
mount -o ro,noload $old old
mount $new new
if [ $kind = btrfs ]; then btrfs --quiet subvolume create new/srv; fi
cp -a old/. new/
sed -i "/swap/d; s/ ext4 .*/ $kind defaults 0 0/" new/etc/fstab
"#;

/// Runs diskcast, which finds the tools of filesystems, and checks that it says `expected`.
fn does(bench: &Bench, words: &str, expected: &[&str]) {
    let mut command = bench.command(words);
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    let shown = bench.show(&command.output().unwrap());
    assert!(shown.ends_with("exit: 0\n"), "{words}: {shown}");
    for part in expected {
        assert!(shown.contains(part), "{words}: {shown}");
    }
}

/// [`with_debian`], with the same system in `made.img` with another root.
fn with_root(kind: &str, mkfs: &str) -> Option<Bench> {
    let bench = with_debian("debian.img")?;
    let mut script = Command::new("bash");
    script.args(["-c", OTHER_ROOT, "-", kind, mkfs]).current_dir(bench.path("."));
    let done = script.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().unwrap();
    assert!(done.status.success(), "{kind}: {}", String::from_utf8_lossy(&done.stderr));
    Some(bench)
}

#[test]
fn an_xfs_root_boots_from_a_larger_disk() {
    let Some(bench) = with_root("xfs", "mkfs.xfs -q -m uuid=") else { return };
    does(&bench, "capture made.img golden -q", &[]);
    let words = "install golden large.img --size 3G --grow --hostname large";
    does(&bench, words, &["grew partition 2 (xfs)"]);
    boot(&bench, "large");
    let shown = bench.see("shrink golden 1G small");
    assert!(shown.contains("only ext2, ext3, ext4, btrfs and NTFS can shrink"), "{shown}");
}

#[test]
fn a_btrfs_root_boots_from_a_larger_and_from_a_smaller_disk() {
    let Some(bench) = with_root("btrfs", "mkfs.btrfs -q -U ") else { return };
    does(&bench, "capture made.img golden -q", &[]);
    let words = "install golden large.img --size 3G --grow --hostname large";
    does(&bench, words, &["grew partition 2 (btrfs)"]);
    boot(&bench, "large");
    does(&bench, "shrink golden 1400M small", &["shrink partition 2 (btrfs) from 1.9 GiB to 1.2 GiB"]);
    does(&bench, "install small small.img --hostname small", &[]);
    assert_eq!(bench.path("small.img").metadata().unwrap().len(), 1400 << 20);
    boot(&bench, "small");
}

#[test]
fn an_ext4_root_boots_from_a_smaller_disk_and_the_swap_space_behind_it_moves() {
    let Some(bench) = with_debian("debian.img") else { return };
    does(&bench, "capture debian.img golden -q", &[]);
    does(
        &bench,
        "shrink golden 1200M small --dry-run",
        &["would do: shrink partition 2 (ext4)", "partition 3 moves"],
    );
    assert!(bench.see("images").contains("golden") && !bench.see("images").contains("small"));
    does(&bench, "shrink golden 1200M small", &["captured small@1", "err: shrink partition 2 (ext4)"]);
    does(&bench, "install small small.img --hostname small", &[]);
    let told = bench.tool("sgdisk -v small.img");
    assert!(told.contains("No problems found"), "{told}");
    boot(&bench, "small");
    // What was left out stays as it is on the target, and can't move.
    does(&bench, "capture debian.img without --skip 1 -q", &[]);
    does(&bench, "shrink without 1200M without-small -q", &[]);
    bench.tool("dd if=/dev/urandom of=other.img bs=1M count=1200 status=none");
    bench.tool("dd if=other.img of=esp.before bs=1M skip=1 count=128 status=none");
    does(&bench, "install without-small other.img --overwrite -q", &[]);
    bench.tool("dd if=other.img of=esp.after bs=1M skip=1 count=128 status=none");
    bench.tool("cmp esp.before esp.after");
    does(&bench, "capture debian.img no-swap --skip 3 -q", &[]);
    for (words, reason) in [
        ("shrink golden 1G golden", "is the image itself"),
        ("shrink no-swap 1200M other", "partition 3 was left out"),
        ("shrink golden 2G other", "nothing needs to shrink"),
        ("shrink golden 600M other", "a disk of"),
    ] {
        let mut command = bench.command(words);
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        let shown = bench.show(&command.output().unwrap());
        assert!(shown.contains(reason) && !shown.ends_with("exit: 0\n"), "{words}: {shown}");
    }
}
