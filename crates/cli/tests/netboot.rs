//! Tests machines that boot from the network: firmware, boot loader, kernel and system in memory are real, and so is
//! the Debian that they install and start.

use std::fs;
use std::process::{Command, Stdio};

use lab::bare::{BRIDGE, BareOptions, Firmware, Neighbour, OwnCertificate, Room, card};

use crate::common::Bench;
use crate::common::targets::soil_around;
use crate::netboot_common::{
    ALONE, DISK_BYTES, FAILED, PATIENCE, Running, SERVER, Site, block_of_the_page, wait_until,
};

/// What the kernel says first: loader and firmware have done their part.
const STARTED: &str = "Linux version";
/// What the agent says of a machine that nobody has admitted.
const ADMIT: &str = "waiting: an administrator must admit this machine";

/// One deploy, three kinds of machines: nobody touches them.
#[test]
fn machines_of_all_kinds_boot_from_the_network_get_their_disks_and_start_from_them() {
    let Some(mut site) = Site::new(3) else { return };
    site.serve(&format!("{ALONE} --boot-time 60s"));
    let kinds = [Firmware::Bios, Firmware::Uefi, Firmware::SecureHttp];
    let options: Vec<_> =
        (0..3).map(|plug| site.options(kinds[plug as usize], plug, &[DISK_BYTES])).collect();
    // The disk of one of them was used.
    soil_around(&site.bench.path("disk.img"), &options[1].disks[0], DISK_BYTES);
    // The first one is asked who it is; what nobody admitted is not installed.
    let first = site.start_until(&options[0], ADMIT);
    let hosts = site.tell("hosts");
    assert!(hosts.contains(&card(0)) && hosts.contains("not admitted"), "{hosts}");
    let refused = site.tell(&format!("deploy debian {}", card(0)));
    assert!(refused.contains("was not admitted") && refused.ends_with("exit: 11\n"), "{refused}");
    for plug in 0..3 {
        let added = site.tell(&format!("hosts add {} --name lab-{plug} --group lab", card(plug)));
        assert!(added.contains(&format!("out: added lab-{plug}")), "{added}");
    }
    assert!(site.tell("deploy nothing lab").ends_with("exit: 10\n"));
    let deployed = site.tell("deploy debian lab --yes");
    assert!(deployed.contains("job for lab-0, lab-1, lab-2, when it boots: install debian@1"), "{deployed}");

    let machines = [first, site.start(&options[1]), site.start(&options[2])];
    for (plug, machine) in (0..3).zip(machines) {
        let _runs = site.wait_for(machine, &options[plug as usize], &format!("lab-{plug} login:"));
        let host = site.host(&card(plug));
        let stage = host["job"]["stage"].as_str().unwrap();
        assert!(["done", "back"].contains(&stage), "{host}");
        let firmware = ["bios", "uefi", "uefi, secure boot"][plug as usize];
        assert_eq!(host["facts"]["firmware"], firmware, "{host}");
    }
    let log = site.log();
    for line in ["asks where to boot from: iPXE", "asks where to boot from: UEFI", "UEFI by HTTP"] {
        assert!(log.contains(line), "{line}: {log}");
    }
}

