//! The boundary to the medium: a directory of files, in a dozen calls.
//!
//! Names are relative to the data directory and contain no separator. [`FileDisk`] is the real one;
//! [`fault_disk`](crate::fault_disk) holds one in memory that breaks on demand.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A flat directory of files. Calls block; lanes call them from their own threads.
///
/// What a caller may assume after a power loss is written in `docs/storage-format.md`, section
/// "Assumptions": bytes survive [`sync_data`](Disk::sync_data), names survive
/// [`sync_dir`](Disk::sync_dir), nothing else does.
pub trait Disk: Send + Sync {
    /// Takes the lock of the directory until [`unlock`](Disk::unlock) or the end of the process;
    /// `WouldBlock` if another process holds it.
    fn lock(&self) -> io::Result<()>;
    /// Takes the lock together with others who only read, and makes and changes nothing. `NotFound` if there is no lock file: nobody
    /// writes there at this moment.
    fn lock_to_read(&self) -> io::Result<()> {
        self.lock()
    }
    /// Gives the lock back.
    fn unlock(&self);
    /// A number that nobody can foresee, as a salt (`docs/storage-format.md`, "Checksums"); 0, which is none, where the same
    /// calls are to leave the same bytes.
    fn random(&self) -> u64 {
        0
    }
    /// Names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Size of a file in bytes.
    fn len(&self, name: &str) -> io::Result<u64>;
    /// Creates an empty file, or empties an existing one.
    fn create(&self, name: &str) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`; the file must exist and grows as needed.
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Gives an empty file this length, as zeros, with room on the medium for all of them: what is written to it later
    /// needs no more. `Unsupported` where the medium can promise that only of bytes that were written.
    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()>;
    /// Reads until `buffer` is full or the file ends; returns how many bytes were read.
    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Makes the file's bytes and length survive a power loss (`fdatasync`).
    fn sync_data(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals survive a power loss (`fsync` of the directory).
    fn sync_dir(&self) -> io::Result<()>;
    /// Renames a file, replacing a file with the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// Name of the lock file.
pub(crate) const LOCK_FILE: &str = "LOCK";

/// A directory of the file system.
pub struct FileDisk {
    root: PathBuf,
    /// Files opened for writing; at most the current segment, a spare and the run being written, since
    /// renames and removals drop their entry and reads of runs open their file afresh.
    open: Mutex<HashMap<String, Arc<File>>>,
    lock: Mutex<Option<File>>,
    allocate: Allocate,
}

/// How room for an empty file is had from the file system: the file gets this length, in bytes. The standard library has
/// no call for it. See [`Disk::allocate`] for what it promises and when it is `Unsupported`.
pub type Allocate = fn(&File, u64) -> io::Result<()>;

/// Bound of [`FileDisk::open`]: the cache is emptied when it would grow beyond.
const OPEN_FILES_MAX: usize = 16;

/// How long a lane waits for a descriptor where the process, or the system, has none left. It is somebody else's sockets that
/// take them, and the store would be over for want of one.
const DESCRIPTOR_PATIENCE: Duration = Duration::from_secs(10);
const DESCRIPTOR_EVERY: Duration = Duration::from_millis(20);

impl FileDisk {
    /// A disk on a directory, which is created if it is missing.
    ///
    /// # Errors
    /// When the directory cannot be created, or its name not synced.
    pub fn new(root: impl AsRef<Path>) -> io::Result<FileDisk> {
        let root = root.as_ref().to_path_buf();
        let parents = parents_of_missing(&root);
        fs::create_dir_all(&root)?;
        // What is synced in a directory that nobody can find is lost.
        for parent in parents {
            FileDisk::opened(|| File::open(parent))?.sync_all()?;
        }
        Ok(FileDisk {
            root,
            open: Mutex::default(),
            lock: Mutex::default(),
            allocate: |_, _| Err(io::ErrorKind::Unsupported.into()),
        })
    }

    /// The same with room that is allocated by this call; without one all of it is written.
    pub fn allocating_by(mut self, allocate: Allocate) -> FileDisk {
        self.allocate = allocate;
        self
    }

    fn file(&self, name: &str) -> io::Result<Arc<File>> {
        if let Some(file) = self.cached().get(name) {
            return Ok(file.clone());
        }
        let path = self.root.join(name);
        // Without the lock: others need no descriptor for what is open.
        let file = FileDisk::opened(|| OpenOptions::new().read(true).write(true).open(&path))?;
        let file = Arc::new(file);
        let mut open = self.cached();
        if open.len() >= OPEN_FILES_MAX {
            open.clear();
        }
        open.insert(name.to_owned(), file.clone());
        Ok(file)
    }

    fn lock_by(
        &self,
        options: &OpenOptions,
        take: impl Fn(&File) -> Result<(), TryLockError>,
    ) -> io::Result<()> {
        let mut lock = self.lock.lock().expect("no holder of this lock panics");
        if lock.is_some() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let file = options.open(self.root.join(LOCK_FILE))?;
        match take(&file) {
            Ok(()) => {
                *lock = Some(file);
                Ok(())
            }
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn forget(&self, name: &str) {
        self.cached().remove(name);
    }

    fn cached(&self) -> MutexGuard<'_, HashMap<String, Arc<File>>> {
        self.open.lock().expect("no holder of this lock panics")
    }

    /// Opens a file, and waits for a descriptor if there is none. Files that are open stay so: a commit that had to open its
    /// segment again would find none either.
    fn opened(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
        /// `ENFILE` and `EMFILE`, the same on every Unix; the standard library has no kind for them.
        const NO_DESCRIPTOR: [i32; 2] = [23, 24];
        let end = Instant::now() + DESCRIPTOR_PATIENCE;
        loop {
            match open() {
                Err(error)
                    if error.raw_os_error().is_some_and(|code| NO_DESCRIPTOR.contains(&code))
                        && Instant::now() < end =>
                {
                    std::thread::sleep(DESCRIPTOR_EVERY);
                }
                opened => return opened,
            }
        }
    }
}

/// Where a name is missing on the way to a directory.
fn parents_of_missing(path: &Path) -> Vec<&Path> {
    let missing =
        path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
    let parents = missing.filter_map(Path::parent);
    let here = |parent: &Path| parent.as_os_str().is_empty();
    parents.map(|parent| if here(parent) { Path::new(".") } else { parent }).collect()
}

impl Disk for FileDisk {
    fn lock(&self) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        self.lock_by(&options, File::try_lock)
    }

    fn lock_to_read(&self) -> io::Result<()> {
        self.lock_by(OpenOptions::new().read(true), File::try_lock_shared)
    }

    fn unlock(&self) {
        let lock = self.lock.lock().expect("no holder of this lock panics").take();
        // Closing the file is not enough: a process that another thread is just starting has it, too, until it runs its program.
        // What cannot be unlocked is given back by closing it.
        let _ = lock.as_ref().map(File::unlock);
    }

    fn random(&self) -> u64 {
        // The keys of the hasher come from the operating system.
        RandomState::new().build_hasher().finish()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn len(&self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.root.join(name))?.len())
    }

    fn create(&self, name: &str) -> io::Result<()> {
        self.forget(name);
        FileDisk::opened(|| File::create(self.root.join(name))).map(drop)
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all_at(bytes, offset)
    }

    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        (self.allocate)(&*self.file(name)?, bytes)
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let file = FileDisk::opened(|| File::open(self.root.join(name)))?;
        let mut done = 0;
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn sync_data(&self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data()
    }

    fn sync_dir(&self) -> io::Result<()> {
        FileDisk::opened(|| File::open(&self.root))?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        fs::rename(self.root.join(from), self.root.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.forget(name);
        fs::remove_file(self.root.join(name))
    }
}

impl Drop for FileDisk {
    fn drop(&mut self) {
        self.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_directories_have_the_same_salt() {
        let root = std::env::temp_dir();
        let salts = [(); 3].map(|()| FileDisk::new(&root).unwrap().random());
        assert!(salts[0] != salts[1] && salts[1] != salts[2] && salts[0] != salts[2], "{salts:?}");
    }

    #[test]
    fn readers_share_a_lock_that_no_writer_shares_and_make_none() {
        let root = std::env::temp_dir().join(format!("forebay-readers-{}", std::process::id()));
        let disk = || FileDisk::new(&root).unwrap();
        let kind = |result: io::Result<()>| result.map_err(|error| error.kind());
        assert_eq!(kind(disk().lock_to_read()), Err(io::ErrorKind::NotFound));
        assert!(disk().list().unwrap().is_empty(), "it stays as it was");
        let (writer, reader, other) = (disk(), disk(), disk());
        writer.lock().unwrap();
        assert_eq!(kind(reader.lock_to_read()), Err(io::ErrorKind::WouldBlock));
        writer.unlock();
        assert_eq!(kind(reader.lock_to_read()), Ok(()));
        assert_eq!(kind(other.lock_to_read()), Ok(()));
        assert_eq!(kind(writer.lock()), Err(io::ErrorKind::WouldBlock));
        fs::remove_dir_all(&root).unwrap();
    }

    /// Between fork and exec it has all of its parent's files.
    #[test]
    fn a_lock_is_given_back_though_a_process_that_is_just_started_has_its_file() {
        let root = std::env::temp_dir().join(format!("forebay-forked-{}", std::process::id()));
        let disk = || FileDisk::new(&root).unwrap();
        let inherited = |disk: &FileDisk| {
            disk.lock().unwrap();
            disk.lock.lock().unwrap().as_ref().unwrap().try_clone().unwrap()
        };
        let unlocked = disk();
        let _kept = inherited(&unlocked);
        unlocked.unlock();
        let dropped = disk();
        let _kept = inherited(&dropped);
        drop(dropped);
        disk().lock().unwrap();
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_names_of_new_directories_are_in_those_that_hold_them() {
        let root = std::env::temp_dir().join(format!("forebay-names-{}", std::process::id()));
        let data = root.join("a/b");
        let held = [root.join("a"), root.clone(), std::env::temp_dir()];
        assert_eq!(parents_of_missing(&data), held);
        FileDisk::new(&data).unwrap();
        assert_eq!(parents_of_missing(&data), [&root; 0]);
        fs::remove_dir(&data).unwrap();
        assert_eq!(parents_of_missing(&data), [root.join("a")]);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(parents_of_missing(Path::new("forebay-no-such-name")), [Path::new(".")]);
    }
}
