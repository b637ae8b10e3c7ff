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

    /// The same, unless what was asked for is `printed` in vain.
    pub(crate) fn once(self, printed: Result<(), String>) -> Exit {
        match (printed, self) {
            (Ok(()), exit) => exit,
            (Err(sentence), Exit::Done) => Exit::Failed.because(sentence),
            (Err(sentence), worse) => worse.because(sentence),
        }
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

/// Of the broker that `--url` names.
impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::opening(&error, URL_FLAG)
    }
}

impl Failure {
    /// A URL that cannot be read is wrong usage; everything else may be different next time. `flag` is what names another
    /// broker.
    pub(crate) fn opening(error: &OpenError, flag: &str) -> Failure {
        let exit = match error {
            OpenError::Uri { .. } | OpenError::Parameter { .. } => Exit::Usage,
            _ => Exit::Failed,
        };
        Failure(exit, with_cure(error, flag))
    }
}

/// What names the broker of most commands.
pub(crate) const URL_FLAG: &str = "`--url` or FOREBAY_URL";

/// Why a broker could not be opened, and for the most frequent reasons what to do.
pub(crate) fn with_cure(why: impl Display, flag: &str) -> String {
    let why = why.to_string();
    if why.contains("cannot connect to ") && why.contains("Connection refused") {
        format!(
            "{why}; is a broker running there? `forebay serve` starts one; {flag} names another"
        )
    } else if why.contains("vhost  not found") {
        // As Forebay and RabbitMQ say it of the name that is empty.
        format!(
            "{why}; the URL ends with `/`, which names the virtual host with the empty name: leave it off, or write /%2f"
        )
    } else if why.contains("it began with \"HTTP/") {
        format!("{why}; is it the HTTP endpoint? AMQP is at port 5672 by default")
    } else {
        why
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_answers_like_a_web_server_is_its_other_port() {
        let why = "the server does not speak AMQP 0-9-1; it began with \"HTTP/1.1\"";
        assert!(with_cure(why, URL_FLAG).ends_with("AMQP is at port 5672 by default"));
        let other = "the server does not speak AMQP 0-9-1; it began with \"SSH-2.0\"";
        assert_eq!(with_cure(other, URL_FLAG), other);
    }
}
