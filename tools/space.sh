#!/usr/bin/env bash
# Ends with an error if the tests would fill the disk: programs that find it full in the middle fail in ways that do not
# say so. A build takes 6 GB, the copy for seeded bugs 2, and what is written while machines boot 6.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
declare -A needs
place() { df --output=target "$1" | tail -n 1; }
add() { needs[$1]=$((${needs[$1]:-0} + $2)); }
add "$(place "$target")" 2
compgen -G "$target/debug/deps/cli-*" >/dev/null || add "$(place "$target")" 6
add "$(place "${TMPDIR:-/tmp}")" 6
for at in "${!needs[@]}"; do
    free=$(df --output=avail --block-size=1G "$at" | tail -n 1)
    if [ "$free" -lt "${needs[$at]}" ]; then
        echo "The tests need ${needs[$at]} GB free at $at, where ${free// /} GB are. \`cargo clean\` removes old builds;" \
            "CARGO_TARGET_DIR and TMPDIR name other disks." >&2
        exit 1
    fi
done
