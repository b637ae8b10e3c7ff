//! Configuration: what may be set, where it comes from, and what it means once all is read.
//!
//! ```text
//!   flags ─┐
//!   FOREBAY_… variables ─┼─► layers, highest first ─► Config (checked, defaults filled in)
//!   TOML file ─┘
//! ```
//!
//! A [`Layer`] is what somebody typed; a [`Config`] is what it means. [`KEYS`] declares every key
//! once, and `docs/configuration.md` is printed from it.

mod addresses;
mod error;
mod keys;
mod layer;
mod memory;
mod policies;
mod slips;
mod users;
mod vhost_limits;

pub use error::ConfigError;
pub use keys::{KEYS, Key, reference_page};
pub use layer::Layer;
pub use policies::PolicySetting;
pub use users::{PasswordSetting, PermissionSetting, TopicPermissionSetting, UserSetting};
pub use vhost_limits::VhostLimitSetting;

use crate::size::Size;
use rustix::process::{Resource, getrlimit};
use std::path::PathBuf;
use std::time::Duration;

/// Where messages and topology live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// In this directory; made if it does not exist.
    Dir(PathBuf),
    /// In this process; gone when it ends.
    Memory,
}

/// When a confirmed message is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurabilitySetting {
    /// Synced to disk before the confirm.
    Always,
    /// Written before the confirm, synced every so many milliseconds: not safe against power loss.
    Interval {
        /// Milliseconds between two syncs, from 1 to [`DurabilitySetting::INTERVAL_MS_MAX`].
        ms: u64,
    },
    /// Written before the confirm, synced when the system likes: not safe against power loss.
    Os,
}

impl DurabilitySetting {
    /// The longest interval, an hour: who wants a longer one wants `os`.
    pub const INTERVAL_MS_MAX: u64 = 3_600_000;
}

impl std::str::FromStr for DurabilitySetting {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let interval = text.strip_prefix("interval=").and_then(|ms| ms.parse::<u64>().ok());
        match (text, interval) {
            ("always", _) => Ok(DurabilitySetting::Always),
            ("os", _) => Ok(DurabilitySetting::Os),
            (_, Some(ms @ 1..=DurabilitySetting::INTERVAL_MS_MAX)) => {
                Ok(DurabilitySetting::Interval { ms })
            }
            _ => Err(ConfigError::value(
                "durability",
                format!(
                    "`{text}` is none of always, interval=MS (MS from 1 to {}) and os",
                    DurabilitySetting::INTERVAL_MS_MAX
                ),
            )),
        }
    }
}

impl std::fmt::Display for DurabilitySetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DurabilitySetting::Always => f.write_str("always"),
            DurabilitySetting::Interval { ms } => write!(f, "interval={ms}"),
            DurabilitySetting::Os => f.write_str("os"),
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Everything a server needs to know; made by [`Config::from_layers`] or from [`Config::default`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Where messages and topology live.
    pub data: Data,
    /// Addresses to accept AMQP on, `host:port`; port 0 picks a free one. May be empty (embedding).
    pub amqp: Vec<String>,
    /// Address of the HTTP endpoint, `host:port`; `None` has none.
    pub http: Option<String>,
    /// What messages in memory may take together, in bytes.
    pub memory_budget_bytes: u64,
    /// Whether the process is this server's alone: then all that it takes counts in the memory budget, as the operating
    /// system tells it. Not so by default, since an embedded server's process is somebody else's.
    pub owns_process: bool,
    /// When a confirmed message is safe.
    pub durability: DurabilitySetting,
    /// Log size above which old segments are evacuated, in bytes.
    pub log_cap_bytes: u64,
    /// Start with a damaged store, without what is missing.
    pub salvage: bool,
    /// Who may log in.
    pub users: Vec<UserSetting>,
    /// Virtual hosts that exist.
    pub vhosts: Vec<String>,
    /// Those of them with the firehose on.
    pub trace_vhosts: Vec<String>,
    /// Connections that virtual hosts may have.
    pub vhost_limits: Vec<VhostLimitSetting>,
    /// What exchanges have that were declared without it.
    pub policies: Vec<PolicySetting>,
    /// Users that may log in from this machine only.
    pub loopback_users: Vec<String>,
    /// Channels a connection may have, 1 to 65535.
    pub channel_max: u16,
    /// Largest frame in bytes, head and end included; at least 4096.
    pub frame_max_bytes: u32,
    /// Heartbeat interval offered to clients, in seconds; 0 offers none.
    pub heartbeat_s: u16,
    /// A connection that is not open by then is closed, in milliseconds.
    pub handshake_timeout_ms: u64,
    /// How long a delivery may stay unacknowledged, in milliseconds; 0 is for ever.
    pub ack_timeout_ms: u32,
    /// Largest message body, in bytes.
    pub message_max_bytes: u64,
    /// Connections at one time.
    pub connections_max: usize,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which log lines are written: a level, or a filter such as `info,forebay_server=debug`.
    pub log_level: String,
    /// How long clients may take to close when the server stops.
    pub drain_timeout: Duration,
}

