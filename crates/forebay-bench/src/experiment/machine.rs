//! How evenly the machine itself runs: what a rate that varies owes to where it was measured, and not to a broker.
//!
//! No broker and no messages: what those are made of, one after the other. A machine that shares its memory, or its
//! processors, with others does not carry the same from second to second, and neither does what runs on it.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Case, Demand, Findings, Place, told};
use crate::own_directory::OwnDirectory;
use crate::report::variation;
use crate::spread::Random;

/// As many as a broker and a generator keep busy.
const THREADS: usize = 2;
/// Between two looks, unless the measurement is shorter than two of them.
const SECOND: Duration = Duration::from_secs(1);
/// What is wanted of a broker under overload cannot be had of a machine that varies more.
const VARIES_PERCENT_MAX: f64 = 5.0;
/// Steps of arithmetic between two looks at whether it is over.
const STEPS: u64 = 10_000;
/// Of each of two blocks that a thread copies from one to the other, in pieces: more than the caches next to it.
const BLOCK_BYTES: usize = 32 << 20;
const PIECE_BYTES: usize = 1 << 20;
/// A write to a socket: as large as the generator's and the broker's often are.
const SENT_BYTES: usize = 64 << 10;
/// A write that is synced, and the file, which is written from its beginning again.
const SYNCED_BYTES: usize = 64 << 10;
const FILE_BYTES: u64 = 64 << 20;

/// What threads did, until it is over.
#[derive(Default)]
struct Meter {
    done: AtomicU64,
    over: AtomicBool,
}

impl Meter {
    /// So much more; whether to go on.
    fn count(&self, done: usize) -> bool {
        self.done.fetch_add(done as u64, Ordering::Relaxed);
        !self.over.load(Ordering::Relaxed)
    }
}

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    let mut findings = Findings::default();
    let mut found = |name: &str, unit: &str, per_unit: f64, rates: Vec<f64>| {
        let rates: Vec<f64> = rates.iter().map(|rate| rate / per_unit).collect();
        let percent = variation(&rates) * 100.0;
        let what = format!("{name}: varies from second to second by");
        findings.demands.push(Demand::at_most(&what, percent, VARIES_PERCENT_MAX, "%"));
        let case = Case::new(name).with_spread("rate", &rates, unit);
        findings.cases.push(case.with("varies", percent, "%"));
    };
    found("arithmetic", "M/s", 1e6, metered(place, THREADS, |_, meter| compute(meter))?);
    found("memory", "GB/s", 1e9, metered(place, THREADS, |_, meter| copy(meter))?);
    let (from, to) = joined().map_err(told)?;
    let sent = metered(place, THREADS, |thread, meter| match thread {
        0 => send(&from, meter),
        _ => receive(&to, meter),
    });
    found("loopback", "GB/s", 1e9, sent?);
    let parent = place.dir.clone().unwrap_or_else(std::env::temp_dir);
    let directory = OwnDirectory::make(parent.join(format!("forebay-bench-{}", place.mark.hex())));
    let directory = directory.map_err(told)?;
    found("disk", "syncs/s", 1.0, metered(place, 1, |_, meter| sync(directory.path(), meter))?);
    findings.notes.push(format!(
        "{THREADS} threads each, one for the disk, below {}: {} KiB before each sync",
        parent.display(),
        SYNCED_BYTES >> 10
    ));
    Ok(findings)
}

/// What `threads` of `work` do in a second, second by second.
fn metered(
    place: &Place,
    threads: usize,
    work: impl Fn(usize, &Meter) -> io::Result<()> + Sync,
) -> Result<Vec<f64>, String> {
    let (meter, work) = (&Meter::default(), &work);
    let every = SECOND.min(place.length / 2);
    thread::scope(|scope| {
        let working: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let ended = work(thread, meter);
                    meter.over.store(true, Ordering::Relaxed); // nobody goes on without it
                    ended
                })
            })
            .collect();
        thread::sleep(every); // threads begin, and the kernel finds them their pages
        let (mut rates, mut goes_on) = (Vec::new(), Ok(()));
        let begun = Instant::now();
        let (mut looked, mut before) = (begun, meter.done.load(Ordering::Relaxed));
        while goes_on.is_ok() && begun.elapsed() < place.length {
            thread::sleep(every);
            let (now, done) = (Instant::now(), meter.done.load(Ordering::Relaxed));
            rates.push((done - before) as f64 / (now - looked).as_secs_f64());
            (looked, before) = (now, done);
            goes_on = place.goes_on();
        }
        meter.over.store(true, Ordering::Relaxed);
        for thread in working {
            thread.join().map_err(|_| "a thread panicked")?.map_err(told)?;
        }
        goes_on.map(|()| rates)
    })
}

