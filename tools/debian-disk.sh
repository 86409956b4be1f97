#!/usr/bin/env bash
# Makes a real Debian disk as a raw image: GPT; an EFI system partition with systemd-boot, kernel and initrd; an ext4
# root; a swap partition. It boots by its own boot loader on UEFI firmware, to a login prompt on its serial console
# (root, no password). Nothing is mounted, no loop device is needed. Needs root, and the tools of install-dependencies.sh.
#
# Packages come from wherever this machine's own apt takes Debian's from. A disk that this script already made from the
# same arguments is kept.
#
# Follows: Discoverable Partitions (type GUIDs by sgdisk's codes), the Boot Loader Specification (type 1 entries).
set -euo pipefail

usage='usage: tools/debian-disk.sh [--size MIB] [--packages "NAME NAME"] [--grub] [--small] DISK'
disk_mib=2048
packages=
grub=
small=
while [ $# -gt 1 ]; do
    case $1 in
        --size) disk_mib=$2; shift 2 ;;
        --packages) packages=$2; shift 2 ;;
        --grub) grub=yes; shift ;;
        --small) small=yes; shift ;;
        *) echo "$usage" >&2; exit 2 ;;
    esac
done
disk=${1:?$usage}

# One MiB is left before the first and behind the last partition, for the tables.
esp_mib=128
swap_mib=256
root_mib=$((disk_mib - esp_mib - swap_mib - 2))
root_uuid=6d3a7a6e-0e0c-4c7e-9f61-64697363617a
swap_uuid=6d3a7a6e-0e0c-4c7e-9f61-737761700a7a
esp_serial=D15CCA57
parameters="root=UUID=$root_uuid rw console=ttyS0"

made_from="$(sha256sum <"$0") $disk_mib $packages $grub $small"
if [ -e "$disk" ] && [ "$(cat "$disk.made-from" 2>/dev/null)" = "$made_from" ]; then
    exit 0
fi

mkdir -p "$(dirname "$disk")"
work=$(mktemp -d "$(dirname "$disk")/debian-disk.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

# mmdebstrap has apt write to its next free file descriptor through a shell that knows descriptors of one digit only, so
# none that was inherited (from a job server, a lock) may be left open. 255 is this script.
for descriptor in /proc/self/fd/*; do
    descriptor=${descriptor##*/}
    [ "$descriptor" -le 2 ] || [ "$descriptor" = 255 ] || exec {descriptor}>&-
done

# The machine's own sources of Debian, whichever files and formats they stand in, as one-line sources.
sources() {
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Origin: Debian' 'Created-By: Packages' | sort -u
}

loaders=systemd-boot
[ -z "$grub" ] || loaders='shim-signed grub-efi-amd64-signed grub-pc-bin grub-common'

make_root() {
    [ -n "$(sources)" ] || { echo "apt knows no source of Debian here; run apt-get update first" >&2; exit 1; }
    # A mirror kept at one date has an index that is past its own; what this machine's apt accepts is accepted here.
    apt-config dump Acquire::Check-Valid-Until >"$work/apt.conf"
    sources | unshare --mount mmdebstrap --quiet --variant=minbase --aptopt="$work/apt.conf" \
        --include="linux-image-cloud-amd64 initramfs-tools systemd-sysv udev dbus e2fsprogs dosfstools $loaders $packages" \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --customize-hook='chroot "$1" passwd --quiet --delete root' \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$work/root"
    echo diskcast-demo >"$work/root/etc/hostname"
    cat >"$work/root/etc/fstab" <<-FSTAB
	UUID=$root_uuid / ext4 defaults 0 1
	UUID=${esp_serial:0:4}-${esp_serial:4} /boot/efi vfat defaults 0 2
	UUID=$swap_uuid none swap defaults 0 0
	FSTAB
    mkdir -p "$work/root/boot/efi" "$work/root/etc/systemd/system.conf.d"
    # A busy machine emulates a slow one: nothing in it gives up because of that.
    printf '%s\n' '[Manager]' DefaultDeviceTimeoutSec=infinity DefaultTimeoutStartSec=infinity \
        >"$work/root/etc/systemd/system.conf.d/patient.conf"
    spare
}

