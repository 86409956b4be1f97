#!/usr/bin/env bash
# Proves what the README says: builds a bare Debian 12 that has nothing but the packages that the README tells a person
# to install, and runs `make demo` and `make test` there on a clean checkout of HEAD. Logs are target/bare/demo.log and
# target/bare/test.log; the last lines tell for each command whether it passed, and its time. Needs root, 25 GB of disk,
# and a machine with Debian 12, from which the bare one takes the settings of its package registries.
#
# The bare Debian runs in namespaces of its own for processes and mounts. When its first process ends, the kernel ends
# all others and unmounts everything, so nothing is mounted below the folder that is removed at the end. The network,
# the kernel and its devices are this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."

usage='usage: tools/bare.sh [demo] [test]'
# What the README tells a person to install first, with commas.
readme_packages=$(sed -nE '/^apt update && apt install /{s///;s/ /,/g;p}' README.md)
folder=${CARGO_TARGET_DIR:-$PWD/target}/bare
root=$folder/root
checkout=/root/diskcast

fail() {
    echo "tools/bare.sh: $*" >&2
    exit 1
}

# The first process in the namespaces: makes the folder the root of all mounts, and becomes the command.
if [ "${1:-}" = --inside ]; then
    cd "$2"
    shift 2
    # The lock is held by whoever waits for this process, which ends with it.
    exec 9>&-
    mount --bind . .
    cd "$PWD"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t devtmpfs devtmpfs dev
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    mount -t tmpfs tmpfs dev/shm
    pivot_root . .
    umount --lazy .
    cd /
    exec "$@"
fi

commands=()
for command in "${@:-demo test}"; do
    case $command in
        'demo test') commands=(demo test) ;;
        demo | test) commands+=("$command") ;;
        *) echo "$usage" >&2; exit 2 ;;
    esac
done
[ -n "$readme_packages" ] || fail 'README.md does not say what to install first'
[ "$(id -u)" = 0 ] || fail 'needs root'
[ "$(. /etc/os-release && echo "$VERSION_CODENAME")" = bookworm ] || fail 'needs a machine with Debian 12 (bookworm)'

mkdir -p "$folder"
exec 9>"$folder/lock"
flock --nonblock 9 || fail 'another run is under way, or what a killed one started'

inside_pid=
remove_root() {
    [ -e "$root" ] || return 0
    ! grep -qF " $root" /proc/self/mountinfo || fail "something is mounted below $root, which therefore stays"
    # A loop device that a killed test left keeps its file; it is known by the file's device and inode.
    local name inode device
    losetup --list --noheadings --output NAME,BACK-INO,BACK-MAJ:MIN | while read -r name inode device; do
        if [ "$device" = "$(stat --format '%Hd:%Ld' "$root")" ] &&
            [ -n "$(find "$root" -xdev -inum "$inode" -print -quit)" ]; then
            losetup --detach "$name"
        fi
    done
    rm -rf --one-file-system "$root"
}
clean_up() {
    if [ -n "$inside_pid" ]; then
        # When the first process in the namespace is killed, the kernel ends the others before unshare sees its end.
        local first=
        read -r first <"/proc/$inside_pid/task/$inside_pid/children" || true
        kill -KILL ${first:-"$inside_pid"} || true
        wait "$inside_pid" || true
    fi 2>/dev/null
    remove_root
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The machine's own sources of Debian, as tools/debian-disk.sh finds them.
sources() {
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Origin: Debian' 'Created-By: Packages' |
        sort -u
}

make_root() {
    [ -n "$(sources)" ] || apt-get update --quiet=2
    apt-config dump Acquire::Check-Valid-Until >"$folder/apt.conf"
    sources | mmdebstrap --quiet --variant=minbase --aptopt="$folder/apt.conf" --include="$readme_packages" \
        bookworm "$root"
    rm "$folder/apt.conf"
    # How this machine reaches its package registries; nothing else of it.
    rm -rf "$root/etc/apt"
    local path
    for path in /etc/apt /etc/resolv.conf /etc/hosts /usr/local/share/ca-certificates /root/.cargo/config.toml \
        /root/.config/go/env; do
        [ -e "$path" ] || continue
        mkdir -p "$root${path%/*}"
        cp --recursive --dereference --preserve=mode --no-target-directory "$path" "$root$path"
    done
    git clone --quiet --no-hardlinks . "$root$checkout"
    git -C "$root$checkout" checkout --quiet --detach "$(git rev-parse HEAD)"
}

# The variables by which this machine reaches its package registries, each as NAME=VALUE.
registry_variables() {
    local names='https?_proxy|all_proxy|no_proxy|ssl_cert_(file|dir)|curl_ca_bundle|git_ssl_cainfo|goproxy|gosumdb'
    names+='|cargo_(http|net|registry|registries|source)_[^=]*'
    env | grep -iE "^($names)=" || true
}

# Runs `make COMMAND` in the root; without standard input, and with CI set, so that a test fails where what it needs is
# missing. Being in the background, it does not hold up a signal to this script.
run() {
    local variables
    mapfile -t variables < <(registry_variables)
    unshare --mount --pid --fork --kill-child "$PWD/tools/bare.sh" --inside "$root" \
        env --ignore-environment --chdir="$checkout" "${variables[@]}" PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        HOME=/root LANG=C.UTF-8 CI=true make "$1" </dev/null >"$folder/$1.log" 2>&1 &
    inside_pid=$!
    local status=0
    wait "$inside_pid" || status=$?
    inside_pid=
    return "$status"
}

remove_root
echo "==> building a bare Debian 12 with $readme_packages"
make_root
[ -z "$(git status --porcelain)" ] || echo 'what is not committed is left out'
failed=0
results=()
for command in "${commands[@]}"; do
    echo "==> make $command, whose log is $folder/$command.log"
    began=$SECONDS
    result=passed
    run "$command" || { result=FAILED; failed=1; }
    took=$((SECONDS - began))
    results+=("make $command: $result after $((took / 60)) min $((took % 60)) s")
done
printf '%s\n' "${results[@]}"
exit "$failed"
