//! Room for the log's next segments, from the file system at once.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use std::fs::File;
use std::io;

/// Gives an empty file this length, in bytes, with blocks for all of them (`fallocate`, Linux man page fallocate(2)).
///
/// # Errors
/// `Unsupported` where the file system has no such call, or files may not become so large: then the log goes on as far as
/// they may. `StorageFull` where there is no room.
pub(crate) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    made(|| fallocate(file, FallocateFlags::empty(), 0, bytes))
}

/// A signal is no answer: some file systems begin anew, and whoever has a timer or a debugger would end the store.
fn made(call: impl FnMut() -> rustix::io::Result<()>) -> io::Result<()> {
    match retry_on_intr(call) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::FBIG) => {
            Err(io::ErrorKind::Unsupported.into())
        }
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::{Errno, allocate, made};
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::MetadataExt;

    /// A file without a name.
    fn empty(what: &str) -> File {
        let path = std::env::temp_dir().join(format!("forebay-{what}-{}", std::process::id()));
        let file = File::create_new(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn a_file_gets_its_length_and_the_blocks_for_it() {
        let file = empty("length");
        allocate(&file, 3 << 20).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), 3 << 20);
        assert!(metadata.blocks() * 512 >= 3 << 20, "{} blocks", metadata.blocks());
    }

    #[test]
    fn a_signal_in_between_is_not_the_answer() {
        for (answer, kind) in [
            (Ok(()), None),
            (Err(Errno::NOSPC), Some(io::ErrorKind::StorageFull)),
            (Err(Errno::FBIG), Some(io::ErrorKind::Unsupported)),
        ] {
            let mut answers = [Err(Errno::INTR), Err(Errno::INTR), answer].into_iter();
            let result = made(|| answers.next().expect("it has its answer"));
            assert_eq!(result.err().map(|error| error.kind()), kind);
        }
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let file = empty("refused");
        let error = allocate(&file, 1 << 50).unwrap_err();
        assert!(
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::Unsupported),
            "{error:?}"
        );
    }
}
