//! A filesystem on an attached disk, mounted on this machine, and a writer of files in it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::Site;
use crate::attach_common::Attached;

/// The disk as a file, and the filesystem in it, until this is dropped.
pub(crate) struct Mounted {
    folder: PathBuf,
    file: PathBuf,
    fuse: Child,
}

impl Site {
    /// An image with an ext4 filesystem; `None` where nothing can be mounted.
    pub(crate) fn ext4_image(&self) -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() || Command::new("nbdfuse").arg("--version").output().is_err()
        {
            assert!(std::env::var_os("CI").is_none(), "nbdfuse is missing");
            return None;
        }
        self.bench.tool("truncate -s 64M fs.img");
        self.bench.tool("mkfs.ext4 -q fs.img");
        assert!(self.bench.see("capture fs.img fs -q").ends_with("exit: 0\n"));
        Some("fs")
    }

    pub(crate) fn mount(&self, host: u32, disk: &Attached) -> Mounted {
        let (folder, file) =
            (self.bench.path(&format!("mnt-host{host}")), self.bench.path(&format!("disk{host}")));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&file, "").unwrap();
        // It shows the disk as this one file.
        let mut command = Command::new("nbdfuse");
        let fuse = command.arg(&file).arg(&disk.uri).stdin(Stdio::null()).spawn().unwrap();
        while std::fs::metadata(&file).map_or(0, |found| found.len()) == 0 {
            std::thread::yield_now();
        }
        self.bench.tool(&format!("mount -o loop {} {}", file.display(), folder.display()));
        Mounted { folder, file, fuse }
    }
}

impl Mounted {
    pub(crate) fn write_files(&self) -> FileWriter {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts, folder) = (Arc::clone(&stop), Arc::clone(&count), self.folder.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let number = counts.fetch_add(1, Ordering::Relaxed);
                let inside = folder.join(format!("folder{}", number % 7));
                std::fs::create_dir_all(&inside).unwrap();
                let bytes =
                    vec![u8::try_from(number % 251).unwrap(); 100 * usize::try_from(number % 97).unwrap()];
                std::fs::write(inside.join(format!("file{}", number % 101)), bytes).unwrap();
                if number.is_multiple_of(5) {
                    let _ = std::fs::remove_file(inside.join(format!("file{}", number % 13)));
                }
            }
        });
        FileWriter { stop, count, thread }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.folder).stderr(Stdio::null()).status();
        let _ = Command::new("umount").arg(&self.folder).status();
        let _ = Command::new("umount").arg("--lazy").arg(&self.file).status();
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
    }
}

/// Makes, changes and removes files.
pub(crate) struct FileWriter {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl FileWriter {
    pub(crate) fn wait_for(&self, files: u64) {
        while self.count.load(Ordering::Relaxed) < files {
            std::thread::yield_now();
        }
    }

    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}
