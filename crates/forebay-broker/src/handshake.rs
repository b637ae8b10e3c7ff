//! From the protocol header to `connection.open-ok` (0-9-1 sections 2.2.4 and 4.2.2).

use std::sync::Arc;

use forebay_wire::{Method, Table, Value, connection};

use crate::access::{LoginError, authenticate, claimed_name};
use crate::connection::{Capabilities, Login, Stage};
use crate::error::AmqpError;
use crate::input::{CloseHow, ConnectionId};
use crate::notices::Notice;
use crate::server_properties::server_properties;
use crate::shard::{Shard, Vhost};
use crate::{ack_timeout, channel, publisher};

/// How long a client that cannot be told of a refused login is kept waiting (RabbitMQ: about 3 s), so
/// that guessing passwords is slow.
pub(crate) const REFUSED_MS: u64 = 3_000;

/// Mechanisms offered, as RabbitMQ orders them.
const MECHANISMS: &[u8] = b"PLAIN AMQPLAIN";

impl Shard {
    /// The protocol header was right.
    pub(crate) fn start(&mut self, id: ConnectionId) {
        let properties = server_properties(&self.config.node_name);
        let now_us = self.now_us;
        if let Some(connection) = self.connection(id) {
            connection.enter(Stage::Start, now_us);
        }
        self.send(
            id,
            0,
            &connection::Start {
                version_major: 0,
                version_minor: 9,
                server_properties: properties.as_table(),
                mechanisms: MECHANISMS,
                locales: b"en_US",
            },
        );
    }

    /// A method before the connection is open.
    pub(crate) fn handshake_method(&mut self, id: ConnectionId, stage: Stage, method: &Method<'_>) {
        let done = match (stage, method) {
            (Stage::Start, Method::ConnectionStartOk(start_ok)) => self.start_ok(id, start_ok),
            (Stage::Tune, Method::ConnectionTuneOk(tune_ok)) => self.tune_ok(id, tune_ok),
            (Stage::Tuned, Method::ConnectionOpen(open)) => self.open(id, open),
            (_, Method::ConnectionClose(_)) => {
                self.client_closes(id);
                Ok(())
            }
            _ => Err(AmqpError::out_of_order(stage_name(stage))),
        };
        if let Err(error) = done {
            self.connection_error(id, error, method.class_id(), method.method_id());
            if stage == Stage::Start {
                // Whoever has not logged in is not waited for.
                self.close_socket(id, CloseHow::Flushed);
            }
        }
    }