#[test]
fn a_machine_is_taken_back_and_its_image_goes_to_another() {
    let Some(mut site) = Site::new(2) else { return };
    site.serve(&format!("{ALONE} --boot-time 60s"));
    let options = [0, 1].map(|plug| site.options(Firmware::Uefi, plug, &[DISK_BYTES]));
    for plug in 0..2 {
        let added = site.tell(&format!("hosts add {} --name lab-{plug}", card(plug)));
        assert!(added.contains(&format!("out: added lab-{plug}")), "{added}");
    }
    let installed =
        site.bench.see(&format!("install debian {} --keep-size --yes -q", options[1].disks[0].display()));
    assert!(installed.ends_with("exit: 0\n"), "{installed}");
    let captured = site.tell("hosts capture lab-1 back");
    assert!(captured.contains("job for lab-1, when it boots: capture back"), "{captured}");
    let mut machine = site.start_at_once(&options[1]);
    // It may write to the repository: somebody looks whose key it is.
    machine.wait_for("waiting: an administrator must confirm the key", FAILED, PATIENCE).unwrap();
    let key = site.host(&card(1))["key"]["fingerprint"].as_str().unwrap().to_owned();
    assert!(site.tell(&format!("hosts admit {key}")).contains("admitted lab-1"));
    // Emulated, the capture takes several of the five seconds after which the machine says how far it is.
    wait_until("it says how far it is", || site.host(&card(1))["progress"]["step"] == "capture");
    machine.wait_for("starting from the disk", FAILED, PATIENCE).unwrap();
    let versions = site.bench.see("images back");
    assert!(versions.contains("out:       1  3.0 GiB") && versions.contains("root@lab-1"), "{versions}");
    assert!(site.tell("hosts log lab-1").contains("exit: 0"));
    // It vanishes before its system is there, and is named. Its image goes to another machine.
    drop(machine);
    assert!(site.tell("deploy back lab-0 --yes").contains("install back@1"));
    let mut other = site.start_at_once(&options[0]);
    other.wait_for("lab-0 login:", FAILED, PATIENCE).unwrap();
    let hosts = site.tell("hosts");
    assert!(hosts.contains("install back@1: done") || hosts.contains("install back@1: back"), "{hosts}");
    let reason = "since it was told to start from its disk";
    wait_until("it is missed", || site.tell("hosts").contains(reason));
}

/// Each machine is switched off at another step. All of it while one packet of a hundred is lost.
#[test]
fn machines_that_vanish_while_they_boot_are_named_and_boot_with_loss() {
    let Some(mut site) = Site::new(3) else { return };
    site.room.lose(10).unwrap();
    site.serve(&format!("{ALONE} --boot-time 60s"));
    let options = [Firmware::Uefi, Firmware::Uefi, Firmware::Bios];
    let options: Vec<_> =
        (0..3).map(|plug| site.options(options[plug as usize], plug, &[256 << 20])).collect();
    for plug in 0..3 {
        assert!(
            site.tell(&format!("hosts add {} --name lab-{plug} --group lab", card(plug))).contains("added")
        );
    }
    fs::write(&options[0].disks[0], vec![7; 256 << 20]).unwrap();
    assert!(site.tell("hosts wipe lab-0 --yes").ends_with("exit: 0\n"));
    assert!(site.tell("hosts shell lab-1").ends_with("exit: 0\n"));
    assert!(site.tell("hosts shell lab-2").ends_with("exit: 0\n"));
    let machine = site.start(&options[0]);
    wait_until("DHCP has begun", || site.log().contains("asks where to boot from"));
    drop(machine);
    let machine = site.start(&options[1]);
    wait_until("TFTP has begun", || site.log().contains("reads grubx64.efi"));
    drop(machine);
    drop(site.start_until(&options[2], STARTED));
    for plug in 0..3 {
        wait_until("it is missed", || site.host(&card(plug))["job"]["stage"] == "lost");
        let reason = site.host(&card(plug))["job"]["reason"].as_str().unwrap().to_owned();
        let wanted = if plug < 2 {
            "its firmware asked where to boot from"
        } else {
            "its boot loader asked what to load"
        };
        assert!(reason.contains(wanted), "{plug}: {reason}");
    }
    // All come back, and do what they were to do.
    let mut machines: Vec<_> = options.iter().map(|options| site.start_at_once(options)).collect();
    wait_until("the disk is wiped", || site.host(&card(0))["job"]["stage"] == "done");
    assert!(fs::read(&options[0].disks[0]).unwrap().iter().all(|byte| *byte == 0));
    for machine in &mut machines[1..] {
        machine.wait_for("here is the shell that was asked for", FAILED, PATIENCE).unwrap();
        machine.type_line("echo $((6 * 7)) answers").unwrap();
        machine.wait_for("42 answers", FAILED, PATIENCE).unwrap();
    }
    wait_until("the jobs are done", || (1..3).all(|plug| site.host(&card(plug))["job"]["stage"] == "done"));
}

