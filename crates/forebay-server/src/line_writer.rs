//! Log lines on their way to whoever reads them, who may be slow or have stopped: a terminal after `^S`, a pipe, the journal.
//!
//! ```text
//!   any thread ──line──▶ backlog, bounded ──all of it──▶ thread forebay-lines ──pieces──▶ standard error
//!                          └─ full: lines are counted, and the number is told where they are missing
//! ```
//! Nobody waits for a reader but that thread, and at the end of the process who asks for it by [`LineWriter::flush`].

use std::io::{self, ErrorKind, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
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
    /// The last line of the process, which waits until there is nothing else.
    last: Vec<u8>,
    /// It was given: only what is missing above it is still told.
    ended: bool,
    /// The thread that writes, and tells.
    writer: Option<ThreadId>,
    /// Bytes that had room so far.
    pushed: u64,
    /// Bytes of them that were written, or could not be.
    written: u64,
    /// Lines that had no room so far.
    missing: u64,
    /// How many of them were told.
    told: u64,
}

impl State {
    fn push(&mut self, line: &[u8]) {
        if self.ended && self.writer != Some(thread::current().id()) {
            return;
        }
        let (bytes, dropped) = (self.backlog.lines.len(), self.backlog.dropped);
        self.backlog.push(line);
        self.pushed += (self.backlog.lines.len() - bytes) as u64;
        self.missing += self.backlog.dropped - dropped;
    }

    /// What is next to be written.
    fn take(&mut self) -> Option<Backlog> {
        if !self.backlog.is_empty() {
            return Some(mem::take(&mut self.backlog));
        }
        let lines = mem::take(&mut self.last);
        (!lines.is_empty()).then_some(Backlog { lines, dropped: 0 })
    }

    /// Whether what there was at `mark` is written, and told as far as it is missing.
    fn is_past(&self, mark: &mut Mark) -> bool {
        // What is told stands behind all that was there.
        if mark.bytes.is_none() && self.told >= mark.missing {
            mark.bytes = Some(self.pushed);
        }
        mark.bytes.is_some_and(|bytes| self.written >= bytes)
    }
}

/// A place among the lines, to wait for.
struct Mark {
    /// Lines that were missing before it.
    missing: u64,
    /// Bytes before it, once that is told.
    bytes: Option<u64>,
}

/// How long a flush waits for a reader.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// As long as a piece is read within this time of the one before.
    EachPiece(Duration),
    /// This long, whatever is read meanwhile.
    InAll(Duration),
}

