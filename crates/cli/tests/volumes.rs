//! Tests logical volumes in a machine whose kernel has them: as sources in use, as targets that are made, as snapshots
//! of each other; and the disk below, to which a kernel has written. LVM's and ext's own tools judge.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base::ErrorKind;
use lab::boot::Disk;
use lab::guest;

use crate::common::{self, Bench};

/// What the machine does when it starts. It ends with a line of its own, or switches itself off.
const GUEST: &str = r#"
refused() {
    local expected=$1 told; shift
    if told=$("$@" 2>&1); then false; fi
    [[ $told = *"$expected"* ]] || { echo "$told"; false; }
}
number() { grep -o "\"$1\":[0-9]*" "$2" | tail -1 | cut -d: -f2; }
mkdir -p /a /b
if vgs vg >/dev/null 2>&1; then
    vgchange -q -ay vg
    for volume in src new; do
        e2fsck -fn /dev/vg/$volume
        mount -o ro /dev/vg/$volume /b
        (cd /b && sha256sum -c --quiet sums)
        umount /b
    done
    finish
fi
pvcreate -q /dev/vdb
vgcreate -q vg /dev/vdb
lvcreate -q -y -L 96M -n src vg
mkfs.ext4 -q /dev/vg/src
mount /dev/vg/src /a
head -c 8M /dev/urandom >/a/data
(cd /a && sha256sum data >sums)
sync
echo "step: a source in use"
while :; do echo more >>/a/log; head -c 65536 /dev/urandom >/a/noise; sync /a/noise; done &
writer=$!
refused "is mounted at" diskcast capture /dev/vg/src web
refused "is not a logical volume" diskcast capture /dev/vdb web --snapshot
diskcast capture /dev/vg/src web --snapshot -q
[ "$(lvs --noheadings -o lv_name vg | wc -l)" = 1 ]
kill $writer
wait $writer || true
echo "step: a volume is made"
refused "vg" diskcast install web /dev/vg/big --create-volume --size 10G --yes
refused "not a place for a file" diskcast install web /dev/vg/new --yes
[ ! -e /dev/vg/big ]
diskcast install web /dev/vg/new --create-volume --yes -q
e2fsck -fn /dev/vg/new
mount -o ro /dev/vg/new /b
(cd /b && sha256sum -c --quiet sums)
umount /b
echo "step: a snapshot"
diskcast install web /dev/vg/copy --copy-of /dev/vg/new --yes --json >/tmp/told
[ "$(number written_bytes /tmp/told)" = 0 ]
[ "$(lvs --noheadings -o origin vg/copy | tr -d ' ')" = new ]
e2fsck -fn /dev/vg/copy
dd if=/dev/urandom of=/dev/vg/copy bs=64k seek=100 count=16 status=none conv=fsync
diskcast install web /dev/vg/copy2 --copy-of /dev/vg/new --yes -q
refused "a snapshot is a new logical volume" diskcast install web /dev/vg/copy --copy-of /dev/vg/new --yes
diskcast install web /dev/vg/copy --copy-of /dev/vg/new --resume --yes --json >/tmp/told
[ "$(number written_bytes /tmp/told)" -gt 0 ]
e2fsck -fn /dev/vg/copy
echo "step: what can't be"
truncate -s 64M /srv/other
other=$(losetup --find --show /srv/other)
vgcreate -q other $other
lvcreate -q -y -L 8M -n active other
refused "not in \`other\`" diskcast install web /dev/other/x --copy-of /dev/vg/new --yes
lvcreate -q -y -L 32M -n small vg
refused "is too small" diskcast install web /dev/vg/copy3 --copy-of /dev/vg/small --yes
refused "leave out --size" diskcast install web /dev/vg/copy3 --copy-of /dev/vg/new --size 200M --yes
free=$(vgs --noheadings --nosuffix --units m -o vg_free vg | cut -d. -f1)
refused "lvcreate failed" diskcast install web /dev/vg/big1 --also /dev/vg/big2 --create-volume \
    --size $((free * 2 / 3))M --yes
[ ! -e /dev/other/x ] && [ ! -e /dev/vg/copy3 ] && [ ! -e /dev/vg/big1 ] && [ ! -e /dev/vg/big2 ]
lvremove -q -y vg/small
echo "step: an interruption"
diskcast capture /dev/vg/src slow --snapshot -q --disk-rate 128K &
capture=$!
until lvs --noheadings -o lv_name vg | grep -q diskcast-; do :; done
kill -INT $capture
if wait $capture; then false; fi
while lvs --noheadings -o lv_name vg | grep -q diskcast-; do :; done
echo "step: a volume that is served while it is written"
diskcast serve --listen 127.0.0.1:7717 --no-multicast --torrent --state /srv/state --token-out /srv/token -q &
server=$!
until [ -s /srv/token ] && (: >/dev/tcp/127.0.0.1/7717) 2>/dev/null; do
    kill -0 $server
    sleep 0.1
