//! A front-end of OpenNebula without OpenNebula: its programs for machines and images are scripts, its drivers are
//! ours.
#![allow(dead_code, reason = "every test program uses its own part")]

use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;

use base64::Engine as _;
use lab::{Host, Sshd, Star, StarOptions};

use crate::common::Bench;
use crate::common::running::Running;

const DISKCAST: &str = env!("CARGO_BIN_EXE_diskcast");
/// What hosts run. It tells that it began, and waits while there is a gate, for all hosts or for this one.
const PROGRAM: &str = "#!/bin/sh\n[ \"$1\" = work ] && echo $$ >FOLDER/started\n\
                       here=${SSH_CONNECTION% *}\n\
                       while [ -e FOLDER/gate ] || [ -e \"FOLDER/gate-${here##* }\" ]; do sleep 0.02; done\n\
                       exec DISKCAST \"$@\"\n";
/// The hypervisor's program. What is said to QEMU reaches one, if it runs.
const VIRSH: &str = "#!/bin/sh\necho \"$@\" >>FOLDER/virsh.log\n\
                     [ \"$1\" != qemu-monitor-command ] || exec python3 FOLDER/bin/monitor \"$3\"\n";
const MONITOR: &str = r#"
import json, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("FOLDER/monitor")
    stream = connection.makefile("rw")
    for command in ['{"execute": "qmp_capabilities"}', sys.argv[1]]:
        print(command, file=stream, flush=True)
        answer = {}
        while not {"return", "error"} & answer.keys():
            answer = json.loads(stream.readline())
print(json.dumps(answer))
"#;
/// The user who owns machines and images, which is not oneadmin.
pub(crate) const USER: u32 = 3;
/// OpenNebula's programs: `show -x ID`.
const SHOW: &str = "#!/bin/sh\nexec cat FOLDER/KIND-$3.xml\n";

/// Host 0 is the front-end and serves the repository; the others run machines.
pub(crate) struct Cloud {
    pub(crate) star: Star,
    pub(crate) bench: Bench,
    /// Its `datastores` are, on each host, a folder of its own.
    pub(crate) folder: PathBuf,
    pub(crate) server: Running,
    sshd: Sshd,
}

/// A disk of a machine.
#[derive(Clone, Copy)]
pub(crate) struct Disk<'a> {
    pub(crate) source: &'a str,
    pub(crate) format: &'a str,
    pub(crate) copy: &'a str,
    pub(crate) filesystem: &'a str,
    pub(crate) driver: &'a str,
    pub(crate) size_mb: u64,
}

impl<'a> Disk<'a> {
    pub(crate) fn of(source: &'a str) -> Self {
        Self { source, format: "qcow2", copy: "overlay", filesystem: "", driver: "diskcast", size_mb: 1 }
    }

    fn xml(&self, number: usize) -> String {
        let optional = |name: &str, value: &str| match value {
            "" => String::new(),
            value => format!("<{name}><![CDATA[{value}]]></{name}>"),
        };
        format!(
            "<DISK><CLONE><![CDATA[YES]]></CLONE><DATASTORE_ID><![CDATA[101]]></DATASTORE_ID>\
             <DISK_ID><![CDATA[{number}]]>\
             </DISK_ID><DISK_TYPE><![CDATA[FILE]]></DISK_TYPE>{}{}{}{}{}<READONLY><![CDATA[NO]]></READONLY>\
             <SIZE><![CDATA[{}]]></SIZE><TARGET><![CDATA[vda]]></TARGET></DISK>",
            optional("DRIVER", self.format),
            optional("SOURCE", self.source),
            optional("FS", self.filesystem),
            optional("TM_MAD", self.driver),
            optional("DISKCAST_COPY", self.copy),
            self.size_mb,
        )
    }
}

impl Cloud {
    /// With `hosts` that run machines, and `web@1`, a disk of `mib` MiB. `None` where there is no lab.
    pub(crate) fn new(hosts: u32, mib: usize) -> Option<Self> {
        Self::with(hosts, mib, |_| "true".to_owned())
    }

