//! `forebay check`: is everything that was confirmed still there and intact? Reads, changes nothing.

use crate::exit::Exit;
use forebay_server::Declared;
use forebay_store::{CheckReport, FileDisk, Finding, check};
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};

/// Flags of `forebay check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the message store
    #[arg(long, value_name = "DIR", env = "FOREBAY_DATA_DIR", default_value = "./forebay-data")]
    data_dir: PathBuf,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Exit code 0 when nothing durable is missing or wrong, else 1.
pub(crate) fn run(args: Args) -> Exit {
    let dir = args.data_dir.display();
    // A disk makes its directory, and a check must not.
    match std::fs::metadata(&args.data_dir) {
        Ok(found) if !found.is_dir() => {
            return Exit::Failed
                .because(format!("cannot check {dir}: it is a file, not a directory"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Exit::Failed.because(format!("there is no data directory {dir}"));
        }
        Err(error) => return Exit::Failed.because(format!("cannot check {dir}: {error}")),
    }
    match has_store(&args.data_dir) {
        Ok(true) => {}
        // What lies there may be a backup that was not copied, or something else altogether.
        Ok(false) => {
            return Exit::Failed.because(format!("there are no data of a broker in {dir}"));
        }
        Err(error) => return Exit::Failed.because(format!("cannot check {dir}: {error}")),
    }
    let disk = match FileDisk::new(&args.data_dir) {
        Ok(disk) => disk,
        Err(error) => return Exit::Failed.because(format!("cannot use {dir}: {error}")),
    };
    let (mut findings, mut failed) = (Vec::new(), None);
    let report = check(&disk, &mut |finding| {
        match args.json {
            true => findings.push(as_json(&finding)),
            false => {
                if let Some(sentence) = sentence(&finding) {
                    print_line!("{sentence}");
                }
            }
        }
        if let Finding::Failed { what } = finding {
            failed = Some(what);
        }
    });
    let declared = Declared::in_store(&report.meta).map_err(|error| error.to_string());
    let sound = report.is_sound() && declared.is_ok();
    match (args.json, failed) {
        (true, failed) => {
            if let Err(what) = &declared {
                findings.push(json!({ "finding": "unreadable_topology", "what": what }));
            }
            // Of a store that was not read nothing is known, and not that it declares nothing.
            let declared = declared.ok().filter(|_| failed.is_none());
            let json = report_as_json(&report, sound, declared, failed.as_deref(), findings);
            print_line!("{json:#}");
        }
        (false, None) => {
            if let Err(what) = &declared {
                print_line!("{what}");
            }
            print_line!("{}", summary(&report, sound, &declared.unwrap_or_default()));
        }
        (false, Some(what)) => {
            return Exit::Failed.because(format!("{dir} is not checked: {what}"));
        }
    }
    if sound { Exit::Done } else { Exit::Failed }
}

/// Whether any file is there that a store keeps: a segment of the log or a run.
fn has_store(directory: &Path) -> io::Result<bool> {
    let mut is_there = false;
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        is_there |= name.ends_with(".seg") || name.ends_with(".run");
    }
    Ok(is_there)
}

/// `None` for what is told as the end of the command.
fn sentence(finding: &Finding) -> Option<String> {
    Some(match finding {
        Finding::Sound { file, count } if file.ends_with(".run") => {
            format!("{file}: sound, {}", counted(*count, "live message"))
        }
        Finding::Sound { file, count } => {
            format!("{file}: sound, {}", counted_by(*count, "batch", "batches"))
        }
        Finding::TornTail => {
            "the log ends in a batch that was not written to its end: normal after a crash, \
             nothing confirmed was in it"
                .to_owned()
        }
        Finding::Unreferenced { file, kept: true } => format!(
            "{file}: no readable part of the log knows it, a start with --salvage sets it aside"
        ),
        Finding::Unreferenced { file, kept: false } => {
            format!("{file}: left over, the next start deletes it")
        }
        Finding::Damaged { file, offset, what } => {
            format!("{file}: DAMAGED at byte {offset}: {what}")
        }
        Finding::Accepted { file, offset, what } => format!(
            "{file}: damaged at byte {offset}: {what}; a start with --salvage went on without it"
        ),
        Finding::NotLocked { what } => format!(
            "the LOCK file cannot be used ({what}): this says nothing if a broker uses the directory meanwhile"
        ),
        Finding::Failed { .. } => return None,
    })
}

fn summary(report: &CheckReport, sound: bool, declared: &Declared) -> String {
    let verdict = match (sound, report.clean) {
        (true, true) => "sound, stopped cleanly",
        (true, false) => "sound, not stopped cleanly",
        (false, _) => "NOT SOUND",
    };
    format!(
        "{verdict}: {}, {} and {} declared; {} in the log, {} in run files; {} with {} and {}, {}, {}",
        counted(declared.queues, "durable queue"),
        counted(declared.exchanges, "exchange"),
        counted(declared.bindings, "binding"),
        counted(report.log_messages, "message"),
        report.run_messages,
        counted(report.segments, "segment"),
        counted_by(report.batches, "batch", "batches"),
        counted(report.records, "record"),
        counted(report.runs, "run"),
        counted(report.damaged, "damaged place"),
    )
}

fn counted(count: u64, one: &str) -> String {
    counted_by(count, one, &format!("{one}s"))
}

fn counted_by(count: u64, one: &str, more: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {more}"),
    }
}

fn as_json(finding: &Finding) -> Value {
    match finding {
        Finding::Sound { file, count } => {
            json!({ "finding": "sound", "file": file, "count": count })
        }
        Finding::TornTail => json!({ "finding": "torn_tail" }),
        Finding::Unreferenced { file, kept } => {
            json!({ "finding": "unreferenced", "file": file, "kept": kept })
        }
        Finding::Damaged { file, offset, what } => {
            json!({ "finding": "damaged", "file": file, "offset": offset, "what": what })
        }
        Finding::Accepted { file, offset, what } => {
            json!({ "finding": "accepted", "file": file, "offset": offset, "what": what })
        }
        Finding::NotLocked { what } => json!({ "finding": "not_locked", "what": what }),
        Finding::Failed { what } => json!({ "finding": "failed", "what": what }),
    }
}

fn report_as_json(
    report: &CheckReport,
    sound: bool,
    declared: Option<Declared>,
    failed: Option<&str>,
    findings: Vec<Value>,
) -> Value {
    let declared = declared.map(|Declared { queues, exchanges, bindings }| {
        json!({ "queues": queues, "exchanges": exchanges, "bindings": bindings })
    });
    json!({
        "sound": sound,
        "failed": failed,
        "clean": report.clean,
        "torn_tail": report.torn_tail,
        "declared": declared,
        "queues": report.queues,
        "log_messages": report.log_messages,
        "run_messages": report.run_messages,
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "runs": report.runs,
        "meta": report.meta.len(),
        "damaged": report.damaged,
        "findings": findings,
    })
}
