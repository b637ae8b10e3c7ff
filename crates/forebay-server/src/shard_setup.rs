//! From a configuration to a state machine with its store recovered.

use crate::allocate::allocate;
use crate::config::{Config, ConfigError, Data, DurabilitySetting, PolicySetting, UserSetting};
use crate::start_error::StartError;
use forebay_broker::access::User;
use forebay_broker::topology::Policy;
use forebay_broker::{Shard, ShardConfig};
use forebay_store::{Damage, Disk, Durability, FileDisk, OpenError, Options, Recovered, Store};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A shard and the disk that its requests go to; no disk when all is in memory.
pub(crate) struct Opened {
    pub(crate) shard: Shard,
    pub(crate) disk: Option<Arc<dyn Disk>>,
}

/// Recovers the store, from `disk` if there is one instead of the directory's, and makes the shard. Blocks
/// for as long as recovery takes.
///
/// `started`: when the shard's clock began.
pub(crate) fn open(
    config: &Config,
    disk: Option<Arc<dyn Disk>>,
    started: Instant,
) -> Result<Opened, StartError> {
    let shard_config = shard_config(config, clock_began_us(started))?;
    let (store, recovered, disk) = match &config.data {
        Data::Memory => (Store::in_memory(), None, None),
        Data::Dir(dir) => {
            let (store, recovered, disk) = open_store(dir, config, disk)?;
            (store, Some(recovered), Some(disk))
        }
    };
    let shard = Shard::new(shard_config, store, recovered).map_err(StartError::Restore)?;
    Ok(Opened { shard, disk })
}

fn open_store(
    dir: &Path,
    config: &Config,
    disk: Option<Arc<dyn Disk>>,
) -> Result<(Store, Recovered, Arc<dyn Disk>), StartError> {
    let disk = match disk {
        Some(disk) => disk,
        None => match FileDisk::new(dir).map(|disk| disk.allocating_by(allocate)) {
            Ok(disk) => Arc::new(disk),
            Err(source) => return Err(StartError::DataDir { dir: dir.to_owned(), source }),
        },
    };
    let options = Options {
        log_cap_bytes: config.log_cap_bytes,
        durability: match config.durability {
            DurabilitySetting::Always => Durability::Always,
            DurabilitySetting::Interval { ms } => Durability::Interval { ms },
            DurabilitySetting::Os => Durability::Os,
        },
        salvage: config.salvage,
        ..Options::default()
    };
    let opened = forebay_store::open(disk.clone(), options);
    let (store, recovered) =
        opened.map_err(|source: OpenError| StartError::Store { dir: dir.to_owned(), source })?;
    if !recovered.clean && !recovered.meta.is_empty() {
        tracing::info!("the last stop was not a clean one: recovered messages are redelivered");
    }
    for damage in &recovered.damage {
        let Damage { file, offset, what } = damage;
        tracing::error!(%file, offset, "salvaged without a part of the store: {what}");
    }
    Ok((store, recovered, disk))
}

/// When a clock that began then did so, in microseconds since 1970 by the system's clock as it is now.
pub(crate) fn clock_began_us(started: Instant) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.saturating_sub(started.elapsed()).as_micros() as u64
}

fn shard_config(config: &Config, clock_began_us: u64) -> Result<ShardConfig, StartError> {
    let policies: Result<Vec<Vec<Policy>>, StartError> =
        config.policies.iter().map(policies).collect();
    let host = rustix::system::uname();
    Ok(ShardConfig {
        users: users(config)?,
        vhosts: config.vhosts.clone(),
        trace_vhosts: config.trace_vhosts.clone(),
        vhost_connections_max: config
            .vhost_limits
            .iter()
            .map(|limit| (limit.vhost.clone(), limit.connections_max))
            .collect(),
        policies: policies?.concat(),
        channel_max: config.channel_max,
        frame_max_bytes: config.frame_max_bytes,
        heartbeat_s: config.heartbeat_s,
        handshake_timeout_ms: config.handshake_timeout_ms,
        ack_timeout_ms: config.ack_timeout_ms,
        message_max_bytes: config.message_max_bytes,
        memory_budget_bytes: config.memory_budget_bytes,
        connections_max: config.connections_max,
        handshakes_max: (config.connections_max / 2).max(1),
        seed: random(),
        secret: u128::from(random()) << 64 | u128::from(random()),
        node_name: format!("forebay@{}", host.nodename().to_string_lossy()),
        clock_began_us: Some(clock_began_us),
    })
}

/// 64 bits that nobody can guess: the standard library keys its hashers with the system's random numbers, each differently.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Who may log in.
pub(crate) fn users(config: &Config) -> Result<Vec<User>, StartError> {
    config.users.iter().map(|setting| user(setting, &config.loopback_users)).collect()
}

fn policies(setting: &PolicySetting) -> Result<Vec<Policy>, StartError> {
    setting.policies().map_err(|what| {
        let text = format!("`{}` in `{}` {what}", setting.name, setting.vhost);
        StartError::Config(ConfigError::value("policies", text))
    })
}

fn user(setting: &UserSetting, loopback_users: &[String]) -> Result<User, StartError> {
    let mut user =
        setting.user().map_err(|what| StartError::Config(ConfigError::value("users", what)))?;
    user.loopback_only = loopback_users.contains(&setting.name);
    Ok(user)
}
