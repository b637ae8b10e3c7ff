//! Why a server does not start.

use crate::config::ConfigError;
use forebay_broker::RestoreError;
use forebay_store::OpenError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a server does not start; one sentence for an operator.
#[derive(Debug)]
pub enum StartError {
    /// The configuration makes no sense.
    Config(ConfigError),
    /// An address cannot be listened on.
    Listen {
        /// The key that names it, which is a flag, too.
        key: &'static str,
        /// Which one.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The data directory cannot be made or entered.
    DataDir {
        /// Which one.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The store in the data directory cannot be opened.
    Store {
        /// Which directory.
        dir: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// What the store holds cannot be taken over by this broker.
    Restore(RestoreError),
    /// The system gives no thread or no descriptor.
    System(io::Error),
}

impl StartError {
    /// Whether the configuration is at fault, rather than the machine or the data.
    pub fn is_configuration(&self) -> bool {
        matches!(self, StartError::Config(_))
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Config(error) => error.fmt(f),
            StartError::Listen { key, address, source } => {
                write!(f, "cannot listen on {address}: {source}")?;
                match source.kind() {
                    io::ErrorKind::AddrInUse => write!(
                        f,
                        "; another program listens there: stop it, or choose another with --{key} HOST:PORT"
                    ),
                    io::ErrorKind::AddrNotAvailable => write!(
                        f,
                        "; no interface of this machine has that address: give one that it has, or all with --{key} 0.0.0.0:PORT"
                    ),
                    _ => Ok(()),
                }
            }
            StartError::DataDir { dir, source } => {
                write!(f, "cannot use the data directory {}: ", dir.display())?;
                match source.kind() {
                    // To be made it need only not be there.
                    io::ErrorKind::AlreadyExists => f.write_str("it is a file, not a directory"),
                    _ => source.fmt(f),
                }
            }
            StartError::Store { dir, source } => {
                write!(f, "cannot open the store in {}: {source}", dir.display())?;
                match source {
                    OpenError::Locked => {
                        f.write_str("; stop that broker, or give another --data-dir")
                    }
                    _ => Ok(()),
                }
            }
            StartError::Restore(error) => write!(f, "cannot take over the stored state: {error}"),
            StartError::System(error) => write!(f, "cannot start: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        StartError::Config(error)
    }
}
