# The few verbs of this repository. `make help` explains them; CONTRIBUTING.md says more.

SHELL := bash
BUILD := $(or $(CARGO_TARGET_DIR),target)
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

.PHONY: help demo demo-netboot picture test test-long mutants minio check bare sim bench plots dependencies check-dependencies bench-dependencies s3-store virt-firmware ironic-agent space

help: ## explains these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: dependencies ## captures a Debian disk, multicasts it to five hosts, verifies and boots it (full as root, less without)
	cargo build --release --package diskcast-cli --package diskcast-lab
	$(BUILD)/release/diskcast-demo

demo-netboot: dependencies ## boots two bare machines from the network, which get a Debian disk and start from it; takes root
	cargo build --release --package diskcast-cli --package diskcast-lab
	$(BUILD)/release/diskcast-demo-netboot

test: space dependencies s3-store virt-firmware ironic-agent ## runs every test: unit, golden, simulation and some of its seeded bugs, real filesystems, the network lab, the programs
	cargo xtask test
	cargo xtask mutants --landing

test-long: space dependencies s3-store virt-firmware ironic-agent ## everything whole, in parts of at most an hour; goes on where it was stopped; PARTS='bugs fuzz' names some, MINUTES=60 fuzzes longer
	@tools/test-long.sh $(PARTS)

mutants: ## shows that the simulator catches every seeded bug (crates/sim/mutants); builds a copy of the sources for it
	cargo xtask mutants

minio: dependencies ## what is tested of repositories in S3 once more, on MinIO, which takes five minutes to build
	@tools/versitygw.sh --minio
	cargo test --package diskcast-store --test store -- minio

check: check-dependencies ## formatting, lints, the repository's own rules, and advisories against dependencies where cargo-deny is
	cargo fmt --all --check
	$(or $(LINT),cargo clippy --workspace --all-targets -- --deny warnings)
	cargo xtask tidy
	@tools/advisories.sh

bare: dependencies ## runs demo and test on a bare Debian 12 that it builds, as root; WHAT=demo or WHAT=test runs one
	@tools/bare.sh $(WHAT)

picture: ## draws docs/demo.svg from what the demo printed in `make bare`; LOG= names another log of `make demo`
	tools/picture.sh $(or $(LOG),target/bare/demo.log) >target/demo.svg
	mv target/demo.svg docs/demo.svg

sim: ## simulates one run of many receivers and faults; SEED=7 names it, the same seed gives the same trace
	cargo run --release --quiet --package diskcast-sim -- --seed $(or $(SEED),1)

bench: dependencies bench-dependencies ## measures the headline figures of a clean commit, in 90 minutes; LIST=1 lists all, ONLY='fetch.* !*.memory' measures some, PEERS='4 1G 1 256' tools side by side
	@tools/versitygw.sh --minio
	cargo build --profile dist --package diskcast-cli --package diskcast-lab --package diskcast-sim --package diskcast-bench
	$(BUILD)/dist/diskcast-bench $(if $(LIST),--list) $(if $(ONLY),--only '$(ONLY)') $(if $(PEERS),--peers $(PEERS))

plots: ## writes docs/measurements.md and docs/plots again from bench/results.jsonl, without measuring
	cargo run --quiet --package diskcast-bench -- --report

dependencies:
	@tools/install-dependencies.sh

space:
	@tools/space.sh

check-dependencies:
	@tools/install-dependencies.sh --check

s3-store:
	@tools/versitygw.sh

virt-firmware:
	@tools/virt-firmware.sh

ironic-agent:
	@tools/ironic-agent.sh

bench-dependencies:
	@tools/install-dependencies.sh --bench