/// The least memory budget; the default one is no less, whatever a control group allows.
const MEMORY_BUDGET_LEAST_BYTES: u64 = 16 << 20;
/// The most that the default memory budget takes, whatever the machine has.
const MEMORY_BUDGET_DEFAULT_MAX_BYTES: u64 = 256 * 1000 * 1000;
/// Descriptors kept back from connections: log and runs (some twenty), listeners, HTTP (32).
const DESCRIPTORS_RESERVED: u64 = 128;
/// More connections than this are allowed only by name.
const CONNECTIONS_DEFAULT_MAX: u64 = 65_536;

impl Default for Config {
    fn default() -> Self {
        Config {
            data: Data::Dir(PathBuf::from("./forebay-data")),
            amqp: vec!["127.0.0.1:5672".to_owned()],
            http: Some("127.0.0.1:15672".to_owned()),
            memory_budget_bytes: default_memory_budget_bytes(memory::bytes_there()),
            owns_process: false,
            durability: DurabilitySetting::Always,
            log_cap_bytes: 1 << 30,
            salvage: false,
            users: vec![UserSetting::guest()],
            vhosts: vec!["/".to_owned()],
            trace_vhosts: Vec::new(),
            vhost_limits: Vec::new(),
            policies: Vec::new(),
            loopback_users: vec!["guest".to_owned()],
            channel_max: 2047,
            frame_max_bytes: 131_072,
            heartbeat_s: 60,
            handshake_timeout_ms: 10_000,
            ack_timeout_ms: 1_800_000,
            message_max_bytes: 16 << 20,
            connections_max: default_connections_max(),
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
            drain_timeout: Duration::from_secs(10),
        }
    }
}

/// A quarter of the memory this process may use, 256 MB at most. Nobody is to be refused over a key that is not set.
fn default_memory_budget_bytes(there_bytes: Option<u64>) -> u64 {
    let quarter = there_bytes.map_or(u64::MAX, |bytes| bytes / 4);
    quarter.clamp(MEMORY_BUDGET_LEAST_BYTES, MEMORY_BUDGET_DEFAULT_MAX_BYTES)
}

/// That the system may end the process before it has used its budget, if it may.
fn too_much_memory(budget_bytes: u64, there_bytes: u64) -> Option<String> {
    (budget_bytes > there_bytes).then(|| {
        format!(
            "memory_budget: {budget_bytes} bytes are more than the {there_bytes} that this machine has, or allows this process \
             (MemoryMax, a container's limit), which is ended when it takes them"
        )
    })
}

/// As many as descriptors allow.
fn default_connections_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let room = limit.unwrap_or(u64::MAX).saturating_sub(DESCRIPTORS_RESERVED);
    room.clamp(16, CONNECTIONS_DEFAULT_MAX) as usize
}

