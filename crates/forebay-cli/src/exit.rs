//! How a command ends: the exit codes that scripts rely on, in one place.

use std::fmt::Display;
use std::process::ExitCode;

use forebay_client::OpenError;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// What was asked for is done.
    Done = 0,
    /// It could not be done.
    Failed = 1,
    /// The command line or the configuration makes no sense. clap uses the same code.
    Usage = 2,
    /// Some messages were published and not confirmed.
    NotAllConfirmed = 3,
}

impl Exit {
    /// Says why on standard error, in one sentence.
    pub(crate) fn because(self, why: impl Display) -> Exit {
        say!("forebay: {why}");
        self
    }
}

/// Nothing was done, and why: a sentence.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Exit, pub(crate) String);

impl Failure {
    /// Says why on standard error.
    pub(crate) fn told(self) -> Exit {
        self.0.because(self.1)
    }
}

impl From<String> for Failure {
    fn from(sentence: String) -> Failure {
        Failure(Exit::Failed, sentence)
    }
}

/// A URL that cannot be read is wrong usage; everything else may be different next time.
impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let exit = match error {
            OpenError::Uri { .. } | OpenError::Parameter { .. } => Exit::Usage,
            _ => Exit::Failed,
        };
        Failure(exit, error.to_string())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
