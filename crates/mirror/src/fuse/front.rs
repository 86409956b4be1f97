//! Answers the requests of the kernel. A request that cannot wait for anything is answered at once; others are
//! handed to the [`ThreadPool`]. See fuse(4) and the kernel's `Documentation/filesystems/fuse/`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, ErrorKind, Result};
use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, WriteFlags,
};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{FallocateFlags, OFlags};

use super::bytes::Sought;
use super::control::{Control, IOCTL_CLONE, IOCTL_COMMIT, LINE_BYTES_MAX};
use super::disks::{DiskName, Disks, OpenDisk};
use super::names::{Names, Place};
use super::thread_pool::ThreadPool;
use crate::{Durability, Space};

/// Maximum length of a write in bytes. Reads have the kernel's own limit.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of requests that the kernel keeps in flight for readahead and asynchronous I/O.
const BACKGROUND_MAX: u16 = 128;
/// `lseek(2)`: the next data.
const SEEK_DATA: i32 = 3;
/// `lseek(2)`: the next hole.
const SEEK_HOLE: i32 = 4;

thread_local! {
    /// The buffer for reads that a thread answers directly.
    static MEMORY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An open file or folder.
enum Handle {
    Disk(DiskName, OpenDisk),
    /// The entries of a folder at the time when it was opened.
    List(Vec<(String, Place)>),
    /// The text of `_status`, or the last answer of `_control`.
    Text(Mutex<String>),
}

/// The state that all threads share.
pub(super) struct Shared {
    pub names: Names,
    pub disks: Arc<Disks>,
    pub control: Control,
    pub pool: ThreadPool,
    pub handles: Handles,
}

/// The table of open files and folders.
#[derive(Default)]
pub(super) struct Handles {
    open: RwLock<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

impl Handles {
    fn insert(&self, handle: Handle) -> FileHandle {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.write().insert(number, Arc::new(handle));
        FileHandle(number)
    }

    fn get(&self, number: FileHandle) -> Option<Arc<Handle>> {
        self.open.read().get(&number.0).cloned()
    }

    fn remove(&self, number: FileHandle) -> Option<Arc<Handle>> {
        self.open.write().remove(&number.0)
    }
}

/// See the module.
pub(super) struct Front {
    shared: Arc<Shared>,
    passthrough: bool,
}

impl Front {
    /// A front end over the shared state. `passthrough`: the kernel may read complete versions directly.
    pub(super) fn new(shared: Arc<Shared>, passthrough: bool) -> Self {
        Self { shared, passthrough }
    }

    fn hand_over(&self, job: impl FnOnce(&Shared, &mut Vec<u8>) + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        self.shared.pool.hand_over(Box::new(move |memory| job(&shared, memory)));
    }

    fn disk(&self, handle: FileHandle) -> std::result::Result<(DiskName, OpenDisk), Errno> {
        match self.shared.handles.get(handle).as_deref() {
            Some(Handle::Disk(name, open)) => Ok((name.clone(), open.clone())),
            Some(_) => Err(Errno::EINVAL),
            None => Err(Errno::EBADF),
        }
    }
}

/// The error number for a request about a name, or for a command.
fn errno(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Exists => Errno::EEXIST,
        ErrorKind::Invalid => Errno::EINVAL,
        ErrorKind::Refused | ErrorKind::Denied | ErrorKind::Untrusted => Errno::EBUSY,
        ErrorKind::Full => Errno::ENOSPC,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::Unreachable => Errno::ETIMEDOUT,
        _ => Errno::EIO,
    }
}

impl Shared {
    /// The error number for a failed read or write; the cause is logged.
    fn failed(&self, name: &DiskName, error: &Error) -> Errno {
        match error.kind() {
            ErrorKind::Full => return Errno::ENOSPC,
            ErrorKind::Invalid => return Errno::EFBIG,
            _ => self.disks.complain(&name.to_string(), error),
        }
        Errno::EIO
    }

    /// The error number for a request about a name. The error is logged unless it is an ordinary mistake of the
    /// program.
    fn missed(&self, name: &str, error: &Error) -> Errno {
        if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Exists) {
            self.disks.complain(name, error);
        }
        errno(error)
    }

    fn reply_to(&self, name: &DiskName, done: Result<()>, reply: ReplyEmpty) {
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.failed(name, &error)),
        }
    }

    fn lookup(&self, parent: INodeNo, name: &str, reply: ReplyEntry) {
        let place = self.names.place(parent).and_then(|parent| parent.child(name));
        let found = place.and_then(|place| Ok((self.names.attributes(&place)?, place)));
        match found {
            Ok((attributes, place)) => {
                self.names.remember(&place);
                reply.entry(&place.lifetime(), &attributes, Generation(0));
            }
            Err(error) => reply.error(self.missed(name, &error)),
        }
    }

    fn attributes(&self, number: INodeNo, reply: ReplyAttr) {
        let found = self.names.place(number);
        match found.and_then(|place| Ok((self.names.attributes(&place)?, place))) {
            Ok((attributes, place)) => reply.attr(&place.lifetime(), &attributes),
            Err(error) => reply.error(self.missed("stat", &error)),
        }
    }

    /// The error if these attributes cannot be changed. `gives`: mode, user or group shall change. New times are
    /// silently ignored.
    fn refusal(&self, number: INodeNo, size: Option<u64>, gives: bool) -> Option<Errno> {
        let found = self.names.place(number);
        match found.and_then(|place| Ok((self.names.attributes(&place)?.size, place))) {
            Ok((_, Place::Disk(DiskName::Version(..)))) => Some(Errno::EROFS),
            // Owner and mode are fixed, and disks neither grow nor shrink.
            Ok(_) if gives => Some(Errno::EPERM),
            Ok((_, Place::Control)) => None,
            Ok((is, Place::Disk(_))) => size.filter(|size| *size != is).map(|_| Errno::EPERM),
            Ok(_) => Some(Errno::EPERM),
            Err(error) => Some(errno(&error)),
        }
    }

    fn open(&self, number: INodeNo, asked: OpenFlags, reply: ReplyOpen) {
        let writes = asked.acc_mode() != OpenAccMode::O_RDONLY;
        let name = match self.names.place(number) {
            Ok(Place::Disk(DiskName::Version(..))) if writes => return reply.error(Errno::EROFS),
            Ok(Place::Disk(name)) => name,
            Ok(place @ (Place::Control | Place::Status)) => {
                let text =
                    if place == Place::Control { self.control.answer() } else { self.control.status() };
                let handle = self.handles.insert(Handle::Text(Mutex::new(text)));
                return reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO);
            }
            Ok(_) => return reply.error(Errno::EISDIR),
            Err(error) => return reply.error(errno(&error)),
        };
        let opened = self.disks.open(&name, &|file| reply.open_backing(file));
        let open = match opened {
            Ok(open) => open,
            Err(error) => return reply.error(self.missed(&name.to_string(), &error)),
        };
        let mut flags = FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        let backing = open.backing.clone();
        if matches!(name, DiskName::Version(..)) && backing.is_none() {
            // The page cache of a version stays valid, since versions never change. With passthrough there is none,
            // and the kernel rejects the flag.
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        }
        if backing.is_none() && asked.0 & OFlags::DIRECT.bits().cast_signed() != 0 {
            // With this flag, the reply itself completes a direct request. Without it the kernel completes all
            // direct requests in the background, and has to wake the waiting program once more.
            flags |= FopenFlags::FOPEN_DIRECT_IO;
        }
        let handle = self.handles.insert(Handle::Disk(name, open));
        match backing {
            Some(backing) => reply.opened_passthrough(handle, flags, &backing),
            None => reply.opened(handle, flags),
        }
    }

    fn open_folder(&self, number: INodeNo, reply: ReplyOpen) {
        let listed = self.names.place(number).and_then(|place| self.names.list(&place));
        match listed {
            Ok(list) => reply.opened(self.handles.insert(Handle::List(list)), FopenFlags::empty()),
            Err(error) => reply.error(self.missed("list", &error)),
        }
    }

    /// Executes a line that was written to the control file.
    fn command(&self, text: &Mutex<String>, line: &[u8], reply: ReplyWrite) {
        let count = u32::try_from(line.len()).expect("lines are bounded");
        let done = self.control.line(&String::from_utf8_lossy(line));
        *text.lock() = self.control.answer();
        match done {
            Ok(_) => reply.written(count),
            Err(error) => reply.error(errno(&error)),
        }
    }
}