impl Patience {
    /// When it is over, for who has waited since `begun` and saw a piece written at `moved`.
    fn end(self, begun: Instant, moved: Instant) -> Instant {
        match self {
            Patience::EachPiece(patience) => moved + patience,
            Patience::InAll(patience) => begun + patience,
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write, or something was written or told.
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
        let thread = thread::Builder::new().name("forebay-lines".to_owned());
        let thread = thread.spawn(move || write(&shared, sink, tell))?;
        writer.0.lock().writer = Some(thread.thread().id());
        Ok(writer)
    }

    /// A line with its end. It is dropped and counted if [`BACKLOG_BYTES`] wait already.
    pub(crate) fn push(&self, line: &[u8]) {
        self.0.lock().push(line);
        self.0.changed.notify_all();
    }

    /// The last line of a process: there is always room for it, it stands below all others, and what comes later is not taken.
    pub(crate) fn push_last(&self, line: &[u8]) {
        let mut state = self.0.lock();
        state.last.extend_from_slice(line);
        state.pushed += line.len() as u64;
        state.ended = true;
        drop(state);
        self.0.changed.notify_all();
    }

    /// Whether this is the thread that writes.
    pub(crate) fn is_written_here(&self) -> bool {
        self.0.lock().writer == Some(thread::current().id())
    }

    /// Waits until all that was pushed before is written. Tells whether it is.
    pub(crate) fn flush(&self, patience: Patience) -> bool {
        self.wait(self.mark(), patience)
    }

    /// Where the lines end now.
    fn mark(&self) -> Mark {
        let state = self.0.lock();
        let mut mark = Mark { missing: state.missing, bytes: None };
        state.is_past(&mut mark);
        mark
    }

    /// Waits until all before `mark` is written, whatever was pushed since. Tells whether it is.
    fn wait(&self, mut mark: Mark, patience: Patience) -> bool {
        let begun = Instant::now();
        let mut state = self.0.lock();
        let (mut written, mut moved) = (state.written, begun);
        while !state.is_past(&mut mark) {
            if state.written != written {
                (written, moved) = (state.written, Instant::now());
            }
            let left = patience.end(begun, moved).saturating_duration_since(Instant::now());
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
        let Backlog { lines, dropped } = loop {
            if let Some(next) = state.take() {
                break next;
            }
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        if dropped > 0 {
            tell(dropped);
            shared.lock().told += dropped;
            shared.changed.notify_all();
        }
        let written = |bytes: usize| {
            shared.lock().written += bytes as u64;
            shared.changed.notify_all();
        };
        let mut rest = &lines[..];
        while !rest.is_empty() {
            match sink.write(&rest[..rest.len().min(PIECE_BYTES)]) {
                Ok(count) => {
                    rest = &rest[count..];
                    written(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Somebody else has it, too, and does not want to wait for it.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // If it fails, the next write tells why.
                    let _ = poll(&mut [PollFd::new(&sink, PollFlags::OUT)], None);
                    continue;
                }
                // The disk of the log is full, or its reader is gone: no reason to end, and nobody to tell it to.
                Err(_) => {
                    written(rest.len());
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::io::{BufRead, BufReader, Read, pipe};
    use std::sync::OnceLock;
    use std::sync::mpsc::sync_channel;

    /// Longer than any of this takes.
    const PATIENCE: Patience = Patience::EachPiece(Duration::from_secs(60));
    const NONE: Patience = Patience::InAll(Duration::ZERO);

    #[test]
    fn nobody_waits_for_a_reader_who_is_told_how_many_lines_are_missing() {
        let (reader, sink) = pipe().unwrap();
        let (tell, told) = sync_channel(1);
        let writer = LineWriter::start(sink, move |count| tell.send(count).unwrap()).unwrap();
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        // A pipe has room for 64 KiB: once something is there the thread stays in the middle of what it has taken,
        let first = 128;
        writer.push(&line.repeat(first));
        let mark = Mark { missing: 0, bytes: Some(1) };
        assert!(writer.wait(mark, PATIENCE));
        // and twice the backlog waits behind it.
        let pushed = first + 3 * BACKLOG_BYTES / line.len();
        for _ in first..pushed {
            writer.push(&line);
        }
        assert!(!writer.flush(NONE), "nobody has read");
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
    fn the_last_line_has_room_below_all_others_and_below_what_is_missing() {
        let (reader, sink) = pipe().unwrap();
        let teller = Arc::new(OnceLock::<LineWriter>::new());
        let told = teller.clone();
        let tell = move |_| told.get().unwrap().push(b"some are missing\n");
        let writer = LineWriter::start(sink, tell).unwrap();
        assert!(teller.set(writer.clone()).is_ok());
        for _ in 0..3 {
            writer.push(&[&vec![b'x'; BACKLOG_BYTES - 1][..], b"\n"].concat());
        }
        writer.push_last(b"last\n");
        let mut reader = BufReader::new(reader);
        let lines = reader.by_ref().lines().map(Result::unwrap);
        let lines = lines.filter(|line| !line.starts_with('x'));
        // Told in one place or in two: the thread may take the first line before the last of them comes.
        let above: Vec<_> = lines.take_while(|line| line != "last").collect();
        assert!(
            !above.is_empty() && above.iter().all(|line| line == "some are missing"),
            "{above:?}"
        );
        writer.push(b"late\n");
        assert!(writer.flush(PATIENCE));
        fcntl_setfl(reader.get_ref(), OFlags::NONBLOCK).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn who_flushes_does_not_wait_for_what_others_log_meanwhile() {
        let (_reader, sink) = pipe().unwrap();
        let writer = LineWriter::start(sink, |_| ()).unwrap();
        writer.push(b"line\n");
        let mark = writer.mark();
        // More than the pipe holds, and nobody reads.
        writer.push(&[b'x'; BACKLOG_BYTES / 2]);
        assert!(writer.wait(mark, PATIENCE));
        assert!(!writer.flush(NONE));
    }

    #[test]
    fn a_slow_reader_is_waited_for_as_long_as_was_said() {
        let begun = Instant::now();
        let seconds = Duration::from_secs;
        let moved = begun + seconds(7);
        assert_eq!(Patience::EachPiece(seconds(5)).end(begun, moved), begun + seconds(12));
        assert_eq!(Patience::InAll(seconds(5)).end(begun, moved), begun + seconds(5));
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
        assert!(!writer.flush(NONE));
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