/// That connections may take the descriptors that the store needs, if they may: it waits for one, and not for ever.
fn too_many_descriptors(connections_max: usize, limit: u64) -> Option<String> {
    let needed = (connections_max as u64).saturating_add(DESCRIPTORS_RESERVED);
    (needed > limit).then(|| {
        format!(
            "connections_max: {connections_max} connections and {DESCRIPTORS_RESERVED} files of the broker's own are more than the \
             {limit} files that it may open; when they are used up, new peers wait, and the broker ends if it needs one for \
             10 s: raise that limit (LimitNOFILE, ulimit -n)"
        )
    })
}

impl Config {
    /// What `layers` say together, the first that mentions a key winning, and defaults for the rest.
    ///
    /// # Errors
    /// The first key whose value makes no sense, by name.
    pub fn from_layers(layers: &[Layer]) -> Result<Config, ConfigError> {
        /// The value of a key in the highest layer that has it.
        macro_rules! first {
            ($field:ident) => {
                layers.iter().find_map(|layer| layer.$field.clone())
            };
        }
        if layers.iter().any(|layer| layer.amqps.as_ref().is_some_and(|list| !list.is_empty())) {
            return Err(ConfigError::value(
                "amqps",
                "TLS is not available in this version; listen with amqp on a trusted network",
            ));
        }
        let default = Config::default();
        if first!(users).is_none()
            && let Some(vhosts) = first!(vhosts)
            && !vhosts.is_empty()
            && !vhosts.iter().any(|vhost| vhost == "/")
        {
            let what = "`/` is not one of them, and guest, who is there as long as no [[users]] are, needs it: add `/`, or users";
            return Err(ConfigError::value("vhosts", what));
        }
        let amqp = first!(amqp).unwrap_or(default.amqp);
        if amqp.is_empty() {
            return Err(ConfigError::value("amqp", "there must be at least one address"));
        }
        let config = Config {
            data: data(layers)?.unwrap_or(default.data),
            amqp,
            http: match first!(http) {
                Some(http) if http == "off" => None,
                Some(http) => Some(http),
                None => default.http,
            },
            memory_budget_bytes: first!(memory_budget)
                .map_or(default.memory_budget_bytes, |Size(bytes)| bytes),
            owns_process: default.owns_process,
            durability: match first!(durability) {
                Some(text) => text.parse()?,
                None => default.durability,
            },
            log_cap_bytes: first!(log_cap).map_or(default.log_cap_bytes, |Size(bytes)| bytes),
            salvage: first!(salvage).unwrap_or(default.salvage),
            users: first!(users).unwrap_or(default.users),
            vhosts: first!(vhosts).unwrap_or(default.vhosts),
            trace_vhosts: first!(trace_vhosts).unwrap_or(default.trace_vhosts),
            vhost_limits: first!(vhost_limits).unwrap_or(default.vhost_limits),
            policies: first!(policies).unwrap_or(default.policies),
            loopback_users: first!(loopback_users).unwrap_or(default.loopback_users),
            channel_max: first!(channel_max).unwrap_or(default.channel_max),
            frame_max_bytes: match first!(frame_max) {
                Some(Size(bytes)) => u32::try_from(bytes).unwrap_or(u32::MAX),
                None => default.frame_max_bytes,
            },
            heartbeat_s: first!(heartbeat_s).unwrap_or(default.heartbeat_s),
            handshake_timeout_ms: first!(handshake_timeout_ms)
                .unwrap_or(default.handshake_timeout_ms),
            ack_timeout_ms: first!(ack_timeout_ms).unwrap_or(default.ack_timeout_ms),
            message_max_bytes: first!(message_max)
                .map_or(default.message_max_bytes, |Size(bytes)| bytes),
            connections_max: first!(connections_max).unwrap_or(default.connections_max),
            log_format: match first!(log_format).as_deref() {
                Some("text") => LogFormat::Text,
                Some("json") => LogFormat::Json,
                Some(other) => {
                    let text = format!("`{other}` is neither text nor json");
                    return Err(ConfigError::value("log_format", text));
                }
                None => default.log_format,
            },
            log_level: first!(log_level).unwrap_or(default.log_level),
            drain_timeout: first!(drain_timeout_ms)
                .map_or(default.drain_timeout, Duration::from_millis),
        };
        config.check()?;
        Ok(config)
    }

