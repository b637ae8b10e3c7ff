//! The program that is run, and one run of it for one message.

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::future::pending;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use forebay::Received;
use forebay::pipeline::{Item, Outcome};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use super::group::{Group, Groups};
use crate::otlp;

/// What to start. That it is there was seen once.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    arguments: Vec<OsString>,
    groups: Groups,
}

impl Program {
    /// Looks for it where the system would. Its runs will be among `groups`.
    ///
    /// # Errors
    /// A sentence: there is no such program.
    pub(crate) fn find(command: &[String], groups: Groups) -> Result<Program, String> {
        let (name, arguments) = command.split_first().ok_or("no command was given")?;
        let runs = |path: &Path| {
            path.metadata()
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        let found = if name.contains('/') {
            runs(Path::new(name))
        } else {
            let path = env::var_os("PATH").unwrap_or_default();
            env::split_paths(&path)
                .map(|directory: PathBuf| directory.join(name))
                .any(|path| runs(&path))
        };
        if !found {
            return Err(format!(
                "there is no program '{name}' that may be run; give its path, or look at PATH"
            ));
        }
        Ok(Program {
            name: name.clone(),
            arguments: arguments.iter().map(OsString::from).collect(),
            groups,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// To be started by [`Program::start`].
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.name);
        command.args(&self.arguments).stdin(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// # Errors
    /// A sentence: it cannot be started.
    pub(crate) fn start(&self, command: &mut Command) -> Result<(Child, Group), String> {
        let started = self.groups.start(command);
        started.map_err(|error| format!("cannot start '{}': {error}", self.name))
    }

    /// Runs it for one message.
    ///
    /// # Errors
    /// A sentence: it failed.
    pub(crate) async fn run(
        &self,
        message: &Item<Received>,
        reject_on: &[i32],
    ) -> Result<Outcome, String> {
        let mut command = self.command();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\0', "");
        let message_id = message.properties().message_id.map(|id| text(id.as_bytes()));
        command
            .env("FOREBAY_ROUTING_KEY", text(message.routing_key()))
            .env("FOREBAY_EXCHANGE", text(message.exchange()))
            .env("FOREBAY_MESSAGE_ID", message_id.unwrap_or_default())
            .env("FOREBAY_REDELIVERED", u8::from(message.redelivered()).to_string())
            .env("FOREBAY_ATTEMPT", message.attempt().to_string())
            .envs(otlp::environment());
        let (mut child, group) = self.start(&mut command)?;
        let mut stdin = child.stdin.take().expect("it is piped");
        let feed = async move {
            // A program may know enough before it has read everything, so what it does not read is no failure.
            let _ = stdin.write_all(message.body()).await;
            drop(stdin);
            pending::<Infallible>().await
        };
        // It ends with the program: another one that it has left behind may hold its standard input, and never read it.
        let ended = tokio::select! {
            biased;
            ended = child.wait() => ended,
            never = feed => match never {},
        };
        let ended = ended.map_err(|error| format!("cannot wait for '{}': {error}", self.name))?;
        group.ended();
        match ended.code() {
            Some(0) => Ok(Outcome::Ack),
            Some(code) if reject_on.contains(&code) => Ok(Outcome::Reject),
            _ => Err(format!("'{}' {}", self.name, how(ended))),
        }
    }
}

/// How a program ended, as the rest of a sentence.
pub(crate) fn how(ended: ExitStatus) -> String {
    match ended.code() {
        Some(code) => format!("ended with exit code {code}"),
        None => format!("was ended by a signal ({ended})"),
    }
}
