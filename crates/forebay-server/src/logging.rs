//! Log lines on standard error, as text or JSON.

use crate::config::{Config, ConfigError, LogFormat};
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// Starts logging for the whole process; for programs, not for libraries.
///
/// # Errors
/// `log_level` is no level and no filter.
pub fn start(config: &Config) -> Result<(), ConfigError> {
    let filter = EnvFilter::try_new(&config.log_level)
        .map_err(|error| ConfigError::value("log_level", error.to_string()))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal());
    // It fails when the process logs already, and then it may go on doing so.
    let _ = match config.log_format {
        LogFormat::Text => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    Ok(())
}
