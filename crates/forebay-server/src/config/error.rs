//! Why a configuration is refused.

use std::fmt;
use std::path::PathBuf;

/// Why a configuration is refused; one sentence that names the key.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read.
    Unreadable {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, has an unknown key, or a value of the wrong type.
    Syntax {
        /// The file or the variable.
        origin: String,
        /// Line in the file, from 1.
        line: Option<usize>,
        /// The key on that line.
        key: Option<String>,
        /// What is wrong.
        what: String,
    },
    /// A value is well formed and makes no sense.
    Value {
        /// Whose.
        key: &'static str,
        /// What is wrong.
        what: String,
    },
}

impl ConfigError {
    pub(crate) fn value(key: &'static str, what: impl Into<String>) -> ConfigError {
        ConfigError::Value { key, what: what.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Unreadable { path, source } => {
                write!(f, "cannot read the configuration file {}: {source}", path.display())
            }
            ConfigError::Syntax { origin, line, key, what } => {
                f.write_str(origin)?;
                if let Some(line) = line {
                    write!(f, " line {line}")?;
                }
                if let Some(key) = key {
                    write!(f, ", {key}")?;
                }
                write!(f, ": {what}")
            }
            ConfigError::Value { key, what } => write!(f, "configuration key {key}: {what}"),
        }
    }
}

impl std::error::Error for ConfigError {}
