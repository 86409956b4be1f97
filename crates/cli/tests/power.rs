//! Tests machines that are woken, restarted and switched: by a packet, by a program, and by a board.

use std::fs;
use std::process::{Command, Stdio};

use lab::bare::{BRIDGE, Room, card};

use crate::common::Bench;
use crate::netboot_common::{Running, Site, block_of_the_page, wait_until};

#[test]
fn machines_are_woken_and_restarted_when_their_job_begins() {
    if !lab::available_or_skip() {
        return;
    }
    let (bench, room) = (Bench::new(), Room::build(0).unwrap());
    let mut site = Site { bench, room, server: None };
    let path = |name: &str| site.bench.path(name);
    fs::create_dir(path("boot")).unwrap();
    ["boot/vmlinuz", "boot/initrd.img"].iter().for_each(|file| fs::write(path(file), "x").unwrap());
    fs::write(path("disk"), [7; 1 << 16]).unwrap();
    assert!(site.bench.see("capture disk web -q").ends_with("exit: 0\n"));
    program(&path("power"), &format!("#!/bin/sh\necho \"$@\" >>{}\n", path("called").display()));
    let (called, seen, power) = (path("called"), path("seen.pcap"), path("power"));
    let mut command = Command::new("tcpdump");
    command
        .args(["-i", BRIDGE, "-U", "--immediate-mode", "-Z", "root", "-w"])
        .arg(&seen)
        .args(["udp", "port", "9"]);
    let _capture = Running(site.room.inside(&command).stderr(Stdio::null()).spawn().unwrap());
    wait_until("the capture has begun", || seen.exists());
    site.serve(&format!("--power-program {}", power.display()));
    assert!(site.tell(&format!("hosts add {} --name one", card(1))).contains("out: added one"));
    let called = || fs::read_to_string(&called).unwrap_or_default();
    let made = site.tell("deploy web one --as-captured --yes --wake --at 3s --disk disk:serial=S1");
    assert!(made.contains("when it boots in ") && made.contains("install web@1"), "{made}");
    assert_eq!(called(), "", "it is not woken before its time");
    wait_until("it is switched on", || called() == "on 52:54:00:00:00:01 one\n");
    // AMD, "Magic Packet Technology": six bytes 0xFF, then the address sixteen times.
    let wanted = [vec![0xFF; 6], [0x52, 0x54, 0, 0, 0, 1].repeat(16)].concat();
    wait_until("the packet is on the wire", || {
        let bytes = fs::read(&seen).unwrap();
        bytes.windows(wanted.len()).any(|window| window == wanted)
    });
    assert!(site.tell("hosts cancel one").contains("no job any more: one"));
    assert!(site.tell("hosts wipe one").contains("nobody is there to confirm it"));
    assert!(site.tell("hosts wipe one --restart --yes").ends_with("exit: 0\n"));
    wait_until("it is restarted", || called().ends_with("\nrestart 52:54:00:00:00:01 one\n"));
    assert!(site.log().contains("machine 52:54:00:00:00:01 is told to boot"));
    // By hand, too.
    let status = site.tell("hosts power status one");
    assert!(status.contains("POWER") && status.contains("done") && status.ends_with("exit: 0\n"), "{status}");
    assert!(called().ends_with("\nstatus 52:54:00:00:00:01 one\n"));
    let refused = site.tell("hosts power off one");
    assert!(
        refused.contains("one will be switched off at once") && refused.ends_with("exit: 11\n"),
        "{refused}"
    );
    assert!(site.tell("hosts power cycle one --yes").ends_with("exit: 0\n"));
    assert!(called().ends_with("status 52:54:00:00:00:01 one\nrestart 52:54:00:00:00:01 one\n"));

    by_a_board(&site, &power);
}

/// The page's program, by ipmitool and a board.
fn by_a_board(site: &Site, power: &std::path::Path) {
    let board = Board::start(site);
    program(power, &ipmitool_of_the_page(&site.bench.path("bmc-password")));
    assert!(
        site.tell("deploy web one --as-captured --yes --wake --disk disk:serial=S1").ends_with("exit: 0\n")
    );
    wait_until("the board switches it on", || board.was_told("set power 1"));
    assert!(
        site.tell("deploy web one --as-captured --yes --restart --disk disk:serial=S1")
            .ends_with("exit: 0\n")
    );
    wait_until("the board switches it off, and on again", || board.was_told("set power 0"));
    let status = site.tell("hosts power status one");
    assert!(status.contains("Chassis Power is on") && status.ends_with("exit: 0\n"), "{status}");
    assert!(site.tell("hosts power off one --yes").contains("Chassis Power Control: Down/Off"));
    // A board that does not answer is named.
    drop(board);
    let failed = site.tell("hosts power status one");
    assert!(failed.contains("power status` failed: ") && failed.ends_with("exit: 1\n"), "{failed}");
    assert!(
        site.tell("deploy web one --as-captured --yes --wake --disk disk:serial=S1").ends_with("exit: 0\n")
    );
    wait_until("it is named", || site.log().contains("could not be told to boot: `"));
}

/// A board that switches a machine by IPMI: the simulator of OpenIPMI, in a room at the server's address.
struct Board {
    calls: std::path::PathBuf,
    _simulator: Running,
}

impl Board {
    fn start(site: &Site) -> Self {
        let path = |name: &str| site.bench.path(name);
        let calls = path("board-calls");
        let chassis = format!(
            "#!/bin/sh\necho \"$2 $3 $4\" >>{}\n[ \"$2\" != get ] || for what in $3 $4; do echo $what:1; done\n",
            calls.display()
        );
        program(&path("chassis"), &chassis);
        let address = lab::bare::SERVER;
        let methods = "none md2 md5 straight";
        let settings = format!(
            "name \"board\"\nset_working_mc 0x20\nstartlan 1\n addr {address} 623\n priv_limit admin\n \
             allowed_auths_admin {methods}\n guid a123456789abcdefa123456789abcdef\nendlan\n\
             chassis_control \"{} 0x20\"\nuser 2 true \"admin\" \"secret\" admin 10 {methods}\n",
            path("chassis").display()
        );
        fs::write(path("lan.conf"), settings).unwrap();
        let parts = "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\n\
                     sel_enable 0x20 1000 0x0a\nmc_enable 0x20\n";
        fs::write(path("parts.emu"), parts).unwrap();
        fs::write(path("bmc-password"), "secret").unwrap();
        fs::create_dir(path("board")).unwrap();
        let mut command = Command::new("ipmi_sim");
        command.arg("-n").arg("-c").arg(path("lan.conf")).arg("-f").arg(path("parts.emu"));
        command.arg("-s").arg(path("board"));
        let started = site.room.inside(&command).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { calls, _simulator: Running(started.unwrap()) }
    }

    fn was_told(&self, words: &str) -> bool {
        fs::read_to_string(&self.calls).unwrap_or_default().lines().any(|line| line.trim() == words)
    }
}

/// The program for ipmitool in docs/netboot.md, for a board at our address.
fn ipmitool_of_the_page(password: &std::path::Path) -> String {
    let text = block_of_the_page("With ipmitool", "sh");
    text.replace("\"$3-bmc\"", &lab::bare::SERVER.to_string())
        .replace("/etc/bmc-password", &password.display().to_string())
}

fn program(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}