/// Bytes that a machine has written to a disk.
fn written(disk: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(disk).unwrap().blocks() * 512
}

#[test]
fn machines_that_go_wrong_are_named_and_go_on() {
    let Some(mut site) = Site::new(2) else { return };
    site.serve(ALONE);
    for (plug, name) in [(0, "one"), (1, "small")] {
        let added = site.tell(&format!("hosts add {} --name {name}", card(plug)));
        assert!(added.contains("out: added"), "{added}{}", site.log());
    }
    assert!(site.tell("deploy debian one small --yes").contains("job for one, small"));
    let one = site.options(Firmware::Bios, 0, &[DISK_BYTES, DISK_BYTES]);
    let small = site.options(Firmware::Bios, 1, &[64 << 20]);
    let (mut machine, mut other) = (site.start_at_once(&one), site.start_at_once(&small));
    // Several disks and no rule: none is touched, and they are named. A disk that is too small: so it says.
    machine.wait_for("the job failed", None, PATIENCE).unwrap();
    let host = site.host(&card(0));
    let reason = host["job"]["reason"].as_str().unwrap();
    assert!(reason.contains("/dev/vda") && reason.contains("/dev/vdb"), "{host}");
    assert_eq!((written(&one.disks[0]), written(&one.disks[1])), (0, 0));
    other.wait_for("the job failed", None, PATIENCE).unwrap();
    let host = site.host(&card(1));
    assert!(host["job"]["reason"].as_str().unwrap().contains("too small"), "{host}");
    assert!(site.tell("hosts log small").contains("too small"));
    drop(other);

    // The machine waits, and takes the next job at once. The server is restarted in the middle of it.
    assert!(site.tell("deploy debian one --yes --disk disk:serial=S2").ends_with("exit: 0\n"));
    wait_until("the second disk is written", || written(&one.disks[1]) > 32 << 20);
    site.serve(ALONE);
    machine.wait_for("starting from the disk", None, PATIENCE).unwrap();
    assert_eq!(written(&one.disks[0]), 0);

    // It loses its power in the middle of another install, is named, and goes on when it is back.
    drop(machine);
    assert!(site.tell("deploy debian one --yes --disk disk:serial=S1").ends_with("exit: 0\n"));
    let machine = site.start_at_once(&one);
    wait_until("the first disk is written", || written(&one.disks[0]) > 32 << 20);
    drop(machine);
    wait_until("the machine is lost", || site.host(&card(0))["job"]["stage"] == "lost");
    assert!(site.tell("hosts").contains("it goes on when it boots again"));
    let mut machine = site.start_at_once(&one);
    machine.wait_for("one login:", FAILED, PATIENCE).unwrap();
    assert!(["done", "back"].contains(&site.host(&card(0))["job"]["stage"].as_str().unwrap()));
}

/// A site with a signed file, made with a key by the commands of the page.
fn signed_site(machines: u32, more: &str) -> Option<Site> {
    if !lab::available_or_skip() {
        return None;
    }
    let site = Site { bench: Bench::of_machines(), room: Room::build(machines).unwrap(), server: None };
    // The page's commands for a key, up to ours.
    let commands = block_of_the_page("A key of your own", "sh");
    let mut keys = Command::new("sh");
    keys.args(["-e", "-c", commands.split_once("diskcast").unwrap().0]).current_dir(site.bench.path("."));
    assert!(keys.stderr(Stdio::null()).status().unwrap().success());
    let made = site.bench.see(&format!(
        "boot-image boot --level 3 --kernel linux-image-cloud-amd64 --secure-boot-key boot.key \
         --secure-boot-certificate boot.pem --server https://{SERVER} --kernel-parameters console=ttyS0 {more}"
    ));
    assert!(made.ends_with("exit: 0\n"), "{made}");
    // Without the key the machines would go on to boot the old file.
    let unsigned = site.bench.see("boot-image boot");
    assert!(unsigned.contains("has a signed image") && unsigned.ends_with("exit: 11\n"), "{unsigned}");
    Some(site)
}

