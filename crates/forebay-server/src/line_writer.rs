//! Log lines on their way to whoever reads them, who may be slow or have stopped: a terminal after `^S`, a pipe, the journal.
//!
//! ```text
//!   any thread ──line──▶ backlog, bounded ──all of it──▶ thread forebay-lines ──pieces──▶ standard error
//!                          └─ full: lines are counted, and the number is told where they are missing
//! ```
//! Nobody waits for a reader but that thread, and at the end of the process who asks for it by [`LineWriter::flush`].

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

/// What waits to be written, in bytes; as much again may be with the thread.
const BACKLOG_BYTES: usize = 1 << 20;

/// Written at a time, in bytes: what a pipe takes whole.
const PIECE_BYTES: usize = 4096;

/// What waits, and how many lines had no room behind it.
#[derive(Default)]
struct Backlog {
    lines: Vec<u8>,
    dropped: u64,
}

impl Backlog {
    fn push(&mut self, line: &[u8]) {
        // Behind one that is dropped all are: what is missing is missing in one place.
        if self.dropped > 0 || self.lines.len() + line.len() > BACKLOG_BYTES {
            self.dropped += 1;
        } else {
            self.lines.extend_from_slice(line);
        }
    }

    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0
    }
}

#[derive(Default)]
struct State {
    backlog: Backlog,
    /// The thread has some of it.
    writing: bool,
    /// Pieces written so far: whether it goes on.
    pieces: u64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write, or something was written.
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes lines, and does not wait for them to be read.
#[derive(Clone)]
pub(crate) struct LineWriter(Arc<Shared>);

impl LineWriter {
    /// Starts the thread, which ends with the process. It calls `tell` with the number of lines that were dropped, before anything
    /// else is taken: what that pushes stands where they are missing.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(
        sink: impl Write + AsFd + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<LineWriter> {
        let writer = LineWriter(Arc::default());
        let shared = writer.0.clone();
        let thread = std::thread::Builder::new().name("forebay-lines".to_owned());
        thread.spawn(move || write(&shared, sink, tell))?;
        Ok(writer)
    }

    /// A line with its end. It is dropped and counted if [`BACKLOG_BYTES`] wait already.
    pub(crate) fn push(&self, line: &[u8]) {
        self.0.lock().backlog.push(line);
        self.0.changed.notify_all();
    }

    /// A line for which there is always room: the last one of a process.
    pub(crate) fn push_last(&self, line: &[u8]) {
        self.0.lock().backlog.lines.extend_from_slice(line);
        self.0.changed.notify_all();
    }

    /// Waits until all is written, as long as pieces of it are read within `patience` of each other. Tells whether it is.
    pub(crate) fn flush(&self, patience: Duration) -> bool {
        let mut state = self.0.lock();
        let (mut pieces, mut until) = (state.pieces, Instant::now() + patience);
        while state.writing || !state.backlog.is_empty() {
            if state.pieces != pieces {
                (pieces, until) = (state.pieces, Instant::now() + patience);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// The life of the thread.
fn write(shared: &Shared, mut sink: impl Write + AsFd, tell: impl Fn(u64)) {
    loop {
        let mut state = shared.lock();
        while state.backlog.is_empty() {
            state.writing = false;
            shared.changed.notify_all();
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = true;
        let Backlog { lines, dropped } = std::mem::take(&mut state.backlog);
        drop(state);
        if dropped > 0 {
            tell(dropped);
        }
        let mut rest = &lines[..];
        while !rest.is_empty() {
            match sink.write(&rest[..rest.len().min(PIECE_BYTES)]) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Somebody else has it, too, and does not want to wait for it.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // If it fails, the next write tells why.
                    let _ = poll(&mut [PollFd::new(&sink, PollFlags::OUT)], None);
                    continue;
                }
                // The disk of the log is full, or its reader is gone: no reason to end, and nobody to tell it to.
                Err(_) => break,
            }
            shared.lock().pieces += 1;
            shared.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::io::{BufRead, BufReader, pipe};
    use std::sync::mpsc::sync_channel;

    /// Longer than any of this takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_waits_for_a_reader_who_is_told_how_many_lines_are_missing() {
        let (reader, sink) = pipe().unwrap();
        let (tell, told) = sync_channel(1);
        let writer = LineWriter::start(sink, move |count| tell.send(count).unwrap()).unwrap();
        // A pipe has room for 64 KiB, and twice the backlog waits.
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        let pushed = 3 * BACKLOG_BYTES / line.len();
        for _ in 0..pushed {
            writer.push(&line);
        }
        assert!(!writer.flush(Duration::from_millis(1)), "nobody has read");
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        let mut read = 0;
        let missing = loop {
            assert_eq!(lines.next().unwrap().len(), 1023);
            read += 1;
            assert!(read < pushed, "nothing is missing");
            if let Ok(missing) = told.try_recv() {
                break missing as usize;
            }
        };
        // It is told when there is room again, so this is the first line after those that are missing.
        writer.push(b"last\n");
        read += lines.take_while(|line| line != "last").count();
        assert_eq!(read + missing, pushed);
        assert!(missing >= pushed / 4, "{missing}");
        assert!(writer.flush(PATIENCE));
    }

    #[test]
    fn the_last_line_has_room() {
        let (reader, sink) = pipe().unwrap();
        let writer = LineWriter::start(sink, |_| ()).unwrap();
        for _ in 0..3 {
            writer.push(&[&vec![b'x'; BACKLOG_BYTES - 1][..], b"\n"].concat());
        }
        writer.push_last(b"last\n");
        let found = BufReader::new(reader).lines().any(|line| line.unwrap() == "last");
        assert!(found && writer.flush(PATIENCE));
    }

    #[test]
    fn a_pipe_that_does_not_wait_gets_every_line() {
        let (reader, sink) = pipe().unwrap();
        let flags = fcntl_getfl(&sink).unwrap();
        fcntl_setfl(&sink, flags | OFlags::NONBLOCK).unwrap();
        let writer = LineWriter::start(sink, |_| ()).unwrap();
        let lines = 3 * 65_536 / 8;
        for number in 0..lines {
            writer.push(format!("{number:07}\n").as_bytes());
        }
        // Far more than the pipe holds, and nobody reads.
        assert!(!writer.flush(Duration::from_millis(1)));
        let read = BufReader::new(reader).lines().take(lines);
        assert!(read.enumerate().all(|(number, line)| line.unwrap() == format!("{number:07}")));
        assert!(writer.flush(PATIENCE));
    }

    #[test]
    fn what_nobody_can_read_is_lost_without_a_word() {
        let (reader, sink) = pipe().unwrap();
        drop(reader);
        let writer = LineWriter::start(sink, |count| panic!("{count} told")).unwrap();
        for _ in 0..100 {
            writer.push(b"line\n");
            assert!(writer.flush(PATIENCE));
        }
    }
}
