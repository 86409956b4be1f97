//! Tests sources and targets in other forms than raw: disks of virtual machines, compressed files,
//! streams, NBD exports.

use std::fs::{self, File};

use crate::common::targets::{partition, soil};
use crate::common::{Bench, assert_same};

/// Starts `qemu-nbd` on a raw file as the export `disk`, and returns its address.
fn serve(bench: &Bench, mode: &str, file: &str, name: &str) -> String {
    let socket = bench.path(name).display().to_string();
    let words = "--persistent --shared=8 --fork --format=raw --export-name=disk";
    bench.tool(&format!("qemu-nbd {mode} {words} --pid-file={name}.pid --socket={socket} {file}"));
    format!("nbd+unix:///disk?socket={socket}")
}

/// Ends what [`serve`] started, and waits until it has.
fn stop(bench: &Bench, name: &str) {
    let pid = fs::read_to_string(bench.path(&format!("{name}.pid"))).unwrap();
    bench.tool(&format!("kill {}", pid.trim()));
    while std::path::Path::new("/proc").join(pid.trim()).exists() {
        std::thread::yield_now();
    }
}

#[test]
fn a_disk_is_captured_whatever_form_it_has() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 8, 1);
    for (form, name) in [
        ("qcow2 -c", "plain"),
        ("qcow2 -c -o compression_type=zstd", "packed"),
        ("vmdk -o subformat=monolithicFlat", "flat.raw"),
        ("vmdk -o subformat=streamOptimized", "stream"),
        ("vmdk -o subformat=twoGbMaxExtentSparse", "many.vmdk"),
        ("vdi", "vdi"),
        ("vhdx", "vhdx"),
        ("vpc -o force_size=on", "vhd"),
        ("qed", "qed"),
    ] {
        bench.tool(&format!("qemu-img convert -f raw -O {form} disk.img {name}"));
        let captured = bench.see(&format!("capture {name} web"));
        assert!(
            captured.starts_with("out: captured web@") && captured.ends_with("exit: 0\n"),
            "{form}: {captured}"
        );
        assert!(bench.see("install web out.img -q --overwrite").ends_with("exit: 0\n"));
        assert_same(&disk, &bench.path("out.img"));
    }
    bench.tool("cp plain again");
    for (how, name) in
        [("gzip -k disk.img", "disk.img.gz"), ("xz -0 plain", "plain.xz"), ("zstd -q again", "again.zst")]
    {
        bench.tool(how);
        bench.tool(&format!("cp {name} anything"));
        assert!(bench.see("capture anything web -q").ends_with("exit: 0\n"), "{name}");
        assert!(bench.see("install web out.img -q --overwrite").ends_with("exit: 0\n"));
        assert_same(&disk, &bench.path("out.img"));
        // From a pipe.
        let mut command = bench.command("capture - piped -q");
        command.stdin(File::open(bench.path(name)).unwrap());
        let shown = bench.show(&command.output().unwrap());
        assert!(shown.ends_with("exit: 0\n"), "{name}: {shown}");
        assert!(bench.see("install piped out.img -q --overwrite").ends_with("exit: 0\n"));
        assert_same(&disk, &bench.path("out.img"));
    }
    // The same content is stored once, whatever form it came in.
    let stored = bench.json("usage").into_iter().find(|line| line["type"] == "total").unwrap();
    assert!(stored["stored_bytes"].as_u64().unwrap() < 4 << 20, "{stored}");
}