done
lvcreate -q -y -L 96M -n started vg
diskcast fetch https://127.0.0.1:7717 web /dev/vg/started --token-file /srv/token --yes --json --torrent \
    --serve-for 1h --serve-copy >/tmp/told &
seeder=$!
until grep -q '"fetched"' /tmp/told; do kill -0 $seeder; sleep 0.1; done
e2fsck -fn /dev/vg/started
dd if=/dev/zero of=/dev/vg/started bs=1M count=96 status=none conv=fsync
diskcast fetch https://127.0.0.1:7717 web /srv/second.img --token-file /srv/token --torrent=6882 -q
e2fsck -fn /srv/second.img
kill -INT $seeder
wait $seeder
[ "$(number served_bytes /tmp/told)" -gt 0 ]
if lvs --noheadings -o lv_name vg | grep diskcast-; then false; fi
lvremove -q -y vg/started
rm /srv/second.img
echo "step: snapshots of a volume that is kept"
# The end of its input would call a job off.
mkfifo /tmp/orders
exec 3<>/tmp/orders
job() {
    local version=$1 root=$2 target=$3 more=${4:-}
    local server='"format":1,"server":"https://127.0.0.1:7717"' put='"copy":"snapshot"'
    printf '{%s,%s,"token":"%s","reference":"%s","root":"%s","target":"%s"%s}\n' \
        "$server" "$put" "$(cat /srv/token)" $version $root $target "$more" >&3
    diskcast work --kept /srv/kept </tmp/orders
}
root_of() { diskcast fetch https://127.0.0.1:7717 $1 /srv/third.img --token-file /srv/token --resume --json |
    grep -o '"root":"[0-9a-f]*"' | cut -d'"' -f4; }
first=$(root_of web@1)
job web@1 $first /dev/vg/vm1 >/tmp/told
job web@1 $first /dev/vg/vm2 >/tmp/told
grep -q '"kept":true' /tmp/told
dd if=/dev/urandom of=/dev/vg/vm1 bs=64k seek=100 count=16 status=none conv=fsync
mount -o ro /dev/vg/vm2 /b
(cd /b && sha256sum -c --quiet sums)
umount /b
# An attempt that is repeated finds its own; what a machine has written stays.
job web@1 $first /dev/vg/vm2 ',"resume":true' >/tmp/told
refused "a snapshot is a new logical volume" job web@1 $first /dev/vg/vm1 ',"resume":true'
refused "is not a logical volume" job web@1 $first /srv/vm3
refused "exists" job web@1 $first /dev/vg/vm2
lvremove -q -y vg/vm1 vg/vm2
# One more image has room where the first one was.
echo more >/a/more
diskcast capture /dev/vg/src web --snapshot -q
second=$(root_of web@2)
free=$(vgs --noheadings -o vg_free_count vg)
lvcreate -q -y -l $((free - 25)) -n filler vg
job web@2 $second /dev/vg/vm3 >/tmp/told
[ "$(lvs --noheadings -o lv_name vg | grep -c diskcast-)" = 1 ]
diskcast agent --list --kept /srv/kept | grep "web@2"
e2fsck -fn /dev/vg/vm3
lvremove -q -y vg/filler vg/vm3
lvremove -q -y $(lvs --noheadings -o vg_name,lv_name --separator / vg | grep diskcast-)
rm -r /srv/third.img /srv/kept
echo "step: volumes of a machine of OpenNebula"
. /srv/one-guest/volumes.sh
kill $server
wait $server
echo "step: a thin volume"
lvcreate -q -y -L 240M -T vg/pool
lvcreate -q -y -V 96M -T vg/pool -n thin
diskcast install web /dev/vg/thin --yes -q
diskcast install web /dev/vg/thin2 --copy-of /dev/vg/thin --yes -q
[ "$(lvs --noheadings -o segtype vg/thin2 | tr -d ' ')" = thin ]
e2fsck -fn /dev/vg/thin2
mount /dev/vg/thin2 /b
diskcast capture /dev/vg/thin2 thin --snapshot -q
umount /b
echo "step: the end"
umount /a
lvremove -q -y vg/copy vg/copy2 vg/thin2 vg/thin vg/pool
# In two pieces.
lvextend -q -L +32M vg/src
e2fsck -fy /dev/vg/src >/dev/null
resize2fs /dev/vg/src
vgchange -q -an vg
rm -f /etc/lvm/backup/vg
diskcast grow /dev/vdb --volume src | grep "logical volume src (ext4) from 128 MiB to"
# What udev runs may write it, but not with the words of our own call.
if grep -q driverloaded /etc/lvm/backup/vg; then false; fi
refused "there is no logical volume" diskcast grow /dev/vdb --volume root
finish
"#;

