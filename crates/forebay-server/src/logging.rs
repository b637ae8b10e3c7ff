//! Log lines on standard error, as text or JSON.

use crate::config::{Config, ConfigError, LogFormat};
use std::io::{self, IsTerminal, Write, stderr};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Starts logging for the whole process; for programs, not for libraries.
///
/// # Errors
/// `log_level` is no level and no filter.
pub fn start(config: &Config) -> Result<(), ConfigError> {
    // The filter would take a word that is no level for a part of the program, and tell nothing of the others.
    let word = !config.log_level.contains(['=', ',']);
    if word && config.log_level.parse::<LevelFilter>().is_err() {
        let why = "it is error, warn, info, debug, trace or off, or a filter such as info,forebay_server=debug";
        return Err(ConfigError::value("log_level", why));
    }
    let filter = EnvFilter::try_new(&config.log_level)
        .map_err(|error| ConfigError::value("log_level", error.to_string()))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Lines)
        .with_ansi(stderr().is_terminal());
    // It fails when the process logs already, and then it may go on doing so.
    let _ = match config.log_format {
        LogFormat::Text => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// Standard error. What cannot be written, as the disk of the log is full or nobody reads it any more, is lost: the broker is not
/// to end for that.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = stderr().write_all(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