    /// The same, where each host first runs a line for a shell.
    pub(crate) fn with(hosts: u32, mib: usize, first: impl Fn(&Host) -> String) -> Option<Self> {
        if !lab::available_or_skip() {
            return None;
        }
        let options = StarOptions { hosts: 1 + hosts, ..StarOptions::default() };
        let (star, bench) = (Star::build(&options).unwrap(), Bench::new());
        bench.disk("disk.img", mib, 1);
        assert!(bench.see("capture disk.img web -q --label opennebula=yes").ends_with("exit: 0\n"));
        let folder = bench.path("one");
        for name in ["one/datastores", "bin", "remotes", "staging", "mnt"] {
            std::fs::create_dir_all(bench.path(name)).unwrap();
        }
        let scripts = [
            ("diskcast", PROGRAM),
            ("virsh", VIRSH),
            ("monitor", MONITOR),
            ("onevm", SHOW),
            ("oneimage", SHOW),
        ];
        for (name, text) in scripts {
            let text = text.replace("FOLDER", &bench.path("").display().to_string()).replace("KIND", name);
            std::fs::write(bench.path("bin").join(name), text.replace("DISKCAST", DISKCAST)).unwrap();
            bench.tool(&format!("chmod +x bin/{name}"));
        }
        let install =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../integrations/opennebula/install.sh");
        let said = bench.tool(&format!("{} {}", install.display(), bench.path("remotes").display()));
        assert!(said.contains("TM_MAD_CONF"), "{said}");
        let own = |host: &Host| {
            let own = bench.path(&format!("host-{}", host.index()));
            std::fs::create_dir_all(&own).unwrap();
            let shown = folder.join("datastores");
            let first = first(host).replace("DATASTORES", &shown.display().to_string());
            format!("mount --bind {} {} && {first}", own.display(), shown.display())
        };
        let sshd = Sshd::start_after(&star, &star.hosts()[1..], bench.path(".").as_path(), own).unwrap();
        let address = star.host(0).ipv4();
        let mut server =
            Running::start(bench.command_in(star.host(0), &format!("serve --listen {address}:7717 --json")));
        server.kind("serving");
        let token = bench.command("token --write").output().unwrap().stdout;
        bench.keep_secret("one.token", token);
        let text = format!(
            "ssh = \"{}\"\nprogram = \"{bin}/diskcast\"\nvirsh = \"{bin}/virsh\"\nkept = \"{}/datastores/.diskcast\"\n\
             staging = \"{}\"\nmount = \"{}\"\n\n[repositories.main]\nlocation = \"{}\"\n\
             server = \"https://{address}:7717\"\ntoken_file = \"{}\"\n",
            sshd.client(),
            folder.display(),
            bench.path("staging").display(),
            bench.path("mnt").display(),
            bench.path("repo").display(),
            bench.path("one.token").display(),
            bin = bench.path("bin").display(),
        );
        std::fs::write(bench.path("one.toml"), text).unwrap();
        Some(Self { star, bench, folder, server, sshd })
    }

    /// Runs a line on a host.
    pub(crate) fn on(&self, host: u32, line: &str) -> String {
        let mut ssh = self.star.host(0).command("ssh");
        ssh.args(self.sshd.options()).arg(self.host(host)).arg(line).stdin(Stdio::null());
        let output = ssh.output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Shows the images on a host, in its folder `mnt`, until what this returns is dropped.
    pub(crate) fn mounts(&self, host: u32) -> Running {
        let path = |name: &str| self.bench.path(name).display().to_string();
        // The mount ends with the client, whose end is that of the input.
        let line = format!(
            "DISKCAST_CONFIG=/dev/null DISKCAST_SEEN={} {DISKCAST} mount {} --folder {} --from https://{}:7717 \
             --token-file {} --share --json & cat >/dev/null; kill $!; wait $!",
            path(&format!("seen-{host}.json")),
            path("mnt"),
            path(&format!("mount-{host}")),
            self.host(0),
            path("one.token"),
        );
        let mut ssh = self.star.host(0).command("ssh");
        ssh.args(self.sshd.options()).arg(self.host(host)).arg(line).stdin(Stdio::piped());
        let mut mount = Running::start(ssh);
        mount.kind("mounted");
        mount
    }

    /// Starts QEMU on a host with the first disk of a machine, stopped. Returns what ends it.
    pub(crate) fn qemu_runs(&self, host: u32, machine: u32, format: &str) -> impl FnOnce() {
        let (folder, disk) =
            (self.bench.path(""), format!("{}//datastores/100/{machine}/disk.0", self.folder.display()));
        let process = folder.join("qemu");
        self.on(
            host,
            &format!(
                "qemu-system-x86_64 -machine none -nodefaults -display none -S -daemonize -pidfile {} -qmp \
                 unix:{}/monitor,server=on,wait=off -blockdev \
                 driver={format},node-name=disk,file.driver=file,file.filename={}",
                process.display(),
                folder.display(),
                disk,
            ),
        );
        move || {
            let id = std::fs::read_to_string(process).unwrap();
            let id = rustix::process::Pid::from_raw(id.trim().parse().unwrap()).unwrap();
            rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
            while rustix::process::test_kill_process(id).is_ok() {
                std::thread::park_timeout(std::time::Duration::from_millis(10));
            }
        }
    }

    /// Has the machine that runs write: a command of qemu-io.
    pub(crate) fn qemu_writes(&self, line: &str) {
        let words = serde_json::json!({ "command-line": format!("qemu-io disk \"{line}\"") });
        let command = serde_json::json!({ "execute": "human-monitor-command", "arguments": words });
        let mut monitor = Command::new("python3");
        monitor.arg(self.bench.path("bin/monitor")).arg(command.to_string());
        let output = monitor.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && !said.to_lowercase().contains("error"), "{line}: {said}");
    }