/// Steps of arithmetic that need no memory.
fn compute(meter: &Meter) -> io::Result<()> {
    let mut random = Random::new(1);
    let mut steps = || (0..STEPS).map(|_| random.below(2)).sum::<usize>();
    while meter.count(STEPS as usize) {
        black_box(steps());
    }
    Ok(())
}

/// Bytes from one block to another.
fn copy(meter: &Meter) -> io::Result<()> {
    let (from, mut to) = (vec![1_u8; BLOCK_BYTES], vec![2_u8; BLOCK_BYTES]);
    let pieces = || (0..BLOCK_BYTES).step_by(PIECE_BYTES).map(|at| at..at + PIECE_BYTES);
    for piece in pieces().cycle() {
        let copied = &mut to[piece.clone()];
        copied.copy_from_slice(&from[piece]);
        if !meter.count(size_of_val(black_box(copied))) {
            break;
        }
    }
    Ok(())
}

/// Two ends of a connection over the loopback interface.
fn joined() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let from = TcpStream::connect(listener.local_addr()?)?;
    Ok((from, listener.accept()?.0))
}

/// Counted where they arrive.
fn send(mut to: &TcpStream, meter: &Meter) -> io::Result<()> {
    let bytes = vec![3; SENT_BYTES];
    let mut sent = Ok(());
    while sent.is_ok() && meter.count(0) {
        sent = to.write_all(&bytes);
    }
    to.shutdown(Shutdown::Write).and(sent)
}

/// Until there is no more, so that nobody waits for room.
fn receive(mut from: &TcpStream, meter: &Meter) -> io::Result<()> {
    let mut bytes = vec![0; SENT_BYTES];
    loop {
        match from.read(&mut bytes)? {
            0 => return Ok(()),
            count => meter.count(count),
        };
    }
}

/// Writes that are on disk.
fn sync(directory: &Path, meter: &Meter) -> io::Result<()> {
    let bytes = vec![4; SYNCED_BYTES];
    let file = File::create(directory.join("synced"))?;
    let places = (0..FILE_BYTES).step_by(SYNCED_BYTES);
    for place in places.cycle() {
        file.write_all_at(&bytes, place)?;
        file.sync_data()?;
        if !meter.count(1) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place::somewhere("", Duration::from_millis(20))
    }

    #[test]
    fn what_every_second_brings_is_counted_and_all_of_it_ends() {
        let counting = |_, meter: &Meter| {
            while meter.count(1) {}
            Ok(())
        };
        // A machine that is busy may not have let any of them begin.
        while metered(&place(), 3, counting).unwrap().iter().sum::<f64>() == 0.0 {}
        assert_eq!(metered(&place(), 0, counting).unwrap().iter().sum::<f64>(), 0.0);
    }

    #[test]
    fn one_thread_that_fails_ends_the_others_and_says_why() {
        let failed = metered(&place(), 2, |thread, meter| match thread {
            0 => Err(io::Error::other("no disk")),
            _ => {
                while meter.count(1) {}
                Ok(())
            }
        });
        assert_eq!(failed, Err("no disk".to_owned()));
    }

    #[test]
    fn who_is_stopped_has_no_answer_and_leaves_nothing() {
        let stopped = place();
        stopped.stop();
        assert_eq!(run(&stopped), Err("it was stopped".to_owned()));
        let directory = std::env::temp_dir().join(format!("forebay-bench-{}", stopped.mark.hex()));
        assert!(!directory.exists());
    }

    #[test]
    fn each_of_them_is_measured() {
        let findings = run(&place()).unwrap();
        let names: Vec<&str> = findings.cases.iter().map(|case| &*case.name).collect();
        assert_eq!(names, ["arithmetic", "memory", "loopback", "disk"]);
        for figure in findings.cases.iter().flat_map(|case| &case.figures) {
            assert!(figure.value >= 0.0, "{figure:?}");
        }
        assert_eq!(findings.demands.len(), 4);
    }
}
