//! Log lines on standard error, as text or JSON.

use crate::config::{Config, ConfigError, LogFormat};
use crate::line_writer::{LineWriter, Patience};
use crate::start_error::StartError;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, IsTerminal, Write, stderr};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::thread;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// At the end of a process, how long nobody may read before what is left is given up; and how long a panic waits in all.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// The log of this process. A thread of its own writes it, so that whoever reads standard error, or does not, holds up nothing else;
/// 1 MiB of lines waits for it, and what comes beyond is dropped and counted in the log.
#[derive(Clone)]
pub struct Log(LineWriter);

impl Log {
    /// Waits until all lines up to now are written, or nobody has read any of them for 5 s. A process that ends without it loses
    /// those that wait.
    pub fn flush(&self) {
        // What nobody reads is lost: a process is not to stay for that.
        let _ = self.0.flush(Patience::EachPiece(LAST_PATIENCE));
    }

    /// The same for so long at most, however slowly somebody reads.
    pub fn flush_within(&self, time: Duration) {
        let _ = self.0.flush(Patience::InAll(time));
    }

    /// Writes `sentence` as it is on a line below all others, and flushes. What is logged later is not written.
    pub fn end_with(&self, sentence: &str) {
        self.0.push_last(format!("{sentence}\n").as_bytes());
        self.flush();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

/// Starts logging for the whole process; for programs, not for libraries. What a panic says is a line of the log, which is flushed
/// then, for 5 s at most: a process ends also where nobody reads why.
///
/// # Errors
/// `log_level` is no level and no filter, or the system gives no thread or descriptor.
pub fn start(config: &Config) -> Result<Log, StartError> {
    let filter = filter(&config.log_level)?;
    let standard_error = stderr().as_fd().try_clone_to_owned().map_err(StartError::System)?;
    let writer = LineWriter::start(File::from(standard_error), tell_dropped);
    let writer = writer.map_err(StartError::System)?;
    let lines = Lines(writer.clone());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || lines.clone())
        .with_ansi(stderr().is_terminal());
    // It fails when the process logs already, and then it may go on doing so.
    let _ = match config.log_format {
        LogFormat::Text => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    let log = Log(writer);
    let (lines, say) = (log.clone(), panic::take_hook());
    panic::set_hook(Box::new(move |panicked| {
        // The thread that writes the log has nobody else to say it.
        if lines.0.is_written_here() {
            return say(panicked);
        }
        lines.0.push(last_words(panicked).as_bytes());
        lines.flush_within(LAST_PATIENCE);
    }));
    Ok(log)
}

/// What the standard library would write, and where it does, on standard error.
fn last_words(panicked: &PanicHookInfo<'_>) -> String {
    let thread = thread::current();
    let thread = thread.name().unwrap_or("<unnamed>");
    // As RUST_BACKTRACE says.
    let backtrace = Backtrace::capture();
    let trace = match backtrace.status() {
        BacktraceStatus::Captured => format!("stack backtrace:\n{backtrace}"),
        _ => String::new(),
    };
    format!("\nthread '{thread}' {panicked}\n{trace}")
}

/// A level, or levels for parts of the program: `info,forebay_server=debug`.
fn filter(log_level: &str) -> Result<EnvFilter, ConfigError> {
    let parts: Vec<&str> = log_level.split(',').map(str::trim).collect();
    // What is in brackets, spans and their fields, is the filter's to judge.
    for part in parts.iter().filter(|part| !part.contains(['[', ']'])) {
        // The filter would take a word that is no level for a part of the program, tell nothing of the others, and take nothing for a
        // level.
        let level = part.rsplit('=').next().unwrap_or_default();
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            let why = format!(
                "`{level}` is none of error, warn, info, debug, trace and off; a filter is such as info,forebay_server=debug"
            );
            return Err(ConfigError::value("log_level", why));
        }
    }
    EnvFilter::try_new(parts.join(","))
        .map_err(|error| ConfigError::value("log_level", error.to_string()))
}

/// An error, so that it is told to whoever asked for errors alone: what is missing may have been some.
fn tell_dropped(count: u64) {
    tracing::error!("{count} lines of the log are missing here: nobody read it for too long");
}

/// Lines as they are formatted: each is one call of `write`.
#[derive(Clone)]
struct Lines(LineWriter);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn a_level_or_a_filter_of_levels_is_taken_and_nothing_else() {
        for (log_level, taken) in [
            ("info", "info"),
            ("OFF", "off"),
            ("warn,forebay_server=debug", "forebay_server=debug,warn"),
            ("warn, forebay_server=debug", "forebay_server=debug,warn"),
            ("forebay_server::http=trace", "forebay_server::http=trace"),
            ("info,[publish]", "info,[publish]=trace"),
            ("warn,forebay_client[publish{size=1}]", "warn,forebay_client[publish{size=1}]=trace"),
        ] {
            assert_eq!(filter(log_level).unwrap().to_string(), taken, "{log_level}");
        }
        for (log_level, level) in [
            ("warning", "warning"),
            ("infoo,forebay_server=debug", "infoo"),
            ("info,forebay_server", "forebay_server"),
            ("info,forebay_server=debugg", "debugg"),
            ("info,forebay_server=", ""),
            ("info,", ""),
            ("[publish]=debug,warning", "warning"),
            ("", ""),
        ] {
            let said = filter(log_level).unwrap_err().to_string();
            let expected = format!("configuration key log_level: `{level}` is none of error, warn");
            assert!(said.starts_with(&expected), "{log_level}: {said}");
        }
        let said = filter("info,[publish").unwrap_err().to_string();
        assert_eq!(said, "configuration key log_level: invalid filter directive");
    }
}
