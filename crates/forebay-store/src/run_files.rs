//! Run files at a start: which must be there, which nobody needs, and which are kept for somebody to look at.

use std::io;

use crate::contents::load_run;
use crate::disk::Disk;
use crate::error::{OpenError, is_bad_sector};
use crate::home::{Home, RunId, Seq};
use crate::listing::Listing;
use crate::log_image::LogImage;
use crate::recovery::remove;
use crate::replay::ReplayedRun;
use crate::request::{Request, Work, WorkError, perform};
use crate::run::{self, RunBuilder, RunDamage, lost_run_file, run_file};
use crate::run_numbers::RunNumbers;
use crate::store::Damage;

/// Every live run must have a file that says what the log says. Salvage reads them to the end; what can be read of a damaged one is
/// written to a run of its own, which takes its place in `image`, so that it need not be in memory nor
/// in one batch. Returns the damaged ones: left in place they would fail the store when their turn comes.
///
/// A crash before the new segment is there leaves all as it was, and some runs that no log knows.
pub(crate) fn check_runs(
    disk: &dyn Disk,
    image: &mut LogImage,
    numbers: &mut RunNumbers,
    salvage: bool,
) -> Result<Vec<RunId>, OpenError> {
    let mut rescued = Vec::new();
    let mut dropped = Vec::new();
    let mut damaged = Vec::new();
    for (&id, run) in &image.replay.runs {
        let mut messages = Vec::new();
        let mut found = run_footer(disk, id, run);
        if salvage && !matches!(&found, Err(WorkError::Io(error)) if !is_bad_sector(error)) {
            // Header and footer say nothing that the log does not, and each record has a checksum of its own.
            let read = load_run(disk, id, run, &mut messages);
            found = found.and(read);
            keep_rising(&mut messages);
        }
        let kept = format!("; the file is kept as {}", lost_run_file(id));
        let (offset, what, kept) = match found {
            Ok(()) => continue,
            Err(WorkError::Damaged(damage)) => {
                damaged.push(id);
                (damage.offset, damage.what.to_owned(), kept)
            }
            Err(WorkError::Io(error)) if is_bad_sector(&error) => {
                damaged.push(id);
                (0, format!("the file cannot be read to its end: {error}"), kept)
            }
            Err(WorkError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                (0, "the file is missing".to_owned(), String::new())
            }
            Err(WorkError::Io(error)) => {
                return Err(OpenError::reading(format!("read {}", run_file(id)))(error));
            }
        };
        let lost = run.live.len() - messages.len() as u64;
        let what = if salvage {
            format!("{what}; {lost} messages of queue {} are lost{kept}", run.queue)
        } else {
            what
        };
        if !salvage {
            return Err(OpenError::damaged(&run_file(id), offset, what));
        }
        dropped.push((id, Damage { file: run_file(id), offset, what }));
        if !messages.is_empty() {
            rescued.push(write_rescued(disk, numbers.take(), run, messages)?);
        }
    }
    for (id, damage) in dropped {
        image.replay.runs.remove(&id);
        image.damage.push(damage);
    }
    image.replay.runs.extend(rescued);
    Ok(damaged)
}

/// A checksum says that a message is what was written at its place, and not that a file was not put together by hand: each number is
/// taken once, and none that is below one before.
fn keep_rising(messages: &mut Vec<(Seq, Home, Vec<u8>)>) {
    let mut last = None;
    messages.retain(|(seq, ..)| {
        let rises = last.is_none_or(|last| last < *seq);
        if rises {
            last = Some(*seq);
        }
        rises
    });
}

