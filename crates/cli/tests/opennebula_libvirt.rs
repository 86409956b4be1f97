//! OpenNebula's drivers beside a real libvirt, with a daemon of its own on each host: machines start from the disks
//! that the drivers made, get another disk, are saved, take snapshots and move while they run.

use lab::Host;

use crate::opennebula_common::{Cloud, Disk};

/// What a host runs before its sshd: libvirt's daemon, with folders that are this host's alone, and the user that
/// Debian's package of the machine's daemon makes.
fn daemon(host: &Host) -> String {
    format!(
        "for kind in run/libvirt var/lib/libvirt var/log/libvirt var/cache/libvirt; do \
         mkdir -p /$kind && mount -t tmpfs tmpfs /$kind; done && cd /run/libvirt && mkdir own && cd own && \
         for list in passwd group; do grep -v ^libvirt-qemu: /etc/$list >$list; done && \
         echo libvirt-qemu:x:64055:64055::/:/bin/false >>passwd && echo libvirt-qemu:x:64055: >>group && \
         mount --bind passwd /etc/passwd && mount --bind group /etc/group && \
         printf '%s\\n' 'security_driver = \"none\"' 'user = \"root\"' 'group = \"root\"' 'namespaces = [ ]' \
         'cgroup_controllers = [ ]' 'stdio_handler = \"file\"' 'remember_owner = 0' >qemu.conf && \
         echo 'host_uuid = \"00000000-0000-4000-8000-{:012}\"' >libvirtd.conf && \
         mkdir -p /etc/libvirt && mount --bind . /etc/libvirt && \
         libvirtd -d -f /run/libvirt/own/libvirtd.conf -p /run/libvirt/own/pid >/run/libvirt/own/log 2>&1",
        host.index(),
    )
}

/// A cloud whose hosts have libvirt.
struct Place(Cloud);

impl Place {
    fn new(hosts: u32) -> Option<Self> {
        if !std::path::Path::new("/usr/sbin/libvirtd").exists() {
            assert!(std::env::var_os("CI").is_none(), "tools/install-dependencies.sh installs libvirtd");
            return None;
        }
        let cloud = Cloud::with(hosts, 8, daemon)?;
        std::fs::write(cloud.bench.path("bin/virsh"), format!("#!/bin/sh\nexec {VIRSH} \"$@\"\n")).unwrap();
        Some(Self(cloud))
    }

    fn virsh(&self, host: u32, line: &str) -> String {
        self.0.on(host, &format!("{VIRSH} {line}"))
    }

    /// Starts a machine with a first disk, by the path that oned writes.
    fn start(&self, host: u32, machine: u32, format: &str) {
        let file = self.0.bench.path(&format!("one-{machine}.xml"));
        let domain = format!(
            "<domain type='qemu'><name>one-{machine}</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>\
             <os><type arch='x86_64' machine='pc'>hvm</type></os><features><acpi/></features><devices>\
             <disk type='file' device='disk'><driver name='qemu' type='{format}' discard='unmap'/>\
             <source file='{}'/><target dev='vda' bus='virtio'/></disk></devices></domain>",
            self.disk(machine, 0),
        );
        std::fs::write(&file, domain).unwrap();
        self.virsh(host, &format!("create {}", file.display()));
    }

    fn disk(&self, machine: u32, disk: u32) -> String {
        format!("{}//datastores/100/{machine}/disk.{disk}", self.0.folder.display())
    }

    /// The machine that runs writes by its own device: a command of qemu-io.
    fn writes(&self, host: u32, machine: u32, line: &str) {
        let device = "/machine/peripheral/virtio-disk0/virtio-backend";
        let command = format!("qemu-io -d {device} \\\"{line}\\\"");
        let said = self.virsh(host, &format!("qemu-monitor-command one-{machine} --hmp \"{command}\""));
        assert!(!said.to_lowercase().contains("error"), "{line}: {said}");
    }

    fn state(&self, host: u32, machine: u32) -> String {
        self.virsh(host, &format!("domstate one-{machine}")).trim().to_owned()
    }

    fn ends(&self, host: u32, machine: u32) {
        self.virsh(host, &format!("destroy one-{machine}"));
    }
}

const VIRSH: &str = "/usr/bin/virsh -q -c qemu:///system";

impl Drop for Place {
    fn drop(&mut self) {
        for host in self.0.star.hosts().iter().skip(1) {
            let line = format!(
                "for one in $({VIRSH} list --name); do {VIRSH} destroy $one; done; cd /run/libvirt/own; \
                 kill $(cat pid); while [ -e pid ]; do sleep 0.05; done"
            );
            self.0.on(host.index(), &line);
        }
    }
}

