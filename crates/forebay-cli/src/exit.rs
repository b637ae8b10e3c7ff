//! How a command ends: the exit codes that scripts rely on, in one place.

use std::fmt::Display;
use std::process::ExitCode;

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
        eprintln!("forebay: {why}");
        self
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