/// The part of a text that a read requests.
fn part(text: &str, offset: u64, count: u32) -> &[u8] {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
    let end = from.saturating_add(count as usize).min(text.len());
    &text.as_bytes()[from..end]
}

impl Filesystem for Front {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Older kernels do not have all of these; failures are ignored.
        for flag in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS] {
            let _ = config.add_capabilities(flag);
        }
        if self.passthrough && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() {
            // 2, since the cache folder may be on an overlay file system, which counts as one level.
            let _ = config.set_max_stack_depth(2);
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let Some(name) = name.to_str().map(str::to_owned) else { return reply.error(Errno::ENOENT) };
        self.hand_over(move |shared, _| shared.lookup(parent, &name, reply));
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        self.shared.names.forget(number, times);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.hand_over(move |shared, _| shared.attributes(number, reply));
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let gives = mode.is_some() || uid.is_some() || gid.is_some();
        self.hand_over(move |shared, _| match shared.refusal(number, size, gives) {
            Some(refusal) => reply.error(refusal),
            None => shared.attributes(number, reply),
        });
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        self.hand_over(move |shared, _| match shared.names.place(number) {
            Ok(Place::Link(_, reference)) => match shared.names.target(&reference) {
                Ok(target) => reply.data(target.as_bytes()),
                Err(error) => reply.error(shared.missed("link", &error)),
            },
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let place = self.shared.names.place(parent).and_then(|place| place.child(&name.to_string_lossy()));
        let Ok(Place::Disk(DiskName::Clone(name))) = place else { return reply.error(Errno::EPERM) };
        self.hand_over(move |shared, _| match shared.control.line(&format!("remove {name}")) {
            Ok(_) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: fuser::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let place = self.shared.names.place(parent).and_then(|place| place.child(&name.to_string_lossy()));
        match place {
            Err(error) => reply.error(errno(&error)),
            Ok(place) => {
                let error = self.shared.control.refuse_rename(&place);
                self.shared.disks.complain("rename", &error);
                reply.error(Errno::EPERM);
            }
        }
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.hand_over(move |shared, _| shared.open(number, flags, reply));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        count: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let handle = self.shared.handles.get(handle);
        let (name, open) = match handle.as_deref() {
            Some(Handle::Disk(name, open)) => (name, open),
            Some(Handle::Text(text)) => {
                let text = text.lock();
                return reply.data(part(&text, offset, count));
            }
            _ => return reply.error(Errno::EBADF),
        };
        self.shared.disks.reads.fetch_add(1, Ordering::Relaxed);
        let count = count as usize;
        let left = MEMORY.with_borrow_mut(|memory| match open.bytes.read_now(offset, count, memory) {
            Ok(Some(bytes)) => {
                reply.data(bytes);
                None
            }
            // After an error, the thread pool tries again and reports why it fails.
            Ok(None) | Err(_) => Some(reply),
        });
        let Some(reply) = left else { return };
        let (name, open) = (name.clone(), open.clone());
        self.hand_over(move |shared, memory| match open.bytes.read(offset, count, memory) {
            Ok(bytes) => reply.data(bytes),
            Err(error) => reply.error(shared.failed(&name, &error)),
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(handle) = self.shared.handles.get(handle) else { return reply.error(Errno::EBADF) };
        let count = u32::try_from(bytes.len()).expect("the kernel bounds requests");
        let open = match &*handle {
            Handle::Disk(DiskName::Clone(_), open) => open,
            Handle::Disk(..) => return reply.error(Errno::EROFS),
            Handle::Text(_) if bytes.len() > LINE_BYTES_MAX => return reply.error(Errno::EINVAL),
            Handle::Text(_) => {
                let line = bytes.to_vec();
                return self.hand_over(move |shared, _| {
                    if let Handle::Text(text) = &*handle {
                        shared.command(text, &line, reply);
                    }
                });
            }
            Handle::List(_) => return reply.error(Errno::EBADF),
        };
        self.shared.disks.writes.fetch_add(1, Ordering::Relaxed);
        let durable = flags.0 & OFlags::DSYNC.bits().cast_signed() != 0;
        if !durable && let Ok(true) = open.bytes.write_now(offset, bytes) {
            return reply.written(count);
        }
        let durability = if durable { Durability::Durable } else { Durability::Cached };
        let (handle, bytes) = (Arc::clone(&handle), bytes.to_vec());
        self.hand_over(move |shared, _| {
            let Handle::Disk(name, open) = &*handle else { return };
            match open.bytes.write(offset, &bytes, durability) {
                Ok(()) => reply.written(count),
                Err(error) => reply.error(shared.failed(name, &error)),
            }
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // close(2) guarantees nothing. The last one makes everything durable, in `release`.
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let removed = self.shared.handles.remove(handle);
        let Some(Handle::Disk(name, _)) = removed.as_deref() else { return reply.ok() };
        let name = name.clone();
        self.shared.disks.leave(&name);
        self.hand_over(move |shared, _| {
            drop(removed);
            shared.disks.close_if_unused(&name);
            reply.ok();
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.disk(handle) {
            Ok((name, open)) => {
                self.hand_over(move |shared, _| shared.reply_to(&name, open.bytes.flush(), reply))
            }
            Err(Errno::EINVAL) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.hand_over(move |shared, _| shared.open_folder(number, reply));
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let handle = self.shared.handles.get(handle);
        let Some(Handle::List(list)) = handle.as_deref() else { return reply.error(Errno::EBADF) };
        let dots = [".", ".."].map(|name| (name, number, fuser::FileType::Directory));
        let others = list.iter().map(|(name, place)| (name.as_str(), place.number(), place.kind()));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (name, number, kind)) in (1..).zip(dots.into_iter().chain(others)).skip(from) {
            if reply.add(number, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.shared.handles.remove(handle);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match rustix::fs::statvfs(self.shared.disks.folder()) {
            Ok(is) => {
                let unit = u32::try_from(is.f_frsize).unwrap_or(4096);
                reply.statfs(is.f_blocks, is.f_bfree, is.f_bavail, 0, 0, unit, 255, unit);
            }
            Err(error) => reply.error(Errno::from_i32(error.raw_os_error())),
        }
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: IoctlFlags,
        number: u32,
        argument: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        let name = match (number, self.disk(handle)) {
            (IOCTL_CLONE | IOCTL_COMMIT, Ok((name, _))) => name,
            // Programs test by ioctls whether this is a block device; it is none.
            (_, Ok(_) | Err(Errno::EINVAL)) => return reply.error(Errno::ENOTTY),
            (_, Err(error)) => return reply.error(error),
        };
        let text = argument.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text).trim().to_owned();
        self.hand_over(move |shared, _| match shared.control.ioctl(&name, number, &text) {
            Ok(answer) => {
                let mut bytes = answer.into_bytes();
                bytes.resize(LINE_BYTES_MAX, 0);
                reply.ioctl(0, &bytes);
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        count: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (name, open) = match self.disk(handle) {
            Ok((DiskName::Version(..), _)) => return reply.error(Errno::EROFS),
            Ok(found) => found,
            Err(error) => return reply.error(error),
        };
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let keeps_size = mode.contains(FallocateFlags::KEEP_SIZE);
        if !keeps_size && offset.saturating_add(count) > open.bytes.size_bytes() {
            return reply.error(Errno::EFBIG);
        }
        let space = match mode.difference(FallocateFlags::KEEP_SIZE) {
            FallocateFlags::PUNCH_HOLE if keeps_size => Space::Free,
            FallocateFlags::ZERO_RANGE => Space::Keep,
            // Allocation (mode 0) succeeds without an effect: space is never reserved.
            other if other.is_empty() => return reply.ok(),
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        self.hand_over(move |shared, _| {
            shared.reply_to(&name, open.bytes.zero(offset, count, space), reply);
        });
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let sought = match whence {
            SEEK_DATA => Sought::Data,
            SEEK_HOLE => Sought::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let (name, open) = match self.disk(handle) {
            Ok(found) => found,
            Err(error) => return reply.error(error),
        };
        let Ok(from) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.hand_over(move |shared, _| match open.bytes.seek(from, sought) {
            Ok(Some(at)) => reply.offset(at.cast_signed()),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(shared.failed(&name, &error)),
        });
    }
}
