#!/usr/bin/env bash
# Installs the Debian packages that building, testing and demonstrating diskcast need and that this machine lacks; with
# --bench also those that `make bench` measures beside; with --check it also says what is missing for `make check`.
# Written for Debian 12; does nothing where all is there.
#
# Rust: the one that is here is used. Where there is none, Debian's is installed (rustc-web, which is kept new for web
# browsers). rust-toolchain.toml is for rustup; Debian's Rust ignores it, so what counts is rust-version in Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

rust_min=$(sed -nE 's/^rust-version = "(.*)"/\1/p' Cargo.toml)
# rustup's programs stand in the home folder, which a bare shell may not search. They come first, as in the Makefile.
PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH

has() {
    command -v "$1" >/dev/null
}

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

about_rustup="The Rust project's site says how to install rustup; Debian 13 has it as a package. Then run this again."

packages=(
    build-essential ca-certificates git make            # building
    iproute2 nftables ethtool                           # the lab: namespaces, links, loss
    e2fsprogs dosfstools mtools gdisk fdisk mount       # disks and filesystems to test against
    parted                                              # and partition tables of other systems
    xfsprogs btrfs-progs f2fs-tools jfsutils attr lvm2  # and some that are captured whole
    reiserfsprogs ntfs-3g exfatprogs exfat-fuse udftools
    bcache-tools cryptsetup-bin
    mmdebstrap                                          # a real Debian disk
    qemu-system-x86 ovmf                                # booting it
    ipmitool openipmi                                   # switching machines by a board, which is simulated
    python3-venv sbsigntool openssl                     # keys in its settings (virt-firmware.sh), and for them
    dnsmasq-base tcpdump                                # another DHCP server, and who answered
    libnbd-bin qemu-utils fio                           # clients of the NBD server
    qemu-block-extra                                    # QEMU reads what servers serve by HTTP
    libvirt-daemon libvirt-clients                      # and machines that boot from them, or from a pool
    libvirt-daemon-driver-qemu
    nbdkit                                              # and another server, of disks of a given speed
    xz-utils zstd bzip2                                 # files that are taken for disks
    fuse3                                               # mounts, and what ends them when their process dies
    xorriso genisoimage                                 # disks with the settings of OpenNebula's machines
    openssh-client openssh-server                       # new host keys for installed disks; hosts that are reached by ssh
    etcd-server etcd-client                             # where several metadata services of a cluster keep their state
    faketime                                            # a clock of one part of a cluster that is wrong
    util-linux-extra                                    # what of a file is in memory (fincore)
    aria2 transmission-cli python3-libtorrent           # clients of BitTorrent, which fetch from its server
    procps curl                                         # `kill`, and a client of the server's metrics, in tests
)
if ! PATH="$PATH:/usr/local/go/bin" command -v go >/dev/null; then
    packages+=(golang-go)                               # an S3 store to test against (versitygw.sh)
fi
if ! has cargo && ! has rustup; then
    packages+=(rustc-web cargo-web)
fi
if [ "${1:-}" = --bench ]; then
    packages+=(
        udpcast uftp                                    # multicast as it is done today
        nginx-light                                     # one server, many TCP streams
        socat                                           # a chain of TCP copies
        opentracker mktorrent                           # BitTorrent, beside aria2
        partclone rsync                                 # capture that knows filesystems, and copies of files
        restic borgbackup                               # backups of the same disk once more
        debian-installer-12-netboot-amd64               # another system that machines boot from the network
        libisal-dev                                     # its erasure code, to compare with
        libfuse3-dev pkg-config                         # its example of a passthrough file system, to compare with
    )
fi

# Debian's Rust is new enough only with its security updates.
check_debian_rust() {
    local candidate
    candidate=$(LC_ALL=C apt-cache policy rustc-web | sed -n 's/^  Candidate: //p')
    if [ "${candidate:-(none)}" = '(none)' ]; then
        fail "There is no Rust here, and apt knows no package rustc-web, so rustup is needed." "$about_rustup"
    fi
    dpkg --compare-versions "$candidate" ge "$rust_min" || fail \
        "There is no Rust here. Debian's (rustc-web) is $candidate, but diskcast needs $rust_min or newer." \
        "If apt has no source of Debian's security updates, add it and run this again; otherwise install rustup." \
        "$about_rustup"
}

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
        case " ${missing[*]} " in *' rustc-web '*) check_debian_rust ;; esac
        apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}" >&2
        for package in "${missing[@]}"; do
            case $package in
                etcd-server) systemctl disable --quiet etcd ;;
                openssh-server) systemctl disable --quiet ssh ;;
                nginx-light) systemctl disable --quiet nginx ;;
                opentracker) systemctl disable --quiet opentracker ;;
                uftp) systemctl disable --quiet uftp ;;
            esac || true
        done 2>/dev/null
    fi
fi

if ! has cargo; then
    fail "There is no Rust here. As root, this script installs Debian's; without root, install rustup." "$about_rustup"
fi
# Where rustup has no toolchain of rust-toolchain.toml yet, this installs it.
rust=$(rustc --version | cut -d ' ' -f 2)
dpkg --compare-versions "$rust" ge "$rust_min" || fail \
    "The Rust here ($(command -v rustc)) is $rust, but diskcast needs $rust_min or newer." \
    "Upgrade it, or remove it and let this script install Debian's, or install rustup." "$about_rustup"

if [ "${1:-}" = --check ] && ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
    fail "\`make check\` needs rustfmt and clippy of the version in rust-toolchain.toml, which rustup installs." \
        "This Rust ($(command -v rustc), $rust) has none. \`make demo\` and \`make test\` do not need them." \
        "If rustup is here: rustup component add rustfmt clippy. Otherwise install it; it is used before other Rusts." \
        "$about_rustup"
fi
