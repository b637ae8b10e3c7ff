//! Files that a command writes when all is done.

use std::fs::OpenOptions;
use std::path::Path;

/// Tried before, or what took an hour would be lost to a slip in a path. Leaves nothing where there was nothing.
///
/// # Errors
/// A sentence that names the file.
pub(crate) fn can_be_written(path: &Path) -> Result<(), String> {
    let was_there = path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| format!("{}: {error}", path.display()))?;
    if !was_there {
        std::fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
