#!/usr/bin/env bash
# Everything whole: all tests with seeds for longer, every seeded bug, long rounds of kills, faults and commits, and
# fuzzers. It goes part by part, none longer than an hour on two cores; run again, it goes on where it was stopped. What
# passed is kept for the commit that it passed at.
#
#   tools/test-long.sh [PART...]     all parts, or those that are named
#
# MINUTES says how long the fuzzers run, 30 by default.
set -euo pipefail
cd "$(dirname "$0")/.."
export CI=true

commit=$(git rev-parse HEAD)
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "There are changes that are not committed: what passes would be of no commit." >&2
    exit 1
fi
passed=${CARGO_TARGET_DIR:-target}/test-long/$commit
mkdir -p "$passed"

one() {
    cargo test --workspace --test "$1" -- --nocapture "$2"
}

fuzz() {
    cargo build --release --package diskcast-fuzz
    local end=$((SECONDS + 60 * ${MINUTES:-30})) rounds=20000
    # Other inputs at each commit.
    local seed=$((0x${commit:0:8} * rounds))
    while [ $SECONDS -lt $end ]; do
        "${CARGO_TARGET_DIR:-target}/release/diskcast-fuzz" all $rounds $seed
        seed=$((seed + rounds))
    done
}

run() {
    case $1 in
        tests) DISKCAST_POWER_ON=1 DISKCAST_MOVING_SECONDS=60 cargo xtask test ;;
        bugs) cargo xtask mutants ;;
        commits) DISKCAST_SEEDS=2000 one cli blob::a_commit_of_a_whole_disk ;;
        faults) DISKCAST_ROUNDS=100 one cli cluster::nothing_is_lost ;;
        kills) DISKCAST_KILLS=400 one cli killed:: && MIRROR_KILLS=200 one mirror killed:: && DISKCAST_ROUNDS=100 one cluster kills:: ;;
        disks) DISKCAST_SEEDS=600 one disk stacked:: && DISKCAST_STACKED=0..5000 one image stacked:: ;;
        fuzz) fuzz ;;
        *) echo "There is no part \`$1\`." >&2; exit 2 ;;
    esac
}

[ $# -gt 0 ] || set -- tests bugs commits faults kills disks fuzz
for part; do
    if [ -e "$passed/$part" ]; then
        echo "==> $part: passed before, in $(cat "$passed/$part")"
        continue
    fi
    echo "==> $part"
    begin=$SECONDS
    run "$part"
    echo "$(((SECONDS - begin + 59) / 60)) min" >"$passed/$part"
done
echo "All of $* passed at $commit."
