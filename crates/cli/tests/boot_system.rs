//! Tests how the system in memory finds its network card: the functions of its init, in a shell, with a folder in place
//! of the kernel's list of cards.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const FUNCTIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../integrations/initramfs/network");
/// What the init has defined before, with BOOTIF in `$2`; then the wait for a card in the folder `$1`.
const SCRIPT: &str = "say() { echo \"$*\"; }; parameter() { echo \"$BOOTIF\"; }; udevadm() { :; }\n\
                      NET=$1 BOOTIF=$2; . \"$3\"; wait_for_card; echo \"took $(cards)\"";

fn wait_for_card(cards: &Path, booted_from: &str) -> Child {
    let mut shell = Command::new("bash");
    shell.args(["-c", SCRIPT, "init"]).arg(cards).arg(booted_from).arg(FUNCTIONS);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

fn plug_in(cards: &Path, name: &str, address: &str) {
    // The address is there before the card counts as one.
    fs::create_dir_all(cards.join(name)).unwrap();
    fs::write(cards.join(name).join("address"), format!("{address}\n")).unwrap();
    fs::create_dir(cards.join(name).join("device")).unwrap();
}

#[test]
fn it_looks_for_a_network_card_until_one_is_there_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let cards = folder.path();
    // Loopback is no card.
    fs::create_dir(cards.join("lo")).unwrap();
    let mut shell = wait_for_card(cards, "");
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(
        lines.next().unwrap(),
        "still looking for a network card: the kernel here knows no network card of this machine"
    );
    plug_in(cards, "eth0", "52:54:00:00:00:01");
    assert_eq!(lines.last().unwrap(), "took eth0");
    assert!(shell.wait().unwrap().success());

    // It booted from another card than the one that is there: that one is waited for, and named.
    let mut shell = wait_for_card(cards, "01-52-54-00-00-00-0A");
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(
        lines.next().unwrap().contains("the address 01-52-54-00-00-00-0A, from which this machine booted")
    );
    assert!(lines.next().unwrap().starts_with("found eth0 52:54:00:00:00:01: to use each of them"));
    plug_in(cards, "eth1", "52:54:00:00:00:0a");
    assert_eq!(lines.last().unwrap(), "took eth1");
    assert!(shell.wait().unwrap().success());
}
