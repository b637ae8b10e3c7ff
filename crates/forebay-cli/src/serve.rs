//! `forebay serve`: the broker in the foreground, until a signal or the disk ends it.

use crate::exit::{Exit, Failure};
use crate::stop_signal::{SAME_SIGNAL, stop_signals};
use forebay_server::logging::{self, Log};
use forebay_server::{Config, Data, DurabilitySetting, Layer, Server, Size, StartError};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Flags of `forebay serve`. What is not given comes from `FOREBAY_…`, then the file, then the default.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// TOML file with settings; its keys are in docs/configuration.md
    #[arg(long, value_name = "FILE", env = "FOREBAY_CONFIG")]
    config: Option<PathBuf>,

    /// Directory of the message store [env: FOREBAY_DATA_DIR] [default: ./forebay-data]
    #[arg(long, value_name = "DIR", conflicts_with = "in_memory")]
    data_dir: Option<PathBuf>,

    /// Keep everything in memory and nothing on disk [env: FOREBAY_IN_MEMORY]
    #[arg(long)]
    in_memory: bool,

    /// Accept AMQP here; may be repeated [env: FOREBAY_AMQP] [default: 127.0.0.1:5672]
    #[arg(long, value_name = "ADDR")]
    amqp: Vec<String>,

    /// Accept AMQP over TLS here: not available in this version [env: FOREBAY_AMQPS]
    #[arg(long, value_name = "ADDR")]
    amqps: Vec<String>,

    /// Serve /metrics, /healthz, /api/forebay and /api/definitions here, or `off` [env: FOREBAY_HTTP]
    /// [default: 127.0.0.1:15672]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,

    /// Memory for messages and all else, such as 256MB or 1GiB [env: FOREBAY_MEMORY_BUDGET] [default: a quarter
    /// of the machine's, 256MB at most]
    #[arg(long, value_name = "SIZE")]
    memory_budget: Option<Size>,

    /// When a confirmed message is synced: always, interval=MS or os [env: FOREBAY_DURABILITY]
    /// [default: always]
    #[arg(long, value_name = "POLICY")]
    durability: Option<String>,

    /// How long a delivery may stay unacknowledged, in milliseconds, 0 for ever
    /// [env: FOREBAY_ACK_TIMEOUT_MS] [default: 1800000]
    #[arg(long, value_name = "MS")]
    ack_timeout_ms: Option<u32>,

    /// Start with a damaged store, without what is missing [env: FOREBAY_SALVAGE]
    #[arg(long)]
    salvage: bool,

    /// Log lines as text or json [env: FOREBAY_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,

    /// error, warn, info, debug, trace or a filter [env: FOREBAY_LOG_LEVEL] [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

impl Args {
    /// What the command line says, as the highest layer.
    fn into_layer(self) -> Layer {
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        Layer {
            data_dir: self.data_dir,
            in_memory: self.in_memory.then_some(true),
            amqp: some(self.amqp),
            amqps: some(self.amqps),
            http: self.http,
            memory_budget: self.memory_budget,
            durability: self.durability,
            ack_timeout_ms: self.ack_timeout_ms,
            salvage: self.salvage.then_some(true),
            log_format: self.log_format,
            log_level: self.log_level,
            ..Layer::default()
        }
    }
}

/// How long a second signal waits for whoever reads the log.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Serves until SIGTERM, SIGINT or SIGHUP (exit code 0), or until the disk fails (1).
pub(crate) fn run(args: Args) -> Exit {
    let (config, log) = match configure(args) {
        Ok(configured) => configured,
        Err(error) => return exit_of(&error).because(error),
    };
    match serve(config, &log) {
        Ok(()) => {
            log.flush();
            Exit::Done
        }
        Err(Failure(exit, why)) => {
            log.end_with(&format!("forebay: {why}"));
            exit
        }
    }
}

fn serve(config: Config, log: &Log) -> Result<(), Failure> {
    // Before the start: a signal during a long recovery must end the process, too.
    let signals = stop_signals();
    let signals = signals.map_err(|error| format!("cannot watch for signals: {error}"))?;
    if config.durability != DurabilitySetting::Always && config.data != Data::Memory {
        tracing::warn!(
            durability = %config.durability,
            "not safe against power loss: messages are confirmed before they are synced"
        );
    }
    let data = match &config.data {
        Data::Dir(dir) => dir.display().to_string(),
        Data::Memory => "memory".to_owned(),
    };
    let stop = StopBySignal::watch(signals, log.clone());
    let server = Server::start(config);
    let server = server.map_err(|error| Failure(exit_of(&error), error.to_string()))?;
    let server = Arc::new(server);
    stop.ready(server.clone());
    announce(&server, &data);
    server.wait().map_err(|failed| failed.to_string())?;
    tracing::info!("stopped");
    Ok(())
}

