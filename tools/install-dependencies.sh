#!/usr/bin/env bash
# Installs the Debian packages that building, testing and demonstrating diskcast need and that this machine lacks; with
# --bench also those that `make bench` measures beside. Written for Debian 12; does nothing where all is there. Rust
# comes by rustup, as rust-toolchain.toml says.
set -euo pipefail

packages=(
    build-essential ca-certificates git make            # building
    iproute2 nftables ethtool                           # the lab: namespaces, links, loss
    e2fsprogs dosfstools mtools gdisk fdisk mount       # disks and filesystems to test against
    parted                                              # and partition tables of other systems
    xfsprogs btrfs-progs f2fs-tools jfsutils            # and some that are captured whole
    reiserfsprogs ntfs-3g exfatprogs udftools
    bcache-tools cryptsetup-bin
    mmdebstrap                                          # a real Debian disk
    qemu-system-x86 ovmf                                # booting it
    libnbd-bin qemu-utils fio                           # clients of the NBD server
    xz-utils zstd bzip2                                 # files that are taken for disks
    fuse3                                               # mounts, and what ends them when their process dies
)
if ! PATH="$PATH:/usr/local/go/bin" command -v go >/dev/null; then
    packages+=(golang-go)                               # an S3 store to test against (versitygw.sh)
fi
if [ "${1:-}" = --bench ]; then
    packages+=(
        udpcast uftp                                    # multicast as it is done today
        nginx-light curl openssh-server openssh-client  # one server, many TCP streams
        socat                                           # a chain of TCP copies
        aria2 opentracker mktorrent                     # BitTorrent
        nbdkit                                          # a disk of a given speed
        restic borgbackup                               # backups of the same disk once more
        libfuse3-dev pkg-config                         # its example of a passthrough file system, to compare with
    )
fi

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "Not root, so not installed: ${missing[*]}" >&2
        echo "What needs them is left out or fails. To install: sudo tools/install-dependencies.sh" >&2
    else
        echo "Installing ${missing[*]}" >&2
        export DEBIAN_FRONTEND=noninteractive
        # Servers among them are for the lab alone: they do not start on this machine, now or when it boots.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e "$policy" ]; then
            printf '#!/bin/sh\nexit 101\n' >"$policy"
            chmod +x "$policy"
            trap 'rm -f "$policy"' EXIT
        fi
        apt-get update --quiet=2 >&2
        apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}" >&2
        for package in "${missing[@]}"; do
            case $package in
                openssh-server) systemctl disable --quiet ssh ;;
                nginx-light) systemctl disable --quiet nginx ;;
                opentracker) systemctl disable --quiet opentracker ;;
                uftp) systemctl disable --quiet uftp ;;
            esac || true
        done 2>/dev/null
    fi
fi

# rustup's programs stand in the home folder, which a bare shell may not search.
if ! PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin" command -v cargo >/dev/null; then
    echo "There is no cargo here. Install rustup (a newer Debian has it as a package), then run this" >&2
    echo "again: the first use of cargo installs the toolchain that rust-toolchain.toml names." >&2
    exit 1
fi