# What nobody looks at does not start: each program takes half a second of a core in emulation, and all of these as much
# as the rest of the start.
spare() {
    local name
    mkdir -p "$work/root/etc/systemd/system-generators"
    for name in bless-boot cryptsetup debug gpt-auto hibernate-resume integritysetup rc-local run system-update sysv \
        veritysetup; do
        ln -s /dev/null "$work/root/etc/systemd/system-generators/systemd-$name-generator"
    done
    for name in {apt-daily,apt-daily-upgrade,dpkg-db-backup,e2scrub_all,fstrim,systemd-tmpfiles-clean}.timer \
        {dbus,e2scrub_reap,getty@tty1}.service dbus.socket \
        systemd-{ask-password-console,ask-password-wall}.path proc-sys-fs-binfmt_misc.automount \
        systemd-{binfmt,journal-flush,logind,pstore,random-seed,sysctl,sysusers}.service \
        systemd-{update-utmp,update-utmp-runlevel}.service \
        dev-{hugepages,mqueue}.mount sys-kernel-{config,debug,tracing}.mount sys-fs-fuse-connections.mount; do
        ln -sf /dev/null "$work/root/etc/systemd/system/$name"
    done
}

make_systemd_boot() {
    mkdir -p "$work/esp/EFI/BOOT" "$work/esp/loader/entries"
    cp "$work"/root/usr/lib/systemd/boot/efi/systemd-bootx64.efi "$work/esp/EFI/BOOT/BOOTX64.EFI"
    echo 'timeout 0' >"$work/esp/loader/loader.conf"
    cat >"$work/esp/loader/entries/debian.conf" <<-ENTRY
	title Debian
	linux /vmlinuz
	initrd /initrd.img
	options $parameters
	ENTRY
}

# The signed GRUB reads /EFI/debian/grub.cfg; the one for BIOS searches for that file, too.
make_grub() {
    mkdir -p "$work/esp/EFI/BOOT" "$work/esp/EFI/debian"
    cp "$work/root/usr/lib/shim/shimx64.efi.signed" "$work/esp/EFI/BOOT/BOOTX64.EFI"
    cp "$work/root/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed" "$work/esp/EFI/BOOT/grubx64.efi"
    cat >"$work/esp/EFI/debian/grub.cfg" <<-SETTINGS
	set timeout=0
	search --no-floppy --file --set=root /EFI/debian/grub.cfg
	linux /vmlinuz $parameters
	initrd /initrd.img
	boot
	SETTINGS
    printf '%s\n' 'search --no-floppy --file --set=root /EFI/debian/grub.cfg' 'configfile /EFI/debian/grub.cfg' \
        >"$work/root/tmp/bios.cfg"
    chroot "$work/root" grub-mkimage --format=i386-pc --prefix=/EFI/debian --config=/tmp/bios.cfg --output=/tmp/core.img \
        biosdisk part_gpt fat search search_fs_file configfile normal linux echo
    mv "$work/root/tmp/core.img" "$work/core.img"
    cp "$work/root/usr/lib/grub/i386-pc/boot.img" "$work/boot.img"
    rm "$work/root/tmp/bios.cfg"
}

# Puts `number` as so many bytes, little endian, at an offset of a file.
put() {
    local file=$1 offset=$2 bytes=$3 number=$4 text=
    for ((byte = 0; byte < bytes; byte++)); do
        text+=$(printf '\\x%02x' $((number >> (8 * byte) & 255)))
    done
    printf '%b' "$text" | dd of="$file" bs=1 seek="$offset" conv=notrunc status=none
}

