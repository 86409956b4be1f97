#!/usr/bin/env bash
# Builds versitygw, an S3 gateway over a folder, which tests and `make bench` start on loopback: into the build folder,
# once, from its Go module. With --minio also MinIO, against which the same tests run when it is there; that takes five
# minutes more. Needs Go (install-dependencies.sh); a Go too old for them fetches a newer one, as a module too.
set -euo pipefail
cd "$(dirname "$0")/.."

versitygw=github.com/versity/versitygw/cmd/versitygw@v1.8.0
# The last commit before the project was archived.
minio=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
toolchain=golang.org/toolchain@v0.0.1-go1.26.3.linux-$(dpkg --print-architecture 2>/dev/null || echo amd64)

tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
PATH=$PATH:/usr/local/go/bin

# Prints the Go that can build them. Since 1.21 it gets a newer self where a module asks for one; Debian 12's is older.
find_go() {
    local minor
    minor=$(go env GOVERSION | sed -E 's/^go1\.([0-9]+).*/\1/')
    if [ "$minor" -ge 21 ]; then
        command -v go
        return
    fi
    local folder
    folder=$(go mod download -json "$toolchain" | sed -nE 's/.*"Dir": "(.*)".*/\1/p')
    # Modules hold no permissions.
    chmod -R u+w,u+x "$folder/bin" "$folder/pkg/tool"
    echo "$folder/bin/go"
}

build() {
    local module=$1 binary=$tools/$2
    if [ -x "$binary" ]; then
        return
    fi
    echo "Building ${module##*/}, once" >&2
    rm -rf "$binary.new"
    env -u GOROOT GOTOOLCHAIN=auto GOFLAGS=-buildvcs=false CGO_ENABLED=0 GOBIN="$binary.new" \
        "$(find_go)" install -ldflags='-s -w' "$module" >&2
    mv "$binary.new"/* "$binary"
    rmdir "$binary.new"
}

if ! command -v go >/dev/null; then
    echo "There is no Go here, so no S3 store to test against; tools/install-dependencies.sh installs it as root" >&2
    exit 0
fi
mkdir -p "$tools"
build "$versitygw" versitygw-1.8.0
if [ "${1:-}" = --minio ]; then
    build "$minio" minio-2026-02-12
fi