#[test]
fn a_disk_of_an_appliance_is_captured() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 8, 1);
    bench.disk("data.img", 4, 2);
    bench.tool("qemu-img convert -f raw -O vmdk -o subformat=streamOptimized disk.img made-elsewhere.vmdk");
    bench.tool("mv made-elsewhere.vmdk system.vmdk");
    bench.tool("qemu-img convert -f raw -O vmdk -o subformat=streamOptimized data.img data.vmdk");
    for name in ["vm.ovf", "vm.mf"] {
        fs::write(bench.path(name), "<Envelope/>\n".repeat(100)).unwrap();
    }
    // What lies in an appliance has the name that it got there.
    assert!(bench.see("capture system.vmdk web -q").ends_with("exit: 0\n"));
    // Python's `tarfile` names the headers of `pax` like that.
    let python = "pax --pax-option=exthdr.name=././@PaxHeader";
    let global = "pax --pax-option=comment=made";
    for (form, how) in [("ustar", "cat"), ("gnu", "cat"), ("pax", "gzip"), (python, "cat"), (global, "cat")] {
        bench.tool(&format!("tar --format={form} -cf one.tar vm.ovf system.vmdk vm.mf"));
        let packed =
            std::process::Command::new(how).stdin(File::open(bench.path("one.tar")).unwrap()).output();
        fs::write(bench.path("one.ova"), packed.unwrap().stdout).unwrap();
        assert!(bench.see("capture one.ova web -q").ends_with("exit: 0\n"), "{form}");
        assert!(bench.see("install web out.img -q --overwrite").ends_with("exit: 0\n"));
        assert_same(&disk, &bench.path("out.img"));
    }

    bench.tool("tar -cf two.ova vm.ovf system.vmdk data.vmdk");
    let refused = bench.see("capture two.ova data");
    assert!(refused.contains("`two.ova` is an OVA with 2 disks: system.vmdk, data.vmdk"), "{refused}");
    assert!(refused.contains("hint: choose one by --member NAME"), "{refused}");
    assert!(bench.see("capture two.ova data -q --member data.vmdk").ends_with("exit: 0\n"));
    assert!(bench.see("install data out.img -q --overwrite").ends_with("exit: 0\n"));
    assert_same(&bench.path("data.img"), &bench.path("out.img"));
    assert!(bench.see("capture two.ova data --member vm.ovf").contains("has no disk `vm.ovf`"));
    assert!(
        bench.see("capture disk.img data --member a").contains("`disk.img` is not an OVA: it has no members")
    );
    // What holds no description is no OVA, and no raw disk.
    bench.tool("tar -cf some.tar data.vmdk vm.mf");
    let mut clone = fs::read(bench.path("data.img")).unwrap();
    clone[..15].copy_from_slice(b"partclone-image");
    fs::write(bench.path("clone.img"), clone).unwrap();
    for (name, what, how) in [
        ("some.tar", "a tar archive", "tar -xf some.tar"),
        ("clone.img", "a partclone image", "partclone.restore -W -s clone.img -o partition.raw"),
    ] {
        let refused = bench.see(&format!("capture {name} other"));
        assert!(refused.contains(&format!("`{name}` is not a raw disk, but {what}")), "{refused}");
        assert!(refused.contains(how) && refused.ends_with("exit: 11\n"), "{refused}");
        assert!(bench.see(&format!("capture {name} other -q --format raw")).ends_with("exit: 0\n"));
    }
    bench.tool("tar -cf none.ova vm.ovf vm.mf");
    assert!(bench.see("capture none.ova data").contains("without a disk that is known"));

    // A descriptor in an appliance that names a file of this machine is not followed, whatever form it has.
    let mut sparse = fs::read(bench.path("system.vmdk")).unwrap();
    let at = sparse.windows(4).position(|bytes| bytes == b"RW 1").unwrap();
    let line = format!("RW 16384 FLAT \"{}\" 0\n", bench.path("disk.img").display());
    sparse[at..at + line.len()].copy_from_slice(line.as_bytes());
    sparse[12..20].fill(0);
    fs::write(bench.path("system.vmdk"), sparse).unwrap();
    bench.tool("tar -cf trap.ova vm.ovf system.vmdk");
    let refused = bench.see("capture trap.ova web");
    assert!(refused.contains("needs another file") && refused.ends_with("exit: 11\n"), "{refused}");
    // An archive that breaks off is not taken for what it still holds.
    let whole = fs::read(bench.path("two.ova")).unwrap();
    fs::write(bench.path("cut.ova"), &whole[..whole.len() / 2]).unwrap();
    assert!(!bench.see("capture cut.ova data -q").ends_with("exit: 0\n"));
    assert_eq!(bench.json("images data").len(), 1);
}