/// A machine whose firmware knows its owner's key and no other starts what is signed with it, and nothing else: not
/// even Debian's signed loaders, with which anybody can start a system of his own.
#[test]
fn firmware_that_knows_its_owners_key_alone_starts_nothing_else() {
    let Some(mut site) = signed_site(3, "--without-shim") else { return };
    site.serve(ALONE);
    let own = |firmware, plug| BareOptions {
        own_certificate: Some(OwnCertificate::Alone(site.bench.path("boot.pem"))),
        ..site.options(firmware, plug, &[])
    };
    let options = [own(Firmware::SecureHttp, 0), own(Firmware::SecurePxe, 1), own(Firmware::SecureHttp, 2)];
    for options in &options[..2] {
        let machine = site.start_until(options, ADMIT);
        assert!(machine.console().contains(", uefi, secure boot,"), "{}", machine.console());
    }
    // The same kernel and system, by the loaders that Microsoft and Debian have signed.
    let stick = site.bench.path("boot/diskcast.iso");
    let mut machine = site.start(&BareOptions { stick: Some(stick), plug: None, ..options[2].clone() });
    machine.wait_for("Access Denied", Some(STARTED), PATIENCE).unwrap();
}

#[test]
fn a_signed_file_starts_by_shim_and_a_changed_one_does_not() {
    let Some(mut site) = signed_site(3, "") else { return };
    // Beside another DHCP server, by PXE, too.
    let neighbour = Neighbour::join(&site.room, 2).unwrap();
    let _other = dnsmasq(&site, &neighbour, "");
    site.serve("");
    let own = |firmware, plug| BareOptions {
        own_certificate: Some(OwnCertificate::Beside(site.bench.path("boot.pem"))),
        ..site.options(firmware, plug, &[])
    };
    let options = [own(Firmware::SecureHttp, 0), own(Firmware::SecurePxe, 1), own(Firmware::SecureHttp, 2)];
    let [first, second] = [site.start(&options[0]), site.start(&options[1])];
    let machines = [site.wait_for(first, &options[0], ADMIT), site.wait_for(second, &options[1], ADMIT)];
    for machine in &machines {
        assert!(machine.console().contains(", uefi, secure boot,"), "{}", machine.console());
        let pin = "diskcast.server=https://10.9.0.1:7717 diskcast.pin=";
        assert!(machine.console().contains(&format!("Kernel command line: {pin}")), "{}", machine.console());
    }
    drop(machines);
    // shim asks for files that need not be there, and waits for the end of each answer.
    let mut missing = Command::new("curl");
    missing.args(["--silent", "--include", &format!("http://{}/uki/revocations_sku.efi", lab::bare::SERVER)]);
    let answer = site.bench.show(&site.room.inside(&missing).output().unwrap());
    assert!(answer.contains("404") && answer.contains("connection: close"), "{answer}");
    // A neighbour puts another byte into the system.
    let image = site.bench.path("boot/uki/grubx64.efi");
    let mut bytes = fs::read(&image).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&image, bytes).unwrap();
    site.serve("");
    let mut machine = site.start(&options[2]);
    machine.wait_for("Security Violation", Some(STARTED), PATIENCE).unwrap();
    // Who serves an image of another server is told so.
    drop(machine);
    site.server = None;
    let other = "netboot lo --boot-image boot --listen 127.0.0.1:0 --no-tls";
    let refused = site.bench.show(&site.room.inside(&site.bench.command(other)).output().unwrap());
    assert!(refused.contains("was made for another server") && refused.ends_with("exit: 11\n"), "{refused}");
}

/// What `tcpdump` saw of DHCP: who answered, and whether with an address.
fn answers(text: &str) -> Vec<(String, bool)> {
    let mut answers = Vec::new();
    let mut from = String::new();
    for line in text.lines() {
        if let Some((_, packet)) = line.split_once("IP ").filter(|_| !line.starts_with('\t')) {
            from = packet.to_owned();
        }
        if line.contains("BOOTP/DHCP, Reply") {
            let source = if line.contains(" > ") { line } else { &from };
            let source = source.trim().trim_start_matches("IP ").split(" > ").next().unwrap_or_default();
            answers.push((source.rsplit_once('.').unwrap_or((source, "")).0.trim().to_owned(), false));
        } else if line.contains("Your-IP")
            && let Some(last) = answers.last_mut()
        {
            last.1 = true;
        }
    }
    answers
}

