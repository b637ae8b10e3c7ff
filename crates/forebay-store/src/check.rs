//! `forebay check`: reads everything, changes nothing.

use std::collections::BTreeMap;
use std::io;

use crate::disk::{Disk, LOCK_FILE};
use crate::error::OpenError;
use crate::listing::Listing;
use crate::log_image::read_log;
use crate::request::WorkError;
use crate::run::{self, FIRST_RECORD, run_file};
use crate::run_files::without_log;
use crate::store::Damage;

/// Something worth telling about one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A segment or run was read to its end and is as it should be.
    Sound {
        /// The file.
        file: String,
        /// Batches of a segment, live messages of a run.
        count: u64,
    },
    /// The log ends in a batch that was not written to its end: normal after a crash.
    TornTail,
    /// A run that the log does not know: left by a crash, or transient.
    Unreferenced {
        /// The file.
        file: String,
        /// A salvage keeps it, since a damaged part of the log may have known it; otherwise the next start deletes it.
        kept: bool,
    },
    /// Bytes that were durable are missing or wrong.
    Damaged {
        /// The file.
        file: String,
        /// Offset of the first damaged byte range, in bytes.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The same, and a start with `--salvage` went on without them: no start refuses it any more.
    Accepted {
        /// The file.
        file: String,
        /// Offset of the first damaged byte range, in bytes.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The directory's lock could not be looked at: nobody knows whether something writes there meanwhile.
    NotLocked {
        /// Why, in a sentence.
        what: String,
    },
    /// The check itself could not go on.
    Failed {
        /// Why, in a sentence.
        what: String,
    },
}

/// Totals of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Segments read.
    pub segments: u64,
    /// Valid batches.
    pub batches: u64,
    /// Valid records.
    pub records: u64,
    /// Runs the log knows.
    pub runs: u64,
    /// The meta map: what it says is known to its owner.
    pub meta: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Queues that ever held a persistent message; each priority of one is a queue here.
    pub queues: u64,
    /// Live messages in the log.
    pub log_messages: u64,
    /// Live messages in runs.
    pub run_messages: u64,
    /// The last stop was a clean shutdown.
    pub clean: bool,
    /// The log ends in a torn batch.
    pub torn_tail: bool,
    /// Damaged places found.
    pub damaged: u64,
    /// The check [could not go on](Finding::Failed), so nothing is known of what it has not seen.
    pub failed: bool,
}

impl CheckReport {
    /// Whether all was looked at, and nothing durable is missing or wrong.
    pub fn is_sound(&self) -> bool {
        self.damaged == 0 && !self.failed
    }
}

/// Verifies a store that is not running; holds the directory's lock meanwhile, if it has one, and changes nothing. Each finding is
/// reported as it is made.
pub fn check(disk: &dyn Disk, report: &mut dyn FnMut(Finding)) -> CheckReport {
    let mut totals = CheckReport::default();
    let result = match disk.lock_to_read() {
        Ok(()) => {
            let result = check_files(disk, &mut totals, report);
            disk.unlock();
            result
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(OpenError::Locked),
        // A copy without its lock file: nobody writes there until there is one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check_files(disk, &mut totals, report).and_then(|()| still_without_lock(disk))
        }
        // As of another user, or of a file system that has no locks.
        Err(error) => {
            report(Finding::NotLocked { what: error.to_string() });
            check_files(disk, &mut totals, report)
        }
    };
    if let Err(error) = result {
        totals.failed = true;
        report(Finding::Failed { what: error.to_string() });
    }
    totals
}

fn still_without_lock(disk: &dyn Disk) -> Result<(), OpenError> {
    let names = disk.list().map_err(OpenError::reading("list the data directory"))?;
    match names.iter().any(|name| name == LOCK_FILE) {
        true => Err(OpenError::Locked),
        false => Ok(()),
    }
}

