//! The same with Erlang processes, whose mailboxes gave the question its name: a script of ours, where `escript` is there
//! to run it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::experiment::{Case, told};

const SCRIPT: &str = include_str!("mailbox.escript");
/// Of each measurement with letters that wait: a million of them cost a call 50 ms.
const CALLS: usize = 50;
/// Five hundred million letters are looked at in it.
const PATIENCE: Duration = Duration::from_secs(120);

/// What calls cost there, with so many letters waiting, and in [`super::run`] of `letters`. `Ok(None)`: there is no
/// `escript`.
pub(super) async fn cases(
    waiting: &[u64],
    letters: u64,
    calls: usize,
) -> Result<Option<Vec<Case>>, String> {
    let script = Script::write()?;
    let mut arguments = vec!["waiting".to_owned(), CALLS.to_string()];
    arguments.extend(waiting.iter().map(u64::to_string));
    let Some(lines) = script.run(&arguments).await? else { return Ok(None) };
    let mut cases = Vec::new();
    let mut alone_ns = None;
    for line in lines {
        let [waiting, ns] = line[..] else { return Err("the script says nonsense".into()) };
        let beside = *alone_ns.get_or_insert(ns.max(1));
        cases.push(case(&format!("{waiting} waiting"), ns, beside));
    }
    let run = ["run".to_owned(), letters.to_string(), calls.to_string()];
    let lines = script.run(&run).await?.unwrap_or_default();
    let Some([throttled, unthrottled]) = lines.first().map(|line| &line[..]) else {
        return Err("the script says nothing".into());
    };
    cases.push(case("letters one at a time", *throttled, *throttled));
    cases.push(case("letters as they come", *unthrottled, *throttled));
    Ok(Some(cases))
}

fn case(name: &str, call_ns: u64, beside_ns: u64) -> Case {
    let times = call_ns as f64 / beside_ns.max(1) as f64;
    Case::new(format!("Erlang, {name}"))
        .with("call", call_ns as f64 / 1e3, "µs")
        .with("ratio", times, "x")
}

/// A file that goes away.
struct Script(PathBuf);

impl Script {
    fn write() -> Result<Script, String> {
        let name = format!("forebay-mailbox-{}.escript", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, SCRIPT).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Script(path))
    }

    /// The numbers that it writes, a line each; `None`: there is nothing to run it with.
    async fn run(&self, arguments: &[String]) -> Result<Option<Vec<Vec<u64>>>, String> {
        let Script(path) = self;
        let mut command = Command::new("escript");
        command.arg::<&Path>(path).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let ended = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = match ended.map_err(|_| format!("escript took longer than {PATIENCE:?}"))? {
            Ok(output) => output,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(told(error)),
        };
        if !output.status.success() {
            return Err(format!("escript: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers = |line: &str| line.split(' ').map(str::parse).collect::<Result<_, _>>();
        text.lines().map(numbers).collect::<Result<_, _>>().map(Some).map_err(told)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // In a directory for what is left behind.
        let _ = std::fs::remove_file(&self.0);
    }
}
