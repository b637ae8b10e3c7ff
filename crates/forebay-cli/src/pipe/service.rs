//! Programs that stay: one for each worker, with one message at a time.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use forebay::Received;
use forebay::pipeline::{Item, Outcome};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::answer;
use super::attempt::say_of;
use super::group::Group;
use super::program::{Program, how};

/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// After so long it is said that there is no answer.
const LONG: Duration = Duration::from_secs(30);
/// How long one that says no more may take to end, so that its exit code is known.
const LAST_BREATH: Duration = Duration::from_secs(1);
/// How long one that has answered may take to read the rest of its message.
const READ_PATIENCE: Duration = Duration::from_secs(2);

/// Programs that wait for a message. As many as there were workers busy at a time, at most.
#[derive(Debug)]
pub(crate) struct Services {
    program: Arc<Program>,
    idle: Mutex<Vec<Service>>,
}

impl Services {
    pub(crate) fn new(program: Arc<Program>) -> Services {
        Services { program, idle: Mutex::default() }
    }

    /// Gives a message to one of them. One that did not answer as it should is not asked again: it would be out of
    /// step.
    ///
    /// # Errors
    /// A sentence: it failed.
    pub(crate) async fn ask(&self, message: &Item<Received>) -> Result<Outcome, String> {
        if message.body().contains(&b'\n') {
            return Err(
                "the message has several lines, and a program with --stream gets one a message"
                    .into(),
            );
        }
        let mut service = match self.wake().await {
            Some(service) => service,
            None => Service::start(&self.program)?,
        };
        let outcome = service.ask(&self.program, message).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(service);
        Ok(outcome)
    }

    /// There are no more messages: the input of all of them ends, and they have `patience` to end, too.
    pub(crate) async fn finish(&self, patience: Duration) {
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        let mut ending = tokio::task::JoinSet::new();
        for service in idle {
            ending.spawn(service.finish());
        }
        let name = self.program.name();
        let all = async {
            while let Some(ended) = ending.join_next().await {
                if let Ok(Err(how)) = ended {
                    super::say(&format!("'{name}' {how} after its last message"));
                }
            }
        };
        if timeout(patience, all).await.is_err() {
            super::say(&format!("'{name}' has not ended with its input, and is killed"));
        }
    }

    /// One that is idle, has not ended meanwhile and has said nothing unasked: that would be taken for the answer to
    /// the message it gets next.
    async fn wake(&self) -> Option<Service> {
        loop {
            let mut service = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if !matches!(service.child.try_wait(), Ok(None)) {
                continue;
            }
            match service.unasked().await {
                None => return Some(service),
                Some(0) => {} // it has closed its output and is about to end
                Some(_) => super::say(&format!(
                    "'{}' answers a message with more than one line: it is stopped, and started again",
                    self.program.name()
                )),
            }
        }
    }
}

#[derive(Debug)]
struct Service {
    child: Child,
    /// Killed with it, unless it ends when its input does.
    group: Group,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Once at least.
    answered: bool,
}

impl Service {
    fn start(program: &Program) -> Result<Service, String> {
        let (mut child, group) = program.start(program.command().stdout(Stdio::piped()))?;
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Service { child, group, stdin, stdout, answered: false })
    }

    /// Its input ends, and it may write what it has kept until now.
    async fn finish(self) -> Result<(), String> {
        let Service { mut child, group, stdin, stdout, .. } = self;
        drop(stdin);
        // What it says now is no answer; it shall not stand before a full pipe.
        let mut rest = stdout;
        let mut nowhere = tokio::io::sink();
        let (_, ended) = tokio::join!(tokio::io::copy_buf(&mut rest, &mut nowhere), child.wait());
        let ended = ended.map_err(|error| error.to_string())?;
        group.ended();
        if ended.success() { Ok(()) } else { Err(how(ended)) }
    }

    /// How many bytes there are to read from it now; 0 at their end, `None` if it is silent.
    async fn unasked(&mut self) -> Option<usize> {
        let stdout = &mut self.stdout;
        poll_fn(|context| {
            Poll::Ready(match Pin::new(&mut *stdout).poll_fill_buf(context) {
                Poll::Pending => None,
                Poll::Ready(read) => Some(read.map_or(0, <[u8]>::len)),
            })
        })
        .await
    }

    async fn ask(&mut self, program: &Program, message: &Received) -> Result<Outcome, String> {
        let (name, body) = (program.name(), message.body());
        let mut line = Vec::with_capacity(body.len() + 1);
        line.extend_from_slice(body);
        line.push(b'\n');
        let answered = self.answered;
        let (fed, read) = {
            let mut asking = pin!(self.exchange(&line));
            match timeout(LONG, &mut asking).await {
                Err(_) if !answered => {
                    say_of(
                        message,
                        &format!(
                            "'{name}' has not answered its first message for {} s; if it keeps answers in a buffer, or does not read \
                         line by line, it never will",
                            LONG.as_secs()
                        ),
                    );
                    asking.await
                }
                Err(_) => asking.await,
                Ok(answered) => answered,
            }
        };
        let mut answer =
            read.map_err(|error| format!("cannot read what '{name}' answers: {error}"))?;
        if answer.pop() != Some(b'\n') {
            if answer.len() as u64 + 1 >= ANSWER_BYTES_MAX {
                return Err(format!(
                    "the answer of '{name}' is longer than {ANSWER_BYTES_MAX} bytes"
                ));
            }
            let how = match timeout(LAST_BREATH, self.child.wait()).await {
                Ok(Ok(ended)) => how(ended),
                Ok(Err(_)) | Err(_) => "closed its standard output".into(),
            };
            return Err(format!("'{name}' {how} and has not answered"));
        }
        fed.ok_or_else(|| format!("'{name}' answers before it has read its message"))?
            .map_err(|error| format!("'{name}' does not read its messages: {error}"))?;
        self.answered = true;
        answer::read(&String::from_utf8_lossy(&answer))
            .map_err(|error| format!("'{name}': {error}"))
    }

    /// Writes a line, and reads one with its end, if that comes. What became of the writing is `None` if the program does not
    /// read on.
    async fn exchange(&mut self, line: &[u8]) -> (Option<io::Result<()>>, io::Result<Vec<u8>>) {
        let mut answer = Vec::new();
        let mut reader = (&mut self.stdout).take(ANSWER_BYTES_MAX);
        let mut feeding = pin!(async {
            self.stdin.write_all(line).await?;
            self.stdin.flush().await
        });
        let mut fed = None;
        let read = {
            let mut reading = pin!(reader.read_until(b'\n', &mut answer));
            // At the same time: it may write before it has read all, and a pipe holds 64 KiB.
            loop {
                tokio::select! {
                    read = &mut reading => break read,
                    done = &mut feeding, if fed.is_none() => fed = Some(done),
                }
            }
        };
        if fed.is_none() && answer.ends_with(b"\n") {
            fed = timeout(READ_PATIENCE, feeding).await.ok();
        }
        (fed, read.map(|_| answer))
    }
}