    fn start_ok(
        &mut self,
        id: ConnectionId,
        start_ok: &connection::StartOk<'_>,
    ) -> Result<(), AmqpError> {
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return Ok(()) };
        connection.capabilities = capabilities(start_ok.client_properties);
        let loopback = connection.peer.loopback;
        let can_be_told = connection.capabilities.authentication_failure_close;
        let mechanism = start_ok.mechanism.as_bytes();
        match authenticate(&self.config.users, mechanism, start_ok.response, loopback) {
            Ok(user) => {
                let login = Login {
                    user: Arc::from(user.name.as_str()),
                    impersonator: user.has_tag("impersonator"),
                };
                let tune = connection::Tune {
                    channel_max: self.config.channel_max,
                    frame_max: self.config.frame_max_bytes,
                    heartbeat: self.config.heartbeat_s,
                };
                if let Some(connection) = self.connection(id) {
                    connection.login = Some(login);
                    connection.enter(Stage::Tune, now_us);
                }
                self.send(id, 0, &tune);
                Ok(())
            }
            Err(LoginError::UnknownMechanism) => {
                Err(AmqpError::unknown_mechanism(String::from_utf8_lossy(mechanism)))
            }
            Err(LoginError::Malformed) => Err(AmqpError::malformed_login()),
            Err(why) => {
                if let Some(connection) = self.connection(id) {
                    let address = connection.peer.address.clone();
                    let user = claimed_name(mechanism, start_ok.response);
                    let why = why.to_string();
                    self.notices.tell(Notice::LoginRefused { address, user, why });
                }
                if can_be_told {
                    return Err(AmqpError::login_refused(String::from_utf8_lossy(mechanism)));
                }
                if let Some(connection) = self.connection(id) {
                    connection.enter(Stage::Refused, now_us);
                }
                self.set_timer(id, now_us + REFUSED_MS * 1000);
                Ok(())
            }
        }
    }

    fn tune_ok(&mut self, id: ConnectionId, tune_ok: &connection::TuneOk) -> Result<(), AmqpError> {
        let (channel_max, frame_max) = (self.config.channel_max, self.config.frame_max_bytes);
        check_tuned("channel_max", tune_ok.channel_max.into(), channel_max.into(), 0)?;
        check_tuned("frame_max", tune_ok.frame_max, frame_max, forebay_wire::FRAME_MIN_SIZE_BYTES)?;
        let now_us = self.now_us;
        if let Some(connection) = self.connection(id) {
            connection.channel_max = tune_ok.channel_max;
            connection.frame_max_bytes = tune_ok.frame_max;
            connection.heartbeat_s = tune_ok.heartbeat;
            connection.enter(Stage::Tuned, now_us);
        }
        self.plan_heartbeat(id);
        Ok(())
    }

    fn open(&mut self, id: ConnectionId, open: &connection::Open<'_>) -> Result<(), AmqpError> {
        let name = open.virtual_host.to_string();
        let now_us = self.now_us;
        let Some(vhost) = self.vhosts.iter().position(|vhost| vhost.name == name) else {
            return Err(AmqpError::vhost_not_found(&name));
        };
        let Some(login) = self.connection(id).and_then(|connection| connection.login.clone())
        else {
            return Ok(());
        };
        let Vhost { connections, connections_max, .. } = &self.vhosts[vhost];
        if let Some(limit) = connections_max.filter(|limit| connections >= limit) {
            return Err(AmqpError::vhost_full(&name, &login.user, limit));
        }
        let permissions = self
            .config
            .users
            .iter()
            .find(|user| user.name == *login.user)
            .and_then(|user| user.permissions(&name))
            .ok_or_else(|| AmqpError::vhost_refused(&name, &login.user))?;
        if let Some(connection) = self.connection(id) {
            connection.vhost = vhost as u32;
            connection.in_vhost = true;
            connection.permissions = Some(permissions);
            connection.enter(Stage::Open, now_us);
            connection.partial.shrink_to(0);
        }
        self.vhosts[vhost].connections += 1;
        self.end_handshake(id);
        self.send(id, 0, &connection::OpenOk::default());
        Ok(())
    }
}

fn check_tuned(name: &str, wanted: u32, ours: u32, least: u32) -> Result<(), AmqpError> {
    // 0 means no limit (0-9-1 section 1.4.2.6), which is more than ours.
    if wanted == 0 || wanted > ours {
        return Err(AmqpError::negotiated_too_high(name, wanted, ours));
    }
    if wanted < least {
        return Err(AmqpError::negotiated_too_low(name, wanted, least));
    }
    Ok(())
}

fn capabilities(client_properties: Table<'_>) -> Capabilities {
    let Some(Value::Table(table)) = client_properties.get("capabilities") else {
        return Capabilities::default();
    };
    let has = |name: &str| matches!(table.get(name), Some(Value::Bool(true)));
    Capabilities {
        authentication_failure_close: has("authentication_failure_close"),
        consumer_cancel_notify: has("consumer_cancel_notify"),
        connection_blocked: has("connection.blocked"),
        named_publishers: has(publisher::CAPABILITY),
        leases: has(ack_timeout::LEASES),
        pause: has(channel::PAUSE),
        commit_times: has(forebay_flow::COMMIT_TIMES),
    }
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Header => "waiting for the protocol header",
        Stage::Start => "starting",
        Stage::Tune => "tuning",
        Stage::Tuned => "opening",
        Stage::Open => "running",
        Stage::Closing => "closing",
        Stage::Refused | Stage::Done => "closed",
    }
}