/// Writes `messages` of the damaged `run` to a file of their own, and syncs it.
fn write_rescued(
    disk: &dyn Disk,
    id: RunId,
    run: &ReplayedRun,
    messages: Vec<(Seq, Home, Vec<u8>)>,
) -> Result<(RunId, ReplayedRun), OpenError> {
    let mut builder = RunBuilder::new();
    for (seq, home, payload) in messages {
        builder.push(seq, home, &payload);
    }
    let finished = builder.finish(id, run.queue);
    let (footer, live) = (finished.footer, finished.live);
    let work = Work::WriteRun { run: id, bytes: finished.bytes, durable: true };
    match perform(disk, Request { work }).result {
        Ok(_) => Ok((id, ReplayedRun { queue: run.queue, footer, live })),
        Err(WorkError::Io(error)) => Err(OpenError::io(format!("write {}", run_file(id)))(error)),
        Err(WorkError::Damaged(_)) => unreachable!("nothing is read"),
    }
}

fn run_footer(disk: &dyn Disk, id: RunId, run: &ReplayedRun) -> Result<(), WorkError> {
    let footer = run::read_footer(disk, id, run.queue)?;
    if footer == run.footer {
        return Ok(());
    }
    let what = "the footer is not the one the log knows";
    Err(WorkError::Damaged(RunDamage { run: id, offset: run.footer.records_end, what }))
}

/// Runs or spares without any segment. A log is never without one from its first commit on, which comes before any of them; so it was lost,
/// or not copied.
pub(crate) fn without_log(listing: &Listing) -> Option<Damage> {
    let left = match (listing.runs.is_empty(), listing.spares.is_empty()) {
        (false, _) => "runs",
        (true, false) => "spare segments",
        (true, true) => return None,
    };
    if !listing.epochs.is_empty() {
        return None;
    }
    let what =
        format!("there are {left}, and no segment, which comes before them: the log is missing");
    Some(Damage { file: "log".to_owned(), offset: 0, what })
}

/// Where parts of the log are missing, run files that the rest does not know may have been known to those.
pub(crate) fn set_unreferenced_aside(
    disk: &dyn Disk,
    listing: &Listing,
    image: &mut LogImage,
) -> Result<(), OpenError> {
    if image.damage.is_empty() {
        return Ok(());
    }
    for &run in listing.runs.iter().filter(|run| !image.replay.runs.contains_key(run)) {
        let aside = put_aside(disk, run)?;
        let what = format!("no readable part of the log knows this run; it is kept as {aside}");
        image.damage.push(Damage { file: run_file(run), offset: 0, what });
    }
    Ok(())
}

/// Deletes run files the log does not know: they were being written at a crash, or hold transient
/// messages only, or what emptied them is in the new segment now: not before that is durable.
pub(crate) fn remove_unreferenced(
    disk: &dyn Disk,
    listing: &Listing,
    image: &LogImage,
) -> Result<(), OpenError> {
    let unreferenced = listing.runs.iter().filter(|run| !image.replay.runs.contains_key(run));
    for &run in unreferenced.filter(|_| image.damage.is_empty()) {
        remove(disk, &run_file(run))?;
    }
    Ok(())
}

/// Keeps the files of damaged runs: what could be read of them is in the log now, which does not know them any more, so the next
/// start would delete them, and with them the only bytes of what could not. A crash before this still leaves them to it.
pub(crate) fn set_aside(disk: &dyn Disk, damaged: &[RunId]) -> Result<(), OpenError> {
    for &run in damaged {
        put_aside(disk, run)?;
    }
    if damaged.is_empty() {
        return Ok(());
    }
    disk.sync_dir().map_err(OpenError::io("sync the data directory"))
}

fn put_aside(disk: &dyn Disk, run: RunId) -> Result<String, OpenError> {
    let (name, aside) = (run_file(run), lost_run_file(run));
    disk.rename(&name, &aside).map_err(OpenError::io(format!("rename {name}")))?;
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_file_that_was_put_together_by_hand_each_message_is_taken_once_and_in_order() {
        let of = |seqs: &[Seq]| seqs.iter().map(|&seq| (seq, Home::NONE, Vec::new())).collect();
        let mut messages: Vec<_> = of(&[0, 3, 3, 1, 2, 4, 4, 9]);
        keep_rising(&mut messages);
        assert_eq!(messages, of(&[0, 3, 4, 9]));
        keep_rising(&mut Vec::new());
    }
}
