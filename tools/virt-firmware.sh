#!/usr/bin/env bash
# Installs virt-firmware, which enrolls keys in the settings of UEFI without a keyboard, for tests of Secure Boot: into
# the build folder, once, from its Python package. Needs python3-venv (install-dependencies.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

version=26.10
folder=${CARGO_TARGET_DIR:-$PWD/target}/tools/virt-firmware-$version

[ ! -e "$folder/done" ] || exit 0
rm -rf "$folder"
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check "virt-firmware==$version"
touch "$folder/done"
