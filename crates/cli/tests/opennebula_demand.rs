//! OpenNebula's drivers, with disks whose image comes when it is read: hosts show images by `diskcast mount`.

use crate::opennebula_common::{Cloud, Disk};

#[test]
fn a_disk_is_there_before_its_image_is() {
    let Some(cloud) = Cloud::new(2, 16) else { return };
    let import = "<PATH>diskcast:web</PATH><PERSISTENT>1</PERSISTENT>";
    assert_eq!(cloud.store("cp", 7, import).unwrap().trim(), "main:one-7 qcow2");
    cloud.machine(1, 3, &[Disk { copy: "demand", size_mb: 24, ..Disk::of("main:one-7") }]);
    let (disk, folder, there) = (cloud.place(1, 1, "disk.0"), cloud.place(1, 1, ""), cloud.place(2, 1, ""));
    let link = format!("LN diskcast main:one-7 {disk} 1 101");
    let refused = cloud.transfer(1, &link).unwrap_err();
    assert!(refused.contains("no images are mounted at"), "{refused}");
    assert!(!cloud.host_path(1, "100/1/disk.0").exists());

    let received = || cloud.star.traffic().unwrap()[1].received.bytes;
    let mount = cloud.mounts(1);
    let before = received();
    assert_eq!(cloud.transfer(1, &link), Ok(()));
    assert_eq!(cloud.transfer(1, &link), Ok(()), "said twice");
    let taken = received() - before;
    assert!(taken < 256 << 10, "bytes that the host received: {taken}");
    // QEMU has the words for what is read: the image's own bytes, and zeros behind them.
    let path = cloud.folder.join("datastores/100/1/disk.0");
    let (path, image) = (path.display(), cloud.bench.path("disk.img"));
    let about: serde_json::Value =
        serde_json::from_str(&cloud.on(1, &format!("qemu-img info --output=json {path}"))).unwrap();
    assert_eq!(
        (&about["virtual-size"], &about["backing-filename-format"]),
        (&serde_json::json!(24 << 20), &serde_json::json!("raw"))
    );
    cloud.on(1, &format!("qemu-img compare -f raw -F qcow2 {} {path}", image.display()));
    assert!(received() - before > 4 << 20, "it comes when it is read");
    cloud.on(1, &format!("qemu-io -f qcow2 -c 'write -P 7 1M 64k' {path}"));

    // It moves to where its image can be read, and nowhere else.
    let lines = format!("MV diskcast {folder} {there} 1 100");
    let refused = cloud.transfer(1, &lines).unwrap_err();
    assert!(refused.contains("needs a mount of the repository"), "{refused}");
    assert!(cloud.host_path(1, "100/1/disk.0").exists());
    let other = cloud.mounts(2);
    assert_eq!(cloud.transfer(1, &lines), Ok(()));
    assert!(!cloud.host_path(1, "100/1").exists());
    cloud.on(2, &format!("qemu-io -f qcow2 -c 'read -P 7 1M 64k' {path} | grep failed && exit 1; true"));
    // What it wrote is the next version.
    let disk = cloud.place(2, 1, "disk.0");
    assert_eq!(cloud.transfer(1, &format!("MVDS diskcast {disk} main:one-7 1 101")), Ok(()));
    assert!(cloud.bench.see("install one-7@2 again.img --yes -q").ends_with("exit: 0\n"));
    let (again, image) =
        (std::fs::read(cloud.bench.path("again.img")).unwrap(), std::fs::read(image).unwrap());
    let (written, end) = (1 << 20..(1 << 20) + (64 << 10), image.len());
    assert!(again[written.clone()].iter().all(|byte| *byte == 7));
    assert!(
        again[..written.start] == image[..written.start] && again[written.end..end] == image[written.end..]
    );
    assert!(again.len() == 24 << 20 && again[end..].iter().all(|byte| *byte == 0));
    drop((mount, other));
}