#[test]
fn machines_that_libvirt_runs_take_snapshots_are_saved_and_get_another_disk() {
    let Some(place) = Place::new(1) else { return };
    let cloud = &place.0;
    for (machine, form, format) in [(1, "overlay", "qcow2"), (2, "full", "raw")] {
        cloud.machine(machine, 3, &[Disk { format, copy: form, ..Disk::of("main:web@1") }]);
        let act = |line: &str| {
            let disk = cloud.place(1, machine, "disk.0");
            cloud.transfer(machine, &line.replace("DISK", &disk).replace("VM", &machine.to_string()))
        };
        assert_eq!(act("CLONE diskcast main:web@1 DISK VM 101"), Ok(()));
        place.start(1, machine, format);
        place.writes(1, machine, "write -P 3 0 64k");
        assert_eq!(act("SNAP_CREATE_LIVE diskcast DISK 1 VM 100"), Ok(()), "{form}");
        assert_eq!(place.state(1, machine), "running");
        place.writes(1, machine, "write -P 4 0 64k");
        // Saved as an image while it runs.
        assert_eq!(act("CPDS diskcast DISK main:one-5VM -1 VM 101"), Ok(()));
        assert_eq!(place.state(1, machine), "running");
        // Another disk, which goes again.
        let second = cloud.place(1, machine, "disk.1");
        cloud.machine(
            machine,
            3,
            &[Disk { format, copy: form, ..Disk::of("main:web@1") }, Disk::of("main:web@1")],
        );
        assert_eq!(
            cloud.transfer(machine, &format!("CLONE diskcast main:web@1 {second} {machine} 101")),
            Ok(())
        );
        let path = place.disk(machine, 1);
        place.virsh(1, &format!("attach-disk one-{machine} {path} vdb --driver qemu --subdriver qcow2"));
        assert!(place.virsh(1, &format!("domblklist one-{machine}")).contains("vdb"));
        place.ends(1, machine);
        cloud.io(format, 1, machine, "read -P 4 0 64k");
        assert_eq!(act("SNAP_REVERT diskcast DISK 1 VM 100"), Ok(()));
        cloud.io(format, 1, machine, "read -P 3 0 64k");
        // What was saved starts as another machine.
        let (copy, saved) = (machine + 5, format!("main:one-5{machine}"));
        cloud.machine(copy, 3, &[Disk::of(&saved)]);
        let disk = cloud.place(1, copy, "disk.0");
        assert_eq!(cloud.transfer(copy, &format!("CLONE diskcast {saved} {disk} {copy} 101")), Ok(()));
        place.start(1, copy, "qcow2");
        place.ends(1, copy);
        cloud.reads(1, copy, "read -P 4 0 64k");
    }
}

#[test]
fn a_machine_that_libvirt_runs_moves_with_its_disk() {
    let Some(place) = Place::new(2) else { return };
    let cloud = &place.0;
    let vm = cloud.machine(1, 3, &[Disk::of("main:web@1")]);
    let disk = cloud.place(1, 1, "disk.0");
    assert_eq!(cloud.transfer(1, &format!("CLONE diskcast main:web@1 {disk} 1 101")), Ok(()));
    place.start(1, 1, "qcow2");
    place.writes(1, 1, "write -P 7 1M 64k");
    // As OpenNebula's script `migrate` does where hosts share nothing: an empty disk there, which libvirt fills.
    let folder = cloud.folder.join("datastores/100/1").display().to_string();
    let words = format!("{} {} {folder} 1 100", cloud.host(1), cloud.host(2));
    let act = |action: &str| cloud.run(cloud.script("tm", action, &words), &vm);
    assert_eq!(act("premigrate"), Ok(String::new()));
    cloud.on(2, &format!("mkdir -p {folder} && qemu-img create -q -f qcow2 {folder}/disk.0 8M"));
    let (key, there) = (cloud.bench.path("ssh/client"), cloud.host(2));
    place.virsh(
        1,
        &format!(
            "migrate --live --copy-storage-all one-1 \
             'qemu+ssh://root@{there}/system?keyfile={}&no_verify=1' --migrateuri tcp://{there}",
            key.display()
        ),
    );
    assert_eq!(act("postmigrate"), Ok(String::new()));
    assert_eq!(place.state(2, 1), "running");
    assert!(!cloud.host_path(1, "100/1").exists());
    place.writes(2, 1, "write -P 8 2M 64k");
    place.ends(2, 1);
    cloud.reads(2, 1, "read -P 7 1M 64k");
    cloud.reads(2, 1, "read -P 8 2M 64k");
}