#[test]
fn a_disk_that_names_other_files_needs_leave() {
    let bench = Bench::new();
    bench.disk("disk.img", 2, 1);
    bench.tool("qemu-img create -q -f qcow2 -F raw -b disk.img top");
    bench.tool("qemu-img convert -f raw -O vmdk -o subformat=twoGbMaxExtentSparse disk.img many.vmdk");
    let text = fs::read_to_string(bench.path("many.vmdk")).unwrap();
    let elsewhere = format!("{}/./many-s001.vmdk", bench.path("").display());
    fs::write(bench.path("moved.vmdk"), text.replace("many-s001.vmdk", &elsewhere)).unwrap();
    for name in ["top", "moved.vmdk"] {
        let refused = bench.see(&format!("capture {name} web"));
        assert!(refused.contains(&format!("err: error: `{name}` needs another file, ")), "{refused}");
        assert!(refused.contains("hint: --backing reads other files, too"), "{refused}");
        assert!(refused.ends_with("exit: 11\n"), "{refused}");
        assert!(bench.see(&format!("capture {name} web -q --backing")).ends_with("exit: 0\n"));
        assert!(bench.see("install web out.img -q --overwrite").ends_with("exit: 0\n"));
        assert_same(&bench.path("disk.img"), &bench.path("out.img"));
    }
    // What is refused for another reason gets no such advice.
    bench.tool("qemu-img create -q -f qcow2 locked 2M");
    let mut bytes = fs::read(bench.path("locked")).unwrap();
    bytes[35] = 2;
    fs::write(bench.path("locked"), bytes).unwrap();
    let refused = bench.see("capture locked web");
    assert!(refused.contains("encrypted") && !refused.contains("--backing"), "{refused}");
    // What is open for writing below it is noticed, too.
    let writer = File::options().write(true).open(bench.path("disk.img")).unwrap();
    let refused = bench.see("capture top web -q --backing");
    assert!(refused.contains("disk.img` is open for writing by"), "{refused}");
    drop(writer);
}

#[test]
fn an_exported_disk_is_captured_from_its_server() {
    let bench = Bench::new();
    bench.disk("disk.img", 8, 1);
    let still = serve(&bench, "--read-only", "disk.img", "still");
    let captured = bench.see(&format!("capture {still} web -q"));
    assert!(captured.ends_with("exit: 0\n"), "{captured}");
    assert_eq!(bench.see("install web out.img -q"), "exit: 0\n");
    assert_same(&bench.path("disk.img"), &bench.path("out.img"));
    let missing = bench.see(&format!("capture {} web", still.replace("disk?", "other?")));
    assert!(missing.ends_with("exit: 10\n"), "{missing}");
    stop(&bench, "still");
    let open = serve(&bench, "", "disk.img", "open");
    let refused = bench.see(&format!("capture {open} web"));
    assert!(refused.contains("others may write to") && refused.ends_with("exit: 11\n"), "{refused}");
    assert!(bench.see(&format!("capture {open} web -q --live")).ends_with("exit: 0\n"));
    let live = bench.json("log web")[0]["live"].to_string();
    assert!(live.contains("is exported for writing"), "{live}");
    stop(&bench, "open");
    let gone = bench.see(&format!("capture {open} web"));
    assert!(gone.contains("connect to `nbd+unix:///disk?socket="), "{gone}");
}

/// nbdkit reads some forms that nothing else here does; it needs no help of ours.
#[test]
fn a_disk_that_nbdkit_serves_is_captured() {
    let bench = Bench::new();
    let disk = bench.disk("disk.img", 8, 1);
    bench.tool("gzip disk.img -k");
    let [socket, pid] = ["kit", "kit.pid"].map(|name| bench.path(name).display().to_string());
    bench.tool(&format!("nbdkit -r -P {pid} -U {socket} --filter=gzip file disk.img.gz"));
    let captured = bench.see(&format!("capture nbd+unix:///?socket={socket} web -q"));
    stop(&bench, "kit");
    assert!(captured.ends_with("exit: 0\n"), "{captured}");
    assert!(bench.see("install web out.img -q").ends_with("exit: 0\n"));
    assert_same(&disk, &bench.path("out.img"));
}