fn check_files(
    disk: &dyn Disk,
    totals: &mut CheckReport,
    report: &mut dyn FnMut(Finding),
) -> Result<(), OpenError> {
    let listing = Listing::read(disk)?;
    let mut image = read_log(disk, &listing.epochs, true)?;
    image.damage.extend(without_log(&listing));
    for damage in &image.damage {
        totals.damaged += 1;
        report(Finding::Damaged {
            file: damage.file.clone(),
            offset: damage.offset,
            what: damage.what.clone(),
        });
    }
    for Damage { file, offset, what } in image.accepted.iter().cloned() {
        report(Finding::Accepted { file, offset, what });
    }
    for segment in &image.segments {
        let file = crate::segment::segment_file(segment.epoch);
        if !image.damage.iter().chain(&image.accepted).any(|damage| damage.file == file) {
            report(Finding::Sound { file, count: segment.batches });
        }
    }
    if image.torn_tail {
        report(Finding::TornTail);
    }
    let replay = &image.replay;
    totals.segments = image.segments.len() as u64;
    totals.batches = image.batches;
    totals.records = replay.records;
    totals.runs = replay.runs.len() as u64;
    totals.meta.clone_from(&replay.meta);
    totals.queues = replay.queues.len() as u64;
    totals.log_messages = replay.queues.values().map(|queue| queue.messages.len() as u64).sum();
    totals.run_messages = replay.runs.values().map(|run| run.live.len()).sum();
    totals.clean = replay.clean;
    totals.torn_tail = image.torn_tail;

    for (&id, run) in &replay.runs {
        let file = run_file(id);
        let mut messages = Vec::new();
        let mut found = 0;
        let mut offset = FIRST_RECORD;
        let mut result = match run::read_footer(disk, id, run.queue) {
            Ok(footer) if footer == run.footer => Ok(offset),
            Ok(_) => {
                Err((run.footer.records_end, "the footer is not the one the log knows".into()))
            }
            Err(error) => Err(describe(error)),
        };
        while result.is_ok() && offset < run.footer.records_end {
            result = run::read_records(disk, id, offset, run.footer.records_end, 0, &mut messages)
                .map_err(describe);
            found +=
                messages.drain(..).filter(|message| run.live.contains(message.0)).count() as u64;
            if let Ok(next) = result {
                offset = next;
            }
        }
        match result {
            Ok(_) if found == run.live.len() => report(Finding::Sound { file, count: found }),
            Ok(end) => {
                totals.damaged += 1;
                let what = format!("{} live messages, {found} of them found", run.live.len());
                report(Finding::Damaged { file, offset: end, what });
            }
            Err((offset, what)) => {
                totals.damaged += 1;
                report(Finding::Damaged { file, offset, what });
            }
        }
    }
    for &id in listing.runs.iter().filter(|run| !replay.runs.contains_key(run)) {
        report(Finding::Unreferenced { file: run_file(id), kept: !image.damage.is_empty() });
    }
    Ok(())
}

fn describe(error: WorkError) -> (u64, String) {
    match error {
        WorkError::Io(error) => (0, format!("cannot be read: {error}")),
        WorkError::Damaged(damage) => (damage.offset, damage.what.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::FileDisk;

    #[test]
    fn who_begins_to_write_where_there_was_no_lock_is_noticed() {
        let root = std::env::temp_dir().join(format!("forebay-unlocked-{}", std::process::id()));
        let disk = FileDisk::new(&root).unwrap();
        // Nothing that a store could begin with, so that there is something to tell.
        fs::write(root.join("log-0000000002.seg"), b"").unwrap();
        let mut findings = Vec::new();
        let mut checked = |begins: bool| {
            findings.clear();
            check(&disk, &mut |finding| {
                if begins {
                    fs::write(root.join(LOCK_FILE), b"").unwrap();
                }
                findings.push(finding);
            });
            findings.iter().any(|finding| matches!(finding, Finding::Failed { .. }))
        };
        assert!(!checked(false), "nobody is there");
        assert!(checked(true));
        fs::remove_dir_all(&root).unwrap();
    }
}
