//! What the process takes of the machine's memory, as the operating system counts it.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// An open `/proc/self/statm`, of which each read is a fresh answer.
pub(crate) struct Resident {
    statm: File,
    page_bytes: u64,
}

impl Resident {
    /// `None` where the system has no such file.
    pub(crate) fn open() -> Option<Resident> {
        let statm = File::open("/proc/self/statm").ok()?;
        let resident = Resident { statm, page_bytes: rustix::param::page_size() as u64 };
        resident.bytes().is_some().then_some(resident)
    }

    /// Resident bytes now: code, heap and stacks; not what the kernel holds for sockets, nor its cache of files.
    pub(crate) fn bytes(&self) -> Option<u64> {
        // Seven numbers of at most 20 digits.
        let mut line = [0; 160];
        let len = self.statm.read_at(&mut line, 0).ok()?;
        Some(pages(&line[..len])? * self.page_bytes)
    }
}

/// The second field of a line of `statm`, proc_pid_statm(5): resident pages.
fn pages(line: &[u8]) -> Option<u64> {
    str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Resident, pages};

    #[test]
    fn the_second_number_is_what_is_resident() {
        assert_eq!(pages(b"31415 926 535 89 0 793 0\n"), Some(926));
        assert_eq!(pages(b"31415"), None);
        assert_eq!(pages(b"31415 many"), None);
    }

    #[test]
    fn what_is_taken_shows() {
        let resident = Resident::open().expect("Linux has /proc/self/statm");
        let before = resident.bytes().unwrap();
        let taken = vec![1_u8; 64 << 20];
        assert!(resident.bytes().unwrap() > before + (48 << 20));
        drop(taken);
    }
}
