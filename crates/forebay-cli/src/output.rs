//! Files that a command writes when all is done.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What may be read by whom the umask allows.
const FOR_ALL: u32 = 0o666;
/// What only its owner may read.
pub(crate) const FOR_ITS_OWNER: u32 = 0o600;

/// Tried before, or what took an hour would be lost to a slip in a path. Leaves nothing where there was nothing.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn can_be_written(path: &Path) -> Result<(), String> {
    if path == Path::new("-") {
        return Err("-: this goes to a file; /dev/stdout names standard output".into());
    }
    let named = |error: io::Error| format!("{}: {error}", path.display());
    let was_there = path.exists();
    OpenOptions::new().append(true).create(true).open(path).map_err(named)?;
    if !was_there {
        // A link that leads nowhere leads here now, and stays.
        path.canonicalize().and_then(fs::remove_file).map_err(named)?;
    }
    Ok(())
}

/// Writes text for people or programs, as [`replace`] does.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<(), String> {
    replace(path, text.as_bytes(), FOR_ALL).map_err(|error| format!("{}: {error}", path.display()))
}

/// The whole file or none: the one that was there stays until the new one is written. Its mode is `mode`, but for what was not
/// allowed to the one before and what the umask forbids.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let before = fs::metadata(path).ok();
    let place = match &before {
        // A link stays one, and what it leads to is replaced.
        Some(it) if it.is_file() => path.canonicalize()?,
        None if !path.is_symlink() => path.to_owned(),
        // A pipe, a terminal, or the end of a link where nothing is that could be lost.
        _ => return write_over(path, bytes, mode),
    };
    let before = before.map(|it| it.permissions().mode());
    let new = beside(&place);
    let written = OpenOptions::new()
        .write(true)
        // Whatever lies there is somebody else's, be it a link to what he would have overwritten.
        .create_new(true)
        .mode(before.map_or(mode, |before| mode & before))
        .open(&new)
        .and_then(|mut file| {
            let written = file.write_all(bytes).and_then(|()| file.sync_all());
            let written = written.and_then(|()| fs::rename(&new, &place));
            written.inspect_err(|_| drop(fs::remove_file(&new)))
        });
    written.or_else(|error| {
        let stays_private = before.is_some_and(|before| before & FOR_ALL & !mode == 0);
        match is_fixed(&error) && stays_private {
            true => write_over(&place, bytes, mode),
            false => Err(error),
        }
    })
}

/// Where a new file is until it is whole: nobody else's name.
fn beside(place: &Path) -> PathBuf {
    place.with_file_name(format!(".forebay-{}.new", std::process::id()))
}

/// Whether nothing can be put in the place of the file, by whomever it can be written: it is mounted, or in a directory of others.
fn is_fixed(error: &io::Error) -> bool {
    use ErrorKind::{PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

fn write_over(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode).open(path)?.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory that goes away with it.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            let name = format!("forebay-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Dir(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_link_that_leads_nowhere_stays_when_it_is_tried_and_leads_to_what_is_written() {
        let dir = Dir::new("output-link");
        let (link, target) = (dir.0.join("link"), dir.0.join("target"));
        symlink("target", &link).unwrap();
        can_be_written(&link).unwrap();
        assert!(link.is_symlink() && !target.exists(), "it was tried and changed");
        for text in ["first", "second"] {
            replace(&link, text.as_bytes(), FOR_ITS_OWNER).unwrap();
            assert!(link.is_symlink());
            assert_eq!(fs::read_to_string(&target).unwrap(), text);
            assert_eq!(mode(&target), FOR_ITS_OWNER);
        }
        symlink("no/such/place", dir.0.join("lost")).unwrap();
        assert!(can_be_written(&dir.0.join("lost")).is_err());
    }

    #[test]
    fn no_file_is_called_like_standard_output() {
        let refused = can_be_written(Path::new("-")).unwrap_err();
        assert!(refused.contains("/dev/stdout") && !Path::new("-").exists(), "{refused}");
        can_be_written(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn what_cannot_be_written_whole_leaves_the_file_that_was_there() {
        let dir = Dir::new("output-whole");
        let path = dir.0.join("report");
        write_text(&path, "before").unwrap();
        fs::create_dir(beside(&path)).unwrap();
        assert!(write_text(&path, "after").is_err(), "its new file has no place");
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        fs::remove_dir(beside(&path)).unwrap();
        write_text(&path, "after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1);
    }

    #[test]
    fn what_lies_beside_it_is_somebody_elses() {
        let dir = Dir::new("output-beside");
        let path = dir.0.join("report");
        let [others, linked] = ["report.new", "linked"].map(|name| dir.0.join(name));
        fs::write(&others, "mine").unwrap();
        fs::write(&linked, "mine").unwrap();
        write_text(&path, "report").unwrap();
        symlink(&linked, beside(&path)).unwrap();
        assert!(write_text(&path, "again").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "report");
        for file in [others, linked] {
            assert_eq!(fs::read_to_string(file).unwrap(), "mine");
        }
    }

    #[test]
    fn what_was_private_stays_so() {
        let dir = Dir::new("output-private");
        let path = dir.0.join("report");
        replace(&path, b"before", FOR_ITS_OWNER).unwrap();
        write_text(&path, "after").unwrap();
        assert_eq!(mode(&path), FOR_ITS_OWNER);
    }
}
