//! The cluster around us, by its script.

use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(Clone)]
pub(crate) struct Cluster {
    script: PathBuf,
    uri: String,
}

impl Cluster {
    /// The one whose `run` started us.
    pub(crate) fn around_us() -> Result<Cluster, String> {
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| {
                format!("{name} is not set; run this by scripts/rabbitmq-cluster.py run -- ...")
            })
        };
        let script = PathBuf::from(variable("FOREBAY_CLUSTER_SCRIPT")?);
        Ok(Cluster { script, uri: variable("AMQP_URI")? })
    }

    /// All hosts, beginning with another one for each `place`.
    pub(crate) fn uri(&self, place: usize) -> String {
        let (before, rest) = self.uri.split_once('@').expect("it names a login");
        let (hosts, vhost) = rest.split_once('/').expect("it names a virtual host");
        let mut hosts: Vec<&str> = hosts.split(',').collect();
        let count = hosts.len();
        hosts.rotate_left(place % count);
        // A frozen node is silent, not gone: only heartbeats tell.
        format!("{before}@{}/{vhost}?heartbeat=3&connection_timeout=3000", hosts.join(","))
    }

    /// Runs one command of the script and returns what it printed; what it has to say besides is passed on, and the
    /// last of it tells why it failed.
    pub(crate) async fn order(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.script);
        command.args(words).stdin(Stdio::null());
        let what = words.join(" ");
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .expect("it does not panic")
            .map_err(|error| format!("cannot run {}: {error}", self.script.display()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        eprint!("{said}");
        if !output.status.success() {
            let why = said.lines().last().unwrap_or_default();
            return Err(format!("rabbitmq-cluster.py {what}: {}: {why}", output.status));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}
