#!/usr/bin/env bash
# Installs the agent of OpenStack Ironic, whose code downloads and checks images in a test: into the build folder, once,
# from its Python package. Needs python3-venv (install-dependencies.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

version=13.0.0
folder=${CARGO_TARGET_DIR:-$PWD/target}/tools/ironic-python-agent-$version

[ ! -e "$folder/done" ] || exit 0
rm -rf "$folder"
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check "ironic-python-agent==$version"
touch "$folder/done"