    /// Whether the values make sense, each by itself and together.
    ///
    /// # Errors
    /// The first key that does not, by name.
    pub fn check(&self) -> Result<(), ConfigError> {
        let at_least = |key: &'static str, value: u64, least: u64, unit: &str| {
            if value >= least {
                return Ok(());
            }
            Err(ConfigError::value(key, format!("{value} is less than {least}{unit}")))
        };
        let at_most = |key: &'static str, value: u128, most: u64, unit: &str| {
            if value <= most.into() {
                return Ok(());
            }
            Err(ConfigError::value(key, format!("{value} is more than {most}{unit}")))
        };
        if matches!(&self.data, Data::Dir(dir) if dir.as_os_str().is_empty()) {
            return Err(ConfigError::value("data_dir", "it is empty"));
        }
        let budget_bytes = self.memory_budget_bytes;
        at_least("memory_budget", budget_bytes, MEMORY_BUDGET_LEAST_BYTES, " bytes (16 MiB)")?;
        at_least("log_cap", self.log_cap_bytes, 256 << 20, " bytes (256 MiB)")?;
        at_least("channel_max", self.channel_max.into(), 1, "")?;
        at_least("frame_max", self.frame_max_bytes.into(), 4096, " bytes")?;
        at_least("message_max", self.message_max_bytes, 1, " bytes")?;
        at_least("connections_max", self.connections_max as u64, 1, "")?;
        at_least("handshake_timeout_ms", self.handshake_timeout_ms, 1, " ms")?;
        at_most("log_cap", self.log_cap_bytes.into(), LOG_CAP_LARGEST_BYTES, " bytes (1 PiB)")?;
        let handshake_ms = u128::from(self.handshake_timeout_ms);
        at_most("handshake_timeout_ms", handshake_ms, TIMEOUT_MS_MAX, " ms (a day)")?;
        let drain_ms = self.drain_timeout.as_millis();
        at_most("drain_timeout_ms", drain_ms, TIMEOUT_MS_MAX, " ms (a day)")?;
        if self.message_max_bytes > MESSAGE_MAX_LARGEST_BYTES {
            let text = format!("{} is more than 512 MiB", self.message_max_bytes);
            return Err(ConfigError::value("message_max", text));
        }
        if self.frame_max_bytes > FRAME_MAX_LARGEST_BYTES {
            let text = format!("{} is more than 16 MiB", self.frame_max_bytes);
            return Err(ConfigError::value("frame_max", text));
        }
        addresses::check(&self.amqp, self.http.as_deref())?;
        if self.vhosts.is_empty() {
            return Err(ConfigError::value("vhosts", "there must be at least one"));
        }
        if let Some(vhost) = self.trace_vhosts.iter().find(|name| !self.vhosts.contains(name)) {
            let text = format!("`{vhost}` is not one of vhosts");
            return Err(ConfigError::value("trace_vhosts", text));
        }
        vhost_limits::check(&self.vhost_limits, &self.vhosts)?;
        policies::check(&self.policies, &self.vhosts)?;
        users::check(&self.users, &self.vhosts, &self.loopback_users)
    }

    /// What makes sense and is perhaps not what was meant: a sentence each, for the log.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = users::tags_that_open_nothing(&self.users);
        let limit = getrlimit(Resource::Nofile).current;
        doubts.extend(limit.and_then(|limit| too_many_descriptors(self.connections_max, limit)));
        let there = memory::bytes_there();
        doubts.extend(there.and_then(|there| too_much_memory(self.memory_budget_bytes, there)));
        doubts
    }
}