    /// Tells OpenNebula of a machine in a state. Returns what drivers get of it.
    pub(crate) fn machine(&self, id: u32, state: u32, disks: &[Disk<'_>]) -> String {
        let disks: String = disks.iter().enumerate().map(|(number, disk)| disk.xml(number)).collect();
        let text = format!(
            "<VM><ID>{id}</ID><UID>{USER}</UID><NAME>vm-{id}</NAME><STATE>3</STATE><LCM_STATE>{state}</LCM_STATE>\
             <DEPLOY_ID>one-{id}</DEPLOY_ID><TEMPLATE><CPU><![CDATA[1]]></CPU>{disks}<MEMORY><![CDATA[512]]></MEMORY>\
             <VMID><![CDATA[{id}]]></VMID></TEMPLATE><HISTORY_RECORDS><HISTORY><OID>{id}</OID><SEQ>0</SEQ>\
             <HOSTNAME>h</HOSTNAME><TM_MAD><![CDATA[diskcast]]></TM_MAD>\
             <DS_ID>100</DS_ID></HISTORY></HISTORY_RECORDS></VM>"
        );
        std::fs::write(self.bench.path(&format!("onevm-{id}.xml")), &text).unwrap();
        text
    }

    /// Tells it of an image.
    pub(crate) fn image(&self, id: u32, source: &str) {
        let text =
            format!("<IMAGE><ID>{id}</ID><UID>{USER}</UID><SOURCE><![CDATA[{source}]]></SOURCE></IMAGE>");
        std::fs::write(self.bench.path(&format!("oneimage-{id}.xml")), text).unwrap();
    }

    /// The name of a host, as ssh takes it.
    pub(crate) fn host(&self, host: u32) -> String {
        self.star.host(host).ipv4().to_string()
    }

    /// A file of a machine in the words of transfer scripts. OpenNebula writes two slashes if a setting ends with one.
    pub(crate) fn place(&self, host: u32, machine: u32, name: &str) -> String {
        let path = format!("{}:{}/datastores//100/{machine}/{name}", self.host(host), self.folder.display());
        path.trim_end_matches('/').to_owned()
    }

    /// Where this machine sees a file of a host's datastores.
    pub(crate) fn host_path(&self, host: u32, path: &str) -> PathBuf {
        self.bench.path(&format!("host-{host}")).join(path)
    }

    pub(crate) fn read(&self, host: u32, path: &str) -> String {
        std::fs::read_to_string(self.host_path(host, path)).unwrap()
    }

    /// The lines of a transfer script, as one_tm takes them: the first failure ends it.
    pub(crate) fn transfer(&self, _machine: u32, lines: &str) -> Result<(), String> {
        for line in lines.lines() {
            let (action, rest) = line.split_once(' ').unwrap();
            let (driver, rest) = rest.split_once(' ').unwrap();
            assert_eq!(driver, "diskcast");
            let action = action.to_lowercase();
            let plain = action.split('.').next().unwrap();
            let name = [action.as_str(), plain].into_iter().find(|name| self.path_of("tm", name).exists());
            let name = name.ok_or_else(|| format!("no script {action}"))?;
            self.run(self.script("tm", name, rest), "")?;
        }
        Ok(())
    }

    fn path_of(&self, driver: &str, name: &str) -> PathBuf {
        self.bench.path("remotes").join(driver).join("diskcast").join(name)
    }

    /// A script of a driver, on the front-end.
    pub(crate) fn script(&self, driver: &str, name: &str, words: &str) -> Command {
        let mut command = self.star.host(0).command(&self.path_of(driver, name).display().to_string());
        command
            .args(words.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let bin = self.bench.path("bin");
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .env("DISKCAST", DISKCAST)
            .env("DISKCAST_CONFIG", "/dev/null")
            .env("DISKCAST_SEEN", self.bench.path("seen.json"))
            .env("DISKCAST_CACHE", "off")
            .env("DISKCAST_ONE", self.bench.path("one.toml"))
            .env("DISKCAST_ONEVM", bin.join("onevm"))
            .env("DISKCAST_ONEIMAGE", bin.join("oneimage"));
        command
    }

    /// Runs a script with XML on its standard input, as OpenNebula's managers do: what the manager of machines starts
    /// gets it as it is, what that of images starts in base64. What it prints, or why it failed.
    pub(crate) fn run(&self, mut command: Command, xml: &str) -> Result<String, String> {
        use std::io::Write as _;
        let words = command.get_args().map(|word| word.to_string_lossy());
        let of_machines =
            |word: &str| word.contains("/tm/diskcast/") || word.contains("/datastore/diskcast/backup");
        let program = command.get_program().to_string_lossy().into_owned();
        let input = match of_machines(&program) || words.into_iter().any(|word| of_machines(&word)) {
            true => xml.to_owned(),
            false => base64::engine::general_purpose::STANDARD.encode(xml),
        };
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        // A script that needs none may have ended.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
        } else {
            Err(stderr)
        }
    }

    /// A script that runs on a host, on a folder of its datastores. It has no settings.
    pub(crate) fn at(&self, host: u32, name: &str, folder: &str) -> String {
        let mut command = Command::new(self.path_of("tm", name));
        command
            .arg(self.host_path(host, folder))
            .env("DISKCAST", DISKCAST)
            .env("DISKCAST_CONFIG", "/dev/null");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// An order to a datastore in XML.
    pub(crate) fn order(&self, image: &str, template: &str) -> String {
        format!(
            "<DS_DRIVER_ACTION_DATA><IMAGE>{image}</IMAGE><DATASTORE><ID>101</ID><NAME>images</NAME>\
             <DS_MAD><![CDATA[diskcast]]></DS_MAD><TM_MAD><![CDATA[diskcast]]></TM_MAD><TYPE>0</TYPE><TEMPLATE>\
             <DISKCAST_REPOSITORY><![CDATA[main]]></DISKCAST_REPOSITORY>{template}</TEMPLATE></DATASTORE>\
             </DS_DRIVER_ACTION_DATA>"
        )
    }

    pub(crate) fn store(&self, action: &str, id: u32, image: &str) -> Result<String, String> {
        self.store_of(action, id, image, "")
    }

    /// What a datastore's driver answers, about the image `id`.
    pub(crate) fn store_of(
        &self,
        action: &str,
        id: u32,
        image: &str,
        template: &str,
    ) -> Result<String, String> {
        self.store_as(USER, action, (id, image), template)
    }

    /// The same, of an image that `user` makes.
    pub(crate) fn store_as(
        &self,
        user: u32,
        action: &str,
        (id, image): (u32, &str),
        template: &str,
    ) -> Result<String, String> {
        let about = format!("<ID>{id}</ID><UID>{user}</UID><NAME>image</NAME><TYPE>0</TYPE>{image}");
        self.run(self.script("datastore", action, &id.to_string()), &self.order(&about, template))
    }

    /// Runs qemu-img in a machine's folder.
    pub(crate) fn qemu(&self, host: u32, machine: u32, words: &str) -> String {
        let words = words.replace("FOLDER", &self.bench.path("").display().to_string());
        let mut command = Command::new("qemu-img");
        command.args(words.split_whitespace()).current_dir(self.host_path(host, &format!("100/{machine}")));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words}: {said}{}", String::from_utf8_lossy(&output.stderr));
        said
    }

    /// A machine writes: a command of qemu-io.
    pub(crate) fn write(&self, host: u32, machine: u32, line: &str) {
        self.io("qcow2", host, machine, line);
    }

    /// A machine reads what it should.
    pub(crate) fn reads(&self, host: u32, machine: u32, line: &str) {
        self.io("qcow2", host, machine, line);
    }

    pub(crate) fn io(&self, format: &str, host: u32, machine: u32, line: &str) {
        let mut command = Command::new("qemu-io");
        command.args(["-c", line, "-f", format, "disk.0"]);
        command.current_dir(self.host_path(host, &format!("100/{machine}")));
        let output = command.output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("failed"), "{line}: {said}");
    }

    /// What the hypervisor was told since the last look.
    pub(crate) fn virsh(&self) -> Vec<String> {
        let path = self.bench.path("virsh.log");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let _ = std::fs::remove_file(path);
        text.lines().map(str::to_owned).collect()
    }

    /// What blkid finds in a file.
    pub(crate) fn kind(&self, path: &str) -> Option<String> {
        let found = self.bench.tool(&format!("blkid -p -o value -s TYPE {path}"));
        Some(found.trim().to_owned()).filter(|kind| !kind.is_empty())
    }
}

/// Text that was in base64.
pub(crate) fn plain(text: &str) -> String {
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
}

/// Text in base64.
pub(crate) fn packed(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}
