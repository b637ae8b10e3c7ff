//! The methods of the connection itself: login, limits, close, blocked (clause 2.2.4).

use forebay_flow::{COMMIT_TIMES, CommitTime};
use forebay_wire::FrameError;
use forebay_wire::ShortStr;
use forebay_wire::{Method, connection};
use forebay_wire::{TableBuf, Value};

use super::{CloseReason, Event, Failed, Login, Machine, Server, State, Step, misbehaved};
use crate::session::NAMED_PUBLISHERS;

/// What we can take, as RabbitMQ names it, and Forebay.
const CAPABILITIES: [&str; 11] = [
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "exchange_exchange_bindings",
    "per_consumer_qos",
    "publisher_confirms",
    NAMED_PUBLISHERS,
    LEASES,
    PAUSE,
    COMMIT_TIMES,
];

/// We answer channel.flow at once, so it may be used to ask whether we are there.
const LEASES: &str = "forebay.leases";
/// We may ask by channel.flow for no deliveries.
pub(crate) const PAUSE: &str = "forebay.pause";

impl Machine {
    pub(super) fn connection_method<'i>(&mut self, method: Method<'i>) -> Result<Step<'i>, Failed> {
        match (self.state, method) {
            (State::Starting, Method::ConnectionStart(start)) => self.start(start),
            (State::Tuning, Method::ConnectionTune(tune)) => {
                self.tune(tune);
                Ok(Step::Silent)
            }
            (State::Opening, Method::ConnectionOpenOk(_)) => {
                self.state = State::Open;
                Ok(Step::Tell(Event::Opened))
            }
            (State::Closing, Method::ConnectionCloseOk(_)) => {
                self.state = State::Over;
                Ok(Step::Tell(Event::Closed { reason: None }))
            }
            (State::Closing, Method::ConnectionClose(_)) => {
                // Crossing closes: answer theirs and go on waiting for the answer to ours.
                self.write(0, &connection::CloseOk::default());
                Ok(Step::Silent)
            }
            (_, Method::ConnectionClose(close)) => {
                self.write(0, &connection::CloseOk::default());
                self.state = State::Over;
                self.settled.clear();
                Ok(Step::Tell(Event::Closed {
                    reason: Some(CloseReason {
                        code: close.reply_code,
                        text: close.reply_text,
                        class_id: close.class_id,
                        method_id: close.method_id,
                    }),
                }))
            }
            (State::Closing, _) => Ok(Step::Silent),
            (State::Open, Method::ConnectionBlocked(blocked)) => {
                Ok(Step::Tell(Event::Blocked { reason: blocked.reason }))
            }
            (State::Open, Method::ConnectionUnblocked(_)) => Ok(Step::Tell(Event::Unblocked)),
            (State::Open, Method::ForebayCommitTime(told)) => {
                let us = u64::from(told.commit_us);
                let told = CommitTime {
                    us,
                    publishers: told.publishers,
                    part_permille: told.part_permille,
                };
                Ok(Step::Tell(Event::CommitTime(told)))
            }
            (State::Open, Method::ConnectionUpdateSecretOk(_)) => {
                Ok(Step::Tell(Event::Reply { channel: 0, method }))
            }
            _ => Err(misbehaved("a connection method that does not belong here", 0)),
        }
    }

    fn start<'i>(&mut self, start: connection::Start<'i>) -> Result<Step<'i>, Failed> {
        let login = self.options.login;
        let wanted = login.mechanism().as_bytes();
        if !start.mechanisms.split(|&byte| byte == b' ').any(|name| name == wanted) {
            let offered = String::from_utf8_lossy(start.mechanisms).into_owned();
            return Err(Failed::NoSuchLogin { wanted: login.mechanism(), offered });
        }
        self.server = Server::from_table(start.server_properties);
        let capabilities = CAPABILITIES
            .iter()
            .fold(TableBuf::new(), |table, name| table.with(name, Value::Bool(true)));
        let mut properties = TableBuf::new()
            .with("product", Value::LongStr(b"Forebay client"))
            .with("version", Value::LongStr(env!("CARGO_PKG_VERSION").as_bytes()))
            .with("platform", Value::LongStr(b"Rust"))
            .with("capabilities", Value::Table(capabilities.as_table()));
        if let Some(name) = &self.options.connection_name {
            properties.push(b"connection_name", Value::LongStr(name.as_bytes()));
        }
        let mut response = Vec::new();
        match login {
            // Authorisation identity (none), NUL, user name, NUL, password.
            Login::Plain => {
                response.push(0);
                response.extend_from_slice(self.options.username.as_bytes());
                response.push(0);
                response.extend_from_slice(self.options.password.as_bytes());
            }
            // An empty authorisation identity: whoever the transport says we are.
            Login::External => {}
        }
        let start_ok = connection::StartOk {
            client_properties: properties.as_table(),
            mechanism: ShortStr::truncated(login.mechanism()),
            response: &response,
            locale: ShortStr::truncated("en_US"),
        };
        forebay_wire::write_method(self.outgoing.tail(), 0, &start_ok);
        self.state = State::Tuning;
        Ok(Step::Silent)
    }

    fn tune(&mut self, tune: connection::Tune) {
        self.limits.channel_max = lower(self.limits.channel_max, tune.channel_max);
        self.limits.frame_bytes_max = lower(self.limits.frame_bytes_max, tune.frame_max).max(4096);
        // 0 from either side means that heartbeats are off.
        self.limits.heartbeat_s = self.limits.heartbeat_s.min(tune.heartbeat);
        let tune_ok = connection::TuneOk {
            channel_max: self.limits.channel_max,
            frame_max: self.limits.frame_bytes_max,
            heartbeat: self.limits.heartbeat_s,
        };
        self.write(0, &tune_ok);
        let open = connection::Open {
            virtual_host: ShortStr::truncated(&self.options.vhost),
            ..Default::default()
        };
        forebay_wire::write_method(self.outgoing.tail(), 0, &open);
        self.heartbeat.start(self.limits.heartbeat_s);
        self.state = State::Opening;
    }

    /// Before the login the peer may answer with a protocol header, or be something else entirely.
    pub(super) fn unreadable(&self, input: &[u8], error: FrameError) -> Failed {
        if self.state != State::Starting {
            return Failed::Frame(error);
        }
        let mut said = [b' '; 8];
        let known = input.len().min(8);
        said[..known].copy_from_slice(&input[..known]);
        Failed::OtherProtocol { said }
    }
}

/// The lower of two limits of which the peer's may be 0 for none.
fn lower<N: Ord + Default>(ours: N, theirs: N) -> N {
    if theirs == N::default() { ours } else { ours.min(theirs) }
}