/// Another DHCP server, with these settings.
fn dnsmasq(site: &Site, neighbour: &Neighbour, settings: &str) -> Running {
    let file = site.bench.path("dnsmasq.conf");
    fs::write(&file, settings).unwrap();
    let mut command = Command::new("dnsmasq");
    command.args(["--keep-in-foreground", "--port=0", "--leasefile-ro", "--user=root", "--interface=eth0"]);
    command.args(["--dhcp-range=10.9.0.50,10.9.0.90,1h", "--dhcp-authoritative"]);
    command.arg(format!("--conf-file={}", file.display()));
    Running(neighbour.inside(&command).spawn().unwrap())
}

#[test]
fn beside_another_dhcp_server_only_the_loader_comes_from_us() {
    let Some(mut site) = Site::new(5) else { return };
    let neighbour = Neighbour::join(&site.room, 2).unwrap();
    let seen = site.bench.path("seen.pcap");
    let mut command = Command::new("tcpdump");
    command.args(["-i", BRIDGE, "-U", "--immediate-mode", "-w"]).arg(&seen);
    command.args(["-Z", "root", "udp", "port", "67", "or", "port", "4011"]);
    let capture = Running(site.room.inside(&command).stderr(Stdio::null()).spawn().unwrap());
    let other = dnsmasq(&site, &neighbour, "");
    site.serve("");
    let kinds = [Firmware::Uefi, Firmware::SecureHttp];
    let options = [0, 1].map(|plug| site.options(kinds[plug as usize], plug, &[]));
    let [first, second] = options.each_ref().map(|options| site.start(options));
    // The system in memory asks for an address, too. Of the others the firmware is what is looked at.
    let machines = [site.wait_for(first, &options[0], ADMIT), site.wait_for(second, &options[1], STARTED)];
    drop((machines, capture));
    let mut read = Command::new("tcpdump");
    let text = read.args(["-n", "-v", "-r"]).arg(&seen).output().unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let answers = answers(&text);
    for (source, gives) in [("10.9.0.1", false), ("10.9.0.2", true)] {
        let of_it: Vec<bool> =
            answers.iter().filter(|(from, _)| from == source).map(|(_, gives)| *gives).collect();
        assert!(!of_it.is_empty() && of_it.iter().all(|own| *own == gives), "{source}: {answers:?}\n{text}");
    }

    // A site that wants all from its own server writes what the page says.
    drop(other);
    let settings = block_of_the_page("", "conf").replace("10.0.0.1", "10.9.0.1");
    let _other = dnsmasq(&site, &neighbour, &settings);
    site.serve("--dhcp off");
    for (firmware, plug) in [(Firmware::Bios, 2), (Firmware::Uefi, 3), (Firmware::SecureHttp, 4)] {
        drop(site.start_until(&site.options(firmware, plug, &[]), STARTED));
    }
    // And a machine that can't boot from the network at all starts from a USB stick with what the server offers.
    let stick = site.bench.path("stick");
    let mut command = Command::new("curl");
    command.args(["--silent", "--fail", "http://10.9.0.1/diskcast.iso", "--output"]).arg(&stick);
    assert!(site.room.inside(&command).status().unwrap().success());
    for (firmware, plug) in [(Firmware::Bios, 0), (Firmware::SecureHttp, 1)] {
        let options = BareOptions { stick: Some(stick.clone()), ..site.options(firmware, plug, &[1 << 30]) };
        let _machine = site.start_until(&options, ADMIT);
        let disks = &site.host(&card(plug))["facts"]["disks"];
        assert_eq!(disks.as_array().unwrap().len(), 1, "the stick is no disk to work on: {disks}");
    }
}
