//! CPU time and memory of a process, from /proc. Linux only; elsewhere nothing is known.

use std::fs;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};

/// Kernel clock ticks a second in /proc files: constant for user space on Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds that all threads of a process have used.
pub(crate) fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_cpu_seconds(&stat)
}

fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    // The name in parentheses may contain anything; fields 14 and 15 are user and system time.
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

/// CPU seconds that the threads of a process which still run have used, to the nanosecond where the kernel counts so.
pub(crate) fn running_seconds(pid: u32) -> Option<f64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let ns: u64 = tasks.filter_map(|task| thread_ns(&task.path())).sum();
    if ns > 0 { Some(ns as f64 / 1e9) } else { cpu_seconds(pid) }
}

/// CPU nanoseconds that a thread has used, by its directory in /proc.
fn thread_ns(task: &Path) -> Option<u64> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// CPU seconds of this thread.
pub(crate) fn own_thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds for which this thread could have run and had no processor; 0 where the kernel does not say.
pub(crate) fn own_thread_wait_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited_ns = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    waited_ns.unwrap_or(0) as f64 / 1e9
}

/// CPU seconds of this process.
pub(crate) fn own_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// What a process and all that it started use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    /// CPU seconds since they began.
    pub(crate) cpu_s: f64,
    pub(crate) resident_bytes: u64,
}

/// Of a process with all its descendants: a broker may do some of its work in processes of their own.
pub(crate) fn usage_of_tree(pid: u32) -> Option<Usage> {
    let mut usage = Usage { cpu_s: cpu_seconds(pid)?, resident_bytes: resident_bytes(pid)? };
    let mut waiting = vec![pid];
    while let Some(parent) = waiting.pop() {
        let tasks = fs::read_dir(format!("/proc/{parent}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
                // It may have ended meanwhile.
                usage.cpu_s += cpu_seconds(child).unwrap_or(0.0);
                usage.resident_bytes += resident_bytes(child).unwrap_or(0);
                waiting.push(child);
            }
        }
    }
    Some(usage)
}

/// What a process is called, in 15 bytes at most.
pub(crate) fn name(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// The process on this machine that listens on a TCP port, if we may look.
pub(crate) fn listener(port: u16) -> Option<u32> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let tables = tables.into_iter().flatten();
    let inode = tables.into_iter().find_map(|table| listening_inode(&table, port))?;
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|file| fs::read_link(file.path()).ok())
            .any(|target| target.as_os_str() == wanted.as_str())
    })
}

/// The inode of the socket that listens on `port`, from a table of /proc/net.
fn listening_inode(table: &str, port: u16) -> Option<u64> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        let listens =
            u16::from_str_radix(local_port, 16) == Ok(port) && fields.get(3) == Some(&LISTEN);
        if listens { fields.get(9)?.parse().ok() } else { None }
    })
}

/// Resident memory of a process in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Files that are open beside connections: a poller, output, what is read of /proc.
const OTHER_FILES: u64 = 32;

/// Allows as many open files as the system lets us have, and refuses more connections than these: a broker is not to be
/// loaded with thousands of them before the first that fails.
///
/// # Errors
/// A sentence.
pub(crate) fn may_open(connections: usize) -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If it is refused, opening the last connections will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    have_room(connections, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn have_room(connections: usize, files: u64) -> Result<(), String> {
    match connections as u64 > files.saturating_sub(OTHER_FILES) {
        true => Err(format!(
            "{connections} connections are as many open files, and this process may have {files} of them, {OTHER_FILES} for \
             other things: take fewer, or raise the limit (ulimit -n)"
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_connections_than_files_are_refused_before_the_first() {
        assert_eq!(have_room(992, 1024), Ok(()));
        let refused = have_room(993, 1024).unwrap_err();
        assert!(refused.contains("993 connections") && refused.contains("ulimit -n"), "{refused}");
        assert!(have_room(1, 0).is_err() && have_room(usize::MAX, u64::MAX).is_err());
        assert_eq!(may_open(1), Ok(()));
    }

    #[test]
    fn the_process_behind_a_port_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(super::listener(port), Some(std::process::id()));
        assert!(name(std::process::id()).is_some_and(|name| !name.is_empty()));
        assert!(usage_of_tree(std::process::id()).unwrap().resident_bytes > 100_000);
    }

    /// Of this thread alone: others of the process, with what they computed, may end meanwhile.
    #[test]
    fn what_a_thread_computes_is_counted() {
        let this = Path::new("/proc/thread-self");
        let before_ns = thread_ns(this).unwrap();
        let began = own_thread_cpu_seconds();
        while own_thread_cpu_seconds() < began + 0.02 {}
        let computed_ns = thread_ns(this).unwrap() - before_ns;
        assert!(computed_ns >= 9_000_000, "{computed_ns} ns");
        assert!(running_seconds(std::process::id()).unwrap() > 0.009);
    }

    #[test]
    fn a_table_of_sockets_tells_who_listens() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:1628 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 11 1\n   1: 0100007F:1628 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1\n";
        assert_eq!(listening_inode(table, 5672), Some(77));
        assert_eq!(listening_inode(table, 5673), None);
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_confuse() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 5 0 0 0 150 50 0 0 20 0 1 0 99 1 1";
        assert_eq!(parse_cpu_seconds(stat), Some(2.0));
    }
}