/// The smallest block that a server takes says nothing about sectors. nbdkit's filter refuses all other requests.
#[test]
fn disks_behind_servers_with_large_blocks_keep_their_sectors() {
    let bench = Bench::new();
    let [socket, pid] = ["kit", "kit.pid"].map(|name| bench.path(name).display().to_string());
    for (table, label) in [("gpt", "label: gpt"), ("mbr", "label: dos")] {
        bench.tool(&format!("truncate -s 32M {table}.img"));
        bench.tool(&format!("mke2fs -q -F -E offset=1048576 {table}.img 8M"));
        let rows = format!("{label}\nstart=2048, size=16384\nstart=40960, size=8192\n");
        partition(&bench, &format!("{table}.img"), &rows);
        assert!(bench.see(&format!("capture {table}.img {table} -q")).ends_with("exit: 0\n"));
        let known = bench.json(&format!("log {table}"))[0]["allocated_bytes"].clone();
        for block in [512, 4096, 65536] {
            let kit = |file: &str, mode: &str| {
                let _ = fs::remove_file(&socket);
                let policy = format!(
                    "blocksize-minimum={block} blocksize-preferred=65536 blocksize-error-policy=error"
                );
                bench.tool(&format!(
                    "nbdkit {mode} -P {pid} -U {socket} --filter=blocksize-policy file {file} {policy}"
                ));
            };
            kit(&format!("{table}.img"), "-r");
            let captured = bench.see(&format!("capture nbd+unix:///?socket={socket} {table}-{block} -q"));
            stop(&bench, "kit");
            assert!(captured.ends_with("exit: 0\n"), "{captured}");
            assert_eq!(bench.json(&format!("log {table}-{block}"))[0]["allocated_bytes"], known);

            soil(&bench.path("target.img"), 32 << 20);
            kit("target.img", "");
            let installed =
                bench.see(&format!("install {table}-{block} nbd+unix:///?socket={socket} -q --yes"));
            stop(&bench, "kit");
            assert!(installed.ends_with("exit: 0\n"), "{installed}");
            bench.tool("e2fsck -fn target.img?offset=1048576");
        }
    }
}

#[test]
fn a_stream_that_breaks_off_and_options_that_can_not_be_are_refused() {
    let bench = Bench::new();
    File::create(bench.path("disk.img")).unwrap().set_len(8 << 20).unwrap();
    bench.tool("sgdisk -n 1:2048:0 disk.img");
    bench.tool("cp disk.img half.img");
    bench.tool("truncate -s 4M half.img");
    let capture = |words: &str, file: &str| {
        let mut command = bench.command(words);
        command.stdin(File::open(bench.path(file)).unwrap());
        bench.show(&command.output().unwrap())
    };
    let refused = capture("capture - web", "half.img");
    assert!(
        refused.contains("standard input ends early: 4194304 bytes came") && refused.ends_with("exit: 11\n"),
        "{refused}"
    );
    assert!(capture("capture - web -q", "disk.img").ends_with("exit: 0\n"));
    for words in [
        "install web - --as qcow2",
        "install web - --grow",
        "install web - --hostname a",
        "install web - --size 9M",
    ] {
        let refused = bench.see(words);
        assert!(
            refused.contains("standard output gets the disk as it is") && refused.ends_with("exit: 2\n"),
            "{refused}"
        );
    }
    assert!(bench.see("capture nbd://127.0.0.1:1/x web --freeze").ends_with("exit: 2\n"));
}

#[test]
fn extents_that_qemu_would_read_are_watched_too() {
    let bench = Bench::new();
    bench.disk("disk.img", 2, 1);
    bench.tool("qemu-img convert -f raw -O vmdk -o subformat=twoGbMaxExtentSparse disk.img many.vmdk");
    let writer = File::options().write(true).open(bench.path("many-s001.vmdk")).unwrap();
    let refused = bench.see("capture many.vmdk web -q");
    assert!(refused.contains("many-s001.vmdk` is open for writing by"), "{refused}");
    drop(writer);
    // A name in tabs is a name, too; and a link is none of the disk's own files.
    let text = fs::read_to_string(bench.path("many.vmdk")).unwrap();
    let (before, behind) = text.split_once("RW ").unwrap();
    let extent = format!("x=1\nRW\t4096\tFLAT\t\"/etc/passwd\"\t0\nRW {behind}");
    fs::write(bench.path("tabs.vmdk"), format!("{before}{extent}")).unwrap();
    fs::rename(bench.path("many-s001.vmdk"), bench.path("moved")).unwrap();
    std::os::unix::fs::symlink("moved", bench.path("many-s001.vmdk")).unwrap();
    for name in ["tabs.vmdk", "many.vmdk"] {
        let refused = bench.see(&format!("capture {name} web"));
        assert!(refused.contains("needs another file, `") && refused.ends_with("exit: 11\n"), "{refused}");
    }
}

