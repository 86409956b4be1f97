# Drivers for OpenNebula on a machine with LVM, in the script of a guest: all hosts are this machine, by a program in the
# place of ssh; `h2` has a folder of its own for machines, and the same volume group.
cat >/srv/ssh <<'END'
#!/bin/bash
[ "$1" != -V ] || exit 0
while [ "$1" != -- ]; do shift; done
host=$2
shift 2
[ "$host" = h2 ] || exec sh -c "$*"
exec unshare --mount sh -c 'mount --bind /srv/h2 /srv/one && exec sh -c "$0"' "$*"
END
printf '#!/bin/sh\necho "$@" >>/srv/virsh.log\n' >/srv/virsh
printf '#!/bin/sh\ncat /srv/vm.xml\n' >/srv/onevm
chmod +x /srv/ssh /srv/virsh /srv/onevm
diskcast token --write >/srv/write
cat >/srv/one.toml <<'END'
ssh = "/srv/ssh"
virsh = "/srv/virsh"
volume_group = "vg"
kept = "/srv/one/.diskcast"
staging = "/srv"
[repositories.main]
location = "/srv/repo"
server = "https://127.0.0.1:7717"
token_file = "/srv/write"
END
export DISKCAST_ONE=/srv/one.toml DISKCAST_ONEVM=/srv/onevm
mkdir -p /srv/h2 /srv/one
# The machine is in this state of its life.
machine() {
    echo "<VM><ID>7</ID><LCM_STATE>$1</LCM_STATE><DEPLOY_ID>one-7</DEPLOY_ID><TEMPLATE><DISK><DISK_ID>0</DISK_ID>" \
        "<DRIVER>raw</DRIVER><SOURCE>main:web@1</SOURCE><SIZE>100</SIZE><DISKCAST_COPY>volume</DISKCAST_COPY>" \
        "<TM_MAD>diskcast</TM_MAD></DISK></TEMPLATE></VM>" >/srv/vm.xml
}
tm() { diskcast opennebula tm "$@"; }
put() { mount /srv/one/100/7/disk.0 /b; echo $1 >/b/word; umount /b; }
has() { mount -o ro $2 /b; [ "$(cat /b/word)" = $1 ]; umount /b; }
volumes() { lvs --noheadings -o lv_name vg | grep -c one- || true; }
# Something of somebody else was where the volume comes to lie, and there is no room while it is there.
dirty() {
    lvcreate -q -y -l 100%FREE -n dirt vg
    yes secret | dd of=/dev/vg/dirt bs=1M iflag=fullblock conv=fsync status=none 2>/dev/null || true
    refused "insufficient free space" "$@"
    lvremove -q -y vg/dirt
}
clean() { if grep -aq secret /dev/vg/one-100-7-0; then false; fi; }
disk=h:/srv/one/100/7/disk.0 home=/srv/one/100/7
machine 3
dirty tm clone main:web@1 $disk 7 101
tm delete h:$home 7 100
tm clone main:web@1 $disk 7 101
[ "$(readlink $home/disk.0)" = /dev/vg/one-100-7-0 ]
[ "$(blockdev --getsize64 $home/disk.0)" = $((100 << 20)) ]
e2fsck -fn $home/disk.0
clean
tm monitor_ds /srv/one/100 | grep -o '"[^"]*"' | tr -d '"' | base64 -d | grep "ID=0,SIZE=100"
# A script that was killed is repeated: nobody has run from it.
tm clone main:web@1 $disk 7 101
put first
tm snap_create $disk 1 7 101
put second
# What a save left that was killed leads to the snapshot, which is not the save's to remove.
ln -s /dev/vg/one-100-7-0-snap-1 $home/disk.0.save
machine 26
tm cpds $disk main:one-9 -1 7 101
[ "$(cat /srv/virsh.log)" = "suspend one-7
resume one-7" ]
tm cpds $disk main:one-8 1 7 101
[ "$(volumes)" = 2 ] && [ ! -e $home/disk.0.save ]
machine 8
diskcast install one-9 /srv/third.img -q
has second /srv/third.img
diskcast install one-8 /srv/third.img --overwrite -q
has first /srv/third.img
rm /srv/third.img
refused "delete its snapshots first" tm mv h:$home h2:$home 7 100
refused "delete its snapshots first" tm resize $disk 120 7 101
tm snap_revert $disk 1 7 101
has first $home/disk.0
tm snap_delete $disk 1 7 101
tm snap_delete $disk 1 7 101
[ "$(volumes)" = 1 ]
tm resize $disk 120 7 101
tm resize $disk 120 7 101
[ "$(blockdev --getsize64 $home/disk.0)" = $((120 << 20)) ]
clean
machine 62
refused "while its machine is off" tm resize $disk 140 7 101
machine 8
# A group that both hosts have would be emptied by a move, and so would a folder under two names of a host.
tm mv h:$home h3:$home 7 100
has first $home/disk.0
refused "is shared" tm mv h:$home h2:$home 7 100
base64 /srv/vm.xml >/srv/vm.base64
refused "is shared" tm premigrate h h2 $home 7 100 </srv/vm.base64
has first $home/disk.0
tm prebackup h:$home 0 one-7 - 7 100 </srv/vm.base64
put third
has first $home/backup/disk.0
tm postbackup h:$home 0 one-7 - 7 100 </srv/vm.base64
[ "$(volumes)" = 1 ] && [ ! -e $home/backup ]
# It rests on the front-end as a file, and comes back.
machine 10
tm mv h:$home h:/srv/fe/100/7 7 100
[ "$(volumes)" = 0 ] && [ ! -e $home ] && [ -f /srv/fe/100/7/disk.0 ]
has third /srv/fe/100/7/disk.0
# Its end is in the middle of an extent.
truncate -s 122M /srv/fe/100/7/disk.0
machine 9
dirty tm mv h:/srv/fe/100/7 h:$home 7 100
[ -f /srv/fe/100/7/disk.0 ]
tm mv h:/srv/fe/100/7 h:$home 7 100
[ ! -e /srv/fe/100/7 ] && [ "$(blockdev --getsize64 $home/disk.0)" = $((124 << 20)) ]
[ "$(ls -A $home)" = disk.0 ]
has third $home/disk.0
clean
tm mvds $disk main:one-9 7 101
diskcast install one-9@2 /srv/third.img -q
has third /srv/third.img
rm /srv/third.img
tm delete h:$home 7 100
tm delete h:$home 7 100
[ "$(volumes)" = 0 ] && [ ! -e $home ]