/// Starts the machine with a second disk, and waits for its end. False where no machine can be started.
fn run(bench: &Bench, disk: &str) -> bool {
    let disk = Disk { path: bench.path(disk), format: "raw", direct: false };
    match guest::run(&bench.path("system.img"), vec![disk], Duration::from_secs(900)) {
        Err(error) if error.kind() == ErrorKind::Unsupported && std::env::var_os("CI").is_none() => false,
        boot => boot.map(|_| true).unwrap(),
    }
}

/// Makes `made.img` of `system.img`: the same system, with its root and swap space in a volume group, as Debian's
/// installer does it, but the swap space first.
const IN_LVM: &str = r#"
set -e
truncate -s 2G made.img
printf 'label: gpt\nstart=2048, size=262144, type=U\nstart=264192, size=3928064, type=V\n' | sfdisk --quiet made.img
dd if=system.img of=made.img bs=1M skip=1 seek=1 count=128 conv=notrunc,sparse status=none
printf '%s\n' 'title Debian' 'linux /vmlinuz' 'initrd /initrd.img' \
    'options root=/dev/mapper/debian-root rw console=ttyS0' >entry
mcopy -o -i made.img@@1M entry ::loader/entries/debian.conf
volume=$(losetup --find --show --offset 129M --sizelimit $((3928064 * 512)) made.img)
lvm="--driverloaded n --devices $volume"
pvcreate -q $lvm $volume
vgcreate -q $lvm debian $volume
lvcreate -q $lvm -an -Zn -Wn -y -l 16 -n swap debian
lvcreate -q $lvm -an -Zn -Wn -y -l 400 -n root debian
losetup --detach $volume
swap=$(losetup --find --show --offset 130M --sizelimit 64M made.img)
root=$(losetup --find --show --offset 194M --sizelimit 1600M made.img)
old=$(losetup --find --show --read-only --offset $((264192 * 512)) --sizelimit $((3403776 * 512)) system.img)
trap 'umount old new 2>/dev/null || true; losetup --detach $swap $root $old' EXIT
mkswap -q $swap
mkfs.ext4 -q $root
mkdir old new
mount -o ro,noload $old old
mount $root new
cp -a old/. new/
printf '/dev/mapper/debian-root / ext4 defaults 0 1\n/dev/mapper/debian-swap none swap defaults 0 0\n' >new/etc/fstab
"#;

#[test]
fn a_root_in_lvm_boots_from_a_larger_disk() {
    let Some(bench) = common::with_lvm("system.img") else { return };
    let mut script = Command::new("bash");
    script.args(["-c", IN_LVM]).current_dir(bench.path("."));
    let done = script.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let captured = bench.see("capture made.img golden");
    assert!(captured.ends_with("exit: 0\n") && !captured.contains("whole"), "{captured}");
    let mut command = bench.command("install golden diskcast-demo.img --size 3G --grow");
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    let seen = bench.show(&command.output().unwrap());
    let grew = "grew partition 2 (LVM2_member) of diskcast-demo.img from 1.9 GiB to 2.9 GiB, \
                logical volume root (ext4) from 1.6 GiB to 2.8 GiB";
    assert!(seen.contains(grew) && seen.ends_with("exit: 0\n"), "{seen}");
    let told = bench.tool("dumpe2fs -h diskcast-demo.img?offset=203423744");
    let blocks = told.lines().find_map(|line| line.strip_prefix("Block count:")).unwrap().trim();
    assert!(blocks.parse::<u64>().unwrap() > (2600 << 20) / 4096, "{told}");
    common::boot(&bench, "diskcast-demo");
}

#[test]
fn volumes_are_captured_in_use_made_and_copied_and_what_a_kernel_wrote_survives() {
    let Some(bench) = common::with_lvm("system.img") else { return };
    let program = Path::new(env!("CARGO_BIN_EXE_diskcast"));
    let one = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/one-guest");
    guest::prepare(&bench.path("system.img"), program, GUEST, &[&one]).unwrap();
    bench.tool("truncate -s 768M volumes.img");
    if !run(&bench, "volumes.img") {
        return;
    }

    let captured = bench.see("capture volumes.img group");
    assert!(captured.ends_with("exit: 0\n") && !captured.contains("whole"), "{captured}");
    let version = bench.json("inspect group");
    let allocated = version[0]["manifest"]["statistics"]["allocated_bytes"].as_u64();
    assert!(allocated.is_some_and(|bytes| bytes < 128 << 20), "{allocated:?}");
    let mut noise = vec![0; 768 << 20];
    base::Chance::from_seed(3).fill(&mut noise);
    fs::write(bench.path("again.img"), noise).unwrap();
    assert!(bench.see("install group again.img --overwrite -q").ends_with("exit: 0\n"));
    assert!(run(&bench, "again.img"));
}