#[test]
fn a_damaged_or_endless_stream_makes_no_version() {
    let bench = Bench::new();
    bench.disk("disk.img", 2, 1);
    bench.tool("gzip -k disk.img");
    let packed = fs::read(bench.path("disk.img.gz")).unwrap();
    fs::write(bench.path("short.gz"), &packed[..packed.len() / 2]).unwrap();
    let refused = bench.see("capture short.gz web");
    assert!(refused.contains("err: error: short.gz, unpacked is damaged, or ends early"), "{refused}");
    assert!(bench.see("images").ends_with("exit: 10\n"));
}

#[test]
fn an_image_is_installed_in_the_form_that_is_asked_for() {
    let bench = Bench::new();
    bench.disk("disk.img", 8, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    let installed = bench.see("install web out.qcow2 --as qcow2");
    assert!(
        installed.starts_with("out: installed web@1 on out.qcow2: ") && installed.ends_with("exit: 0\n"),
        "{installed}"
    );
    bench.tool("qemu-img check -q out.qcow2");
    bench.tool("qemu-img compare -q -f raw -F qcow2 disk.img out.qcow2");
    // Not without a word, and not into what can't be one.
    assert!(bench.see("install web out.qcow2 --as qcow2").ends_with("exit: 11\n"));
    assert!(bench.see("install web out.qcow2 --as qcow2 --resume -q").ends_with("exit: 0\n"));
    assert!(bench.see("install web null: --as qcow2").ends_with("exit: 2\n"));
    assert!(bench.see("install web null: --grow").ends_with("exit: 2\n"));
    assert!(bench.see("install web large.qcow2 --as qcow2 --size 20M -q").ends_with("exit: 0\n"));
    assert!(bench.see("install web large.img --size 20M -q").ends_with("exit: 0\n"));
    assert_eq!(fs::metadata(bench.path("large.img")).unwrap().len(), 20 << 20);
    bench.tool("qemu-img compare -q -f raw -F qcow2 large.img large.qcow2");
    let installed = bench.see("install web small.qcow2 --as qcow2 --compress");
    assert!(installed.contains("compressed to ") && installed.ends_with("exit: 0\n"), "{installed}");
    bench.tool("qemu-img check -q small.qcow2");
    // Its table would say where the disk ended before.
    assert!(bench.see("install web wide.qcow2 --as qcow2 --compress --size 20M").ends_with("exit: 2\n"));
    assert!(!bench.path("wide.qcow2").exists());
    bench.tool("qemu-img compare -q -f raw -F qcow2 disk.img small.qcow2");
    assert!(bench.see("capture small.qcow2 again -q").ends_with("exit: 0\n"));
    assert!(bench.see("install web x.img --compress").ends_with("exit: 2\n"));
    assert!(bench.see("install web small.qcow2 --as qcow2 --compress --resume").ends_with("exit: 2\n"));
    // What would grow is said before anything is written.
    let refused = bench.see("install web other.img --size 20M --grow");
    assert!(refused.contains("no partition and no filesystem that could grow"), "{refused}");
    assert!(!bench.path("other.img").exists());
}

#[test]
fn an_image_is_installed_on_an_exported_disk() {
    let bench = Bench::new();
    bench.disk("disk.img", 8, 1);
    assert!(bench.see("capture disk.img web -q").ends_with("exit: 0\n"));
    for (mode, size, ends) in
        [("", "8M", "exit: 0\n"), ("", "7M", "exit: 11\n"), ("--read-only", "8M", "exit: 11\n")]
    {
        soil(&bench.path("there"), size[..1].parse::<u64>().unwrap() << 20);
        let before = fs::read(bench.path("there")).unwrap();
        let uri = serve(&bench, mode, "there", "socket");
        let asked = bench.see(&format!("install web {uri}"));
        assert!(asked.ends_with("exit: 11\n"), "nobody is there to confirm it: {asked}");
        let installed = bench.see(&format!("install web {uri} --yes"));
        assert!(installed.ends_with(ends), "{installed}");
        stop(&bench, "socket");
        if ends == "exit: 0\n" {
            assert_same(&bench.path("disk.img"), &bench.path("there"));
        } else {
            assert!(fs::read(bench.path("there")).unwrap() == before);
        }
    }
}
