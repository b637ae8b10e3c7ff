//! How much memory there is for this process: the machine's, or what its control groups allow if that is less.

use std::path::{Path, PathBuf};

/// Where control groups are: those of version 2, and below it each kind of version 1.
const GROUPS: &str = "/sys/fs/cgroup";

/// In bytes; `None` where the system does not tell.
pub(super) fn bytes_there() -> Option<u64> {
    bytes_told(|path| std::fs::read_to_string(path).ok())
}

/// What `read` finds in the files that tell: proc(5), cgroups(7).
fn bytes_told(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    });
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(place).flat_map(|(root, group, file)| {
        // Each group's limit is one of all below it. In a container the path may be the host's, and its own group is the root.
        let all = group.ancestors().map(move |group| root.join(group).join(file));
        all.filter_map(|path| read(&path)?.trim().parse().ok()).collect::<Vec<u64>>()
    });
    machine.into_iter().chain(limits).min()
}

/// Of a line of `/proc/self/cgroup`: where groups that limit memory are, which of them is ours, and the file with its limit.
fn place(line: &str) -> Option<(PathBuf, &Path, &'static str)> {
    let (kinds, group) = line.split_once(':')?.1.split_once(':')?;
    let group = Path::new(group.trim_start_matches('/'));
    let root = Path::new(GROUPS);
    match kinds {
        "" => Some((root.to_owned(), group, "memory.max")),
        _ if kinds.split(',').any(|kind| kind == "memory") => {
            Some((root.join("memory"), group, "memory.limit_in_bytes"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told by some files, each with its text.
    fn told(files: &[(&str, &str)]) -> Option<u64> {
        bytes_told(|path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_owned())
        })
    }

    const MACHINE: (&str, &str) =
        ("/proc/meminfo", "MemTotal:        8000 kB\nMemFree:         1000 kB\n");
    const OF_MACHINE: Option<u64> = Some(8000 * 1024);

    #[test]
    fn the_least_of_all_groups_above_us_counts() {
        assert_eq!(told(&[MACHINE]), OF_MACHINE);
        assert_eq!(told(&[]), None);
        let ours = ("/proc/self/cgroup", "0::/system.slice/forebay.service\n");
        let unit = "/sys/fs/cgroup/system.slice/forebay.service/memory.max";
        let slice = "/sys/fs/cgroup/system.slice/memory.max";
        assert_eq!(told(&[MACHINE, ours, (unit, "5000\n")]), Some(5000));
        assert_eq!(told(&[MACHINE, ours, (unit, "5000\n"), (slice, "4000\n")]), Some(4000));
        assert_eq!(told(&[MACHINE, ours, (unit, "max\n"), (slice, "max\n")]), OF_MACHINE);
        assert_eq!(told(&[MACHINE, ours, (unit, "9000000000\n")]), OF_MACHINE);
    }

    #[test]
    fn a_container_has_its_limit_at_the_root() {
        let ours = ("/proc/self/cgroup", "0::/\n");
        assert_eq!(told(&[MACHINE, ours, ("/sys/fs/cgroup/memory.max", "6000\n")]), Some(6000));
        let old = ("/proc/self/cgroup", "5:devices:/docker/ab\n4:memory:/docker/ab\n");
        let root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(told(&[MACHINE, old, (root, "6000\n")]), Some(6000));
        let own = "/sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes";
        let unlimited = "9223372036854771712\n";
        assert_eq!(told(&[MACHINE, old, (root, unlimited), (own, "6000\n")]), Some(6000));
        assert_eq!(told(&[MACHINE, old, (root, unlimited), (own, unlimited)]), OF_MACHINE);
    }
}
