//! The same with Erlang processes, whose mailboxes gave the question its name: a script of ours, where `escript` is there
//! to run it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::experiment::{Case, told};
use crate::spread::median;

const SCRIPT: &str = include_str!("mailbox.escript");
/// Of each measurement with letters that wait: a million of them cost a call 50 ms.
const CALLS: usize = 50;
/// Five hundred million letters are looked at in it.
const PATIENCE: Duration = Duration::from_secs(120);

/// What calls cost there, with so many letters waiting, and in [`super::run`] of `letters`, in so many rounds. `Ok(None)`:
/// there is no `escript`.
pub(super) async fn cases(
    waiting: &[u64],
    letters: u64,
    calls: usize,
    rounds: usize,
) -> Result<Option<Vec<Case>>, String> {
    let script = Script::write()?;
    let mut with_mail = vec!["waiting".to_owned(), CALLS.to_string()];
    with_mail.extend(waiting.iter().map(u64::to_string));
    let paced = ["run".to_owned(), letters.to_string(), calls.to_string()];
    let names = waiting.iter().map(|waiting| format!("{waiting} waiting"));
    let names = names.chain(["letters one at a time".into(), "letters as they come".into()]);
    let mut costs: Vec<(String, Vec<f64>)> = names.map(|name| (name, Vec::new())).collect();
    for _ in 0..rounds {
        let Some(mut lines) = script.run(&with_mail).await? else { return Ok(None) };
        lines.extend(script.run(&paced).await?.unwrap_or_default());
        // Of the first kind COUNT NANOSECONDS, of the second NANOSECONDS NANOSECONDS.
        let (mail, pace) = lines.split_at(waiting.len().min(lines.len()));
        let ns: Vec<u64> = mail
            .iter()
            .filter_map(|line| line.get(1))
            .chain(pace.iter().flatten())
            .copied()
            .collect();
        if ns.len() != costs.len() {
            return Err("the script says nonsense".into());
        }
        for ((_, costs_us), ns) in costs.iter_mut().zip(ns) {
            costs_us.push(ns.max(1) as f64 / 1e3);
        }
    }
    let of = |index: usize| costs.get(index).and_then(|(_, costs_us)| median(costs_us));
    let case = |(index, (name, costs_us)): (usize, &(String, Vec<f64>))| {
        let beside = if index < waiting.len() { of(0) } else { of(waiting.len()) };
        let times = of(index).zip(beside).map(|(cost, beside)| cost / beside);
        let case = Case::new(format!("Erlang, {name}")).with_spread("call", costs_us, "µs");
        case.with_known("ratio", times, "x")
    };
    Ok(Some(costs.iter().enumerate().map(case).collect()))
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