# The BIOS reads sector 0, which reads the first sector of the partition for GRUB, which reads the rest.
add_bios() {
    local image=$1 first=34
    local sectors=$((($(stat -c %s "$work/core.img") + 511) / 512))
    [ $((first + sectors)) -le 2048 ] || { echo "GRUB for BIOS needs $sectors sectors" >&2; exit 1; }
    put "$work/boot.img" $((0x5c)) 8 $first
    put "$work/core.img" $((0x1f4)) 8 $((first + 1))
    put "$work/core.img" $((0x1fc)) 2 $((sectors - 1))
    sgdisk --set-alignment=1 --new "4:$first:2047" --typecode 4:ef02 --change-name 4:BIOS "$image" >/dev/null
    dd if="$work/boot.img" of="$image" bs=440 count=1 conv=notrunc status=none
    dd if="$work/core.img" of="$image" bs=512 seek=$first conv=notrunc status=none
}

make_esp() {
    local esp=$work/esp.img
    mkdir -p "$work/esp"
    cp "$work"/root/boot/vmlinuz-* "$work/esp/vmlinuz"
    cp "$work"/root/boot/initrd.img-* "$work/esp/initrd.img"
    if [ -n "$grub" ]; then make_grub; else make_systemd_boot; fi
    truncate -s "${esp_mib}M" "$esp"
    mkfs.vfat -F 32 -n EFI -i "$esp_serial" "$esp" >/dev/null
    mcopy -i "$esp" -s "$work"/esp/* ::
}

# Half of the root is what a start never reads: emulated machines would write and check it at a tenth of a disk's rate.
make_small() {
    local modules
    modules=$(echo "$work"/root/usr/lib/modules/*)
    rm -rf "$work"/root/usr/share/{grub,i18n,locale,perl,zoneinfo} "$work"/root/usr/lib/{grub,shim,udev/hwdb.*} \
        "$work"/root/usr/lib/x86_64-linux-gnu/{gconv,perl} \
        "$modules"/kernel/{sound,virt} \
        "$modules"/kernel/drivers/{comedi,gpu,hid,infiniband,media,net/ethernet,net/wireless,target} \
        "$modules"/kernel/fs/{btrfs,ceph,cifs,f2fs,gfs2,jfs,nfs,nfsd,ocfs2,reiserfs,smb,ubifs,xfs} \
        "$modules"/kernel/net/{bridge,ceph,dccp,netfilter,openvswitch,rds,sched,sctp,smc,sunrpc,tipc,tls,vmw_vsock,xfrm}
    chroot "$work/root" depmod "${modules##*/}"
}

make_rest() {
    truncate -s "${root_mib}M" "$work/root.img"
    mkfs.ext4 -q -L root -U "$root_uuid" -d "$work/root" "$work/root.img"
    truncate -s "${swap_mib}M" "$work/swap.img"
    mkswap --quiet --label swap --uuid "$swap_uuid" "$work/swap.img"
}

assemble() {
    local image=$work/disk.img
    truncate -s "${disk_mib}M" "$image"
    sgdisk --new "1:0:+${esp_mib}M" --typecode 1:ef00 --change-name 1:EFI \
        --new "2:0:+${root_mib}M" --typecode 2:8304 --change-name 2:root \
        --new "3:0:+${swap_mib}M" --typecode 3:8200 --change-name 3:swap "$image" >/dev/null
    local at=1
    for part in esp root swap; do
        dd if="$work/$part.img" of="$image" bs=1M seek="$at" conv=notrunc,sparse status=none
        at=$((at + $(stat -c %s "$work/$part.img") / 1048576))
    done
    if [ -n "$grub" ]; then add_bios "$image"; fi
    sync "$image"
    mv "$image" "$disk"
    echo "$made_from" >"$disk.made-from"
}

rm -f "$disk.made-from"
make_root
make_esp
if [ -n "$small" ]; then make_small; fi
make_rest
assemble