/// RabbitMQ's ceiling; a message is one allocation, and is whole in memory before it is confirmed.
const MESSAGE_MAX_LARGEST_BYTES: u64 = 512 << 20;

/// Far more than any disk has, and far from where the store's arithmetic ends.
const LOG_CAP_LARGEST_BYTES: u64 = 1 << 50;

/// A day: who writes more means "for ever", and the microseconds of that are no number any more.
const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Beyond this one connection's partial frame would weigh too much in the memory budget.
const FRAME_MAX_LARGEST_BYTES: u32 = 16 << 20;

/// The highest layer that says where data lives.
fn data(layers: &[Layer]) -> Result<Option<Data>, ConfigError> {
    let mut on_disk = false;
    for layer in layers {
        // Who has said that it is not to be in memory is not contradicted by those below.
        on_disk |= layer.in_memory == Some(false);
        match (layer.in_memory.filter(|_| !on_disk), &layer.data_dir) {
            (Some(true), Some(_)) => {
                let text = "true and a data_dir beside it contradict each other";
                return Err(ConfigError::value("in_memory", text));
            }
            (Some(true), None) => return Ok(Some(Data::Memory)),
            (_, Some(dir)) => return Ok(Some(Data::Dir(dir.clone()))),
            _ => {}
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Layer {
        Layer::from_toml("forebay.toml", text).unwrap()
    }

    fn error(text: &str) -> String {
        Layer::from_toml("forebay.toml", text)
            .and_then(|layer| Config::from_layers(&[layer]))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        let config = Config::from_layers(&[]).unwrap();
        assert_eq!(config.data, Data::Dir("./forebay-data".into()));
        assert_eq!(config.amqp, ["127.0.0.1:5672"]);
        assert_eq!(config.http.as_deref(), Some("127.0.0.1:15672"));
        assert!(config.memory_budget_bytes <= 256_000_000);
        assert_eq!(config.loopback_users, ["guest"]);
        assert_eq!(config.ack_timeout_ms, 1_800_000);
    }

    #[test]
    fn the_first_layer_that_mentions_a_key_wins() {
        let high = file("memory_budget = \"64MB\"");
        let low = file("memory_budget = \"128MB\"\nheartbeat_s = 5");
        let config = Config::from_layers(&[high, low]).unwrap();
        assert_eq!(config.memory_budget_bytes, 64_000_000);
        assert_eq!(config.heartbeat_s, 5);
    }

    #[test]
    fn in_memory_above_beats_a_data_dir_below_and_the_other_way_round() {
        let (memory, dir) = (file("in_memory = true"), file("data_dir = \"/x\""));
        let config = Config::from_layers(&[memory.clone(), dir.clone()]).unwrap();
        assert_eq!(config.data, Data::Memory);
        let config = Config::from_layers(&[dir.clone(), memory.clone()]).unwrap();
        assert_eq!(config.data, Data::Dir("/x".into()));
        let disk = file("in_memory = false");
        let config = Config::from_layers(&[disk.clone(), memory.clone()]).unwrap();
        assert!(matches!(config.data, Data::Dir(_)), "said above, it is on disk");
        let config = Config::from_layers(&[disk, memory, dir]).unwrap();
        assert_eq!(config.data, Data::Dir("/x".into()));
        assert!(error("in_memory = true\ndata_dir = \"/x\"").contains("in_memory"));
    }

    #[test]
    fn http_may_be_switched_off() {
        assert_eq!(Config::from_layers(&[file("http = \"off\"")]).unwrap().http, None);
    }

    #[test]
    fn durability_has_three_forms() {
        let check = |text: &str, expected| {
            let layer = file(&format!("durability = \"{text}\""));
            assert_eq!(Config::from_layers(&[layer]).unwrap().durability, expected);
            assert_eq!(expected.to_string(), text);
        };
        check("always", DurabilitySetting::Always);
        check("interval=50", DurabilitySetting::Interval { ms: 50 });
        check("os", DurabilitySetting::Os);
        for bad in ["never", "interval=0", "interval=", "interval=x", "interval=3600001"] {
            let text = error(&format!("durability = \"{bad}\""));
            assert!(text.contains("durability") && text.contains(bad), "{text}");
        }
    }

    #[test]
    fn more_connections_than_files_may_be_open_are_doubted() {
        assert_eq!(too_many_descriptors(896, 1024), None);
        let doubt = too_many_descriptors(897, 1024).unwrap();
        assert!(doubt.starts_with("connections_max: 897 connections and 128 files "), "{doubt}");
        assert!(too_many_descriptors(usize::MAX, u64::MAX - 1).is_some());
    }

    #[test]
    fn the_default_budget_is_one_that_may_be_set() {
        for (there, budget) in [
            (None, 256_000_000),
            (Some(8 << 30), 256_000_000),
            (Some(400 << 20), 100 << 20),
            (Some(48 << 20), 16 << 20),
        ] {
            let memory_budget_bytes = default_memory_budget_bytes(there);
            assert_eq!(memory_budget_bytes, budget, "{there:?}");
            Config { memory_budget_bytes, ..Config::default() }.check().unwrap();
        }
    }

    #[test]
    fn more_memory_than_there_is_is_doubted() {
        assert_eq!(too_much_memory(1000, 1000), None);
        let doubt = too_much_memory(1001, 1000).unwrap();
        assert!(doubt.starts_with("memory_budget: 1001 bytes are more than the 1000 "), "{doubt}");
    }

    #[test]
    fn a_value_that_makes_no_sense_is_named() {
        let check = |toml: &str, key: &str| {
            let text = error(toml);
            assert!(text.contains(key), "{toml}: {text}");
            assert!(!text.contains('\n'), "one sentence: {text}");
        };
        check("memory_budget = \"1MB\"", "memory_budget");
        check("log_cap = 1", "log_cap");
        check("frame_max = 100", "frame_max");
        check("frame_max = \"1GiB\"", "frame_max");
        check("message_max = \"513MiB\"", "message_max");
        check("log_cap = \"16000000TB\"", "log_cap: 16000000000000000000 is more than");
        check("handshake_timeout_ms = 0", "handshake_timeout_ms");
        check("handshake_timeout_ms = 9223372036854775807", "handshake_timeout_ms: 922");
        check("drain_timeout_ms = 86400001", "drain_timeout_ms: 86400001 is more than 86400000 ms");
        check("drain_timeout_ms = 9223372036854775807", "drain_timeout_ms: 922");
        check("channel_max = 0", "channel_max");
        check("connections_max = 0", "connections_max");
        check("ack_timeout_ms = -1", "ack_timeout_ms");
        check("ack_timeout_ms = 4294967296", "ack_timeout_ms");
        check("amqp = [\"5672\"]", "amqp");
        check("amqp = []", "amqp: there must be at least one address");
        check("data_dir = \"\"", "data_dir: it is empty");
        check("http = \"localhost\"", "http");
        check("http = \"\"", "http: `` is not HOST:PORT, such as 127.0.0.1:15672, or `off`");
        check("vhosts = []", "vhosts: there must be at least one");
        check("vhosts = [\"shop\"]", "vhosts: `/` is not one of them, and guest");
        check("trace_vhosts = [\"v\"]", "trace_vhosts: `v` is not one of vhosts");
        check("log_format = \"xml\"", "log_format");
        check("amqps = [\"127.0.0.1:5671\"]", "amqps");
    }
}