fn exit_of(error: &StartError) -> Exit {
    if error.is_configuration() { Exit::Usage } else { Exit::Failed }
}

/// What is to be served, and the log, which has begun.
fn configure(args: Args) -> Result<(Config, Log), StartError> {
    let file = args.config.as_deref().map(Layer::from_file).transpose()?;
    let env = Layer::from_env(|name| std::env::var_os(name))?;
    let mut config = Config::from_layers(&[args.into_layer(), env, file.unwrap_or_default()])?;
    config.owns_process = true;
    let log = logging::start(&config)?;
    // What follows is perhaps not what was meant, and no reason not to start.
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = unknown_variables(names);
    if !unknown.is_empty() {
        tracing::warn!("unknown environment variables, which set nothing: {}", unknown.join(", "));
    }
    for doubt in config.doubts() {
        tracing::warn!("{doubt}");
    }
    Ok((config, log))
}

/// Variables of the same prefix that are for others: other commands, what `pipe` gives its programs, tests and measurements.
const OTHERS_VARIABLES: [&str; 17] = [
    "FOREBAY_CONFIG",
    "FOREBAY_URL",
    "FOREBAY_HTTP_URL",
    "FOREBAY_EXCHANGE",
    "FOREBAY_ROUTING_KEY",
    "FOREBAY_MESSAGE_ID",
    "FOREBAY_REDELIVERED",
    "FOREBAY_ATTEMPT",
    "FOREBAY_BINARY",
    "FOREBAY_CLUSTER",
    "FOREBAY_CLUSTER_SCRIPT",
    "FOREBAY_FUZZ_INPUTS",
    "FOREBAY_SEED",
    "FOREBAY_SLOW_DISK",
    "FOREBAY_TEST_INSIDE",
    "FOREBAY_TORN",
    "FOREBAY_WRITE_FIXTURES",
];

/// What Kubernetes tells every program where a service is called `forebay`.
const KUBERNETES: [&str; 2] = ["FOREBAY_SERVICE_", "FOREBAY_PORT"];

fn unknown_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let is_others = |name: &str| {
        OTHERS_VARIABLES.contains(&name) || KUBERNETES.iter().any(|it| name.starts_with(it))
    };
    let mut unknown = Layer::unknown_variables(names);
    unknown.retain(|name| !is_others(name));
    unknown.sort_unstable();
    unknown
}

/// The one line on standard output; whoever started us waits for it.
fn announce(server: &Server, data: &str) {
    let addresses = server.addresses();
    let amqp: Vec<String> = addresses.amqp.iter().map(ToString::to_string).collect();
    let http = addresses.http.map_or_else(|| "off".to_owned(), |address| address.to_string());
    let mut out = std::io::stdout().lock();
    let line = format!("forebay ready amqp={} http={http} data={data}\n", amqp.join(","));
    // Nobody needs to be listening there.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// The thread that turns signals into orders: the first drains, the second ends the process.
struct StopBySignal {
    server: std::sync::mpsc::SyncSender<Arc<Server>>,
}

impl StopBySignal {
    fn watch(mut signals: Signals, log: Log) -> StopBySignal {
        let (server, started) = std::sync::mpsc::sync_channel::<Arc<Server>>(1);
        let exit = move |code| {
            log.flush_within(AT_ONCE);
            std::process::exit(code)
        };
        std::thread::spawn(move || {
            let mut draining: Option<Instant> = None;
            for _ in signals.forever() {
                match (draining, started.try_recv()) {
                    (None, Ok(server)) => {
                        draining = Some(Instant::now());
                        tracing::info!("draining; a second signal ends the process at once");
                        server.request_stop();
                    }
                    // Not yet started: there is nothing to drain, recovery changes nothing it reads.
                    (None, Err(_)) => exit(0),
                    (Some(since), _) if since.elapsed() < SAME_SIGNAL => {}
                    (Some(_), _) => exit(1),
                }
            }
        });
        StopBySignal { server }
    }

    fn ready(&self, server: Arc<Server>) {
        // The thread lives as long as the process.
        let _ = self.server.send(server);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_variables_that_are_nobodys_are_unknown() {
        let names = [
            "FOREBAY_LOG_LEVLE",
            "FOREBAY_LOG_LEVEL",
            "FOREBAY_HTTP_URL",
            "FOREBAY_PORT_5672_TCP",
            "FOREBAY_SERVICE_HOST",
            "FOREBAY_ACK_TIMEOUT",
            "HOME",
        ];
        let unknown = unknown_variables(names.map(str::to_owned).into_iter());
        assert_eq!(unknown, ["FOREBAY_ACK_TIMEOUT", "FOREBAY_LOG_LEVLE"]);
    }
}
