//! The life of connections and channels: opening, errors, closing, heartbeats.

use std::cmp::Reverse;

use forebay_wire::{Method, ReplyCode, Scope, ShortStr, channel, connection, write_heartbeat};

use crate::channel::{Channel, Mode};
use crate::connection::{Connection, Stage};
use crate::error::AmqpError;
use crate::handshake::REFUSED_MS;
use crate::input::{CloseHow, ConnectionId, Peer};
use crate::notices::Notice;
use crate::shard::Shard;

/// How long `connection.close-ok` is waited for.
const CLOSING_MS: u64 = 5_000;

/// How often a connection is looked at whose heartbeats do not ask for more: to give back its idle
/// buffers, and for acknowledgements that are due.
const IDLE_CHECK_MS: u64 = 30_000;

impl Shard {
    pub(crate) fn connected(&mut self, id: ConnectionId, peer: Peer) {
        let index = id.0 as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        debug_assert!(self.connections[index].is_none(), "index used twice");
        let serial = self.take_serial();
        self.connections[index] = Some(Box::new(Connection::new(serial, peer, self.now_us)));
        self.connections_open += 1;
        self.handshaking += 1;
        self.counters.connections_opened += 1;
        let too_many = self.handshaking > self.config.handshakes_max;
        self.counters.handshakes_refused += u64::from(too_many);
        if too_many || self.connections_open > self.config.connections_max || self.is_stopping() {
            self.end_handshake(id);
            self.close_socket(id, CloseHow::Now);
            return;
        }
        self.set_timer(id, self.now_us + self.config.handshake_timeout_ms * 1000);
    }

    pub(crate) fn disconnected(&mut self, id: ConnectionId) {
        if self.connection(id).is_none() {
            return;
        }
        self.end_handshake(id);
        self.tear_down(id);
        if let Some(connection) = self.connections[id.0 as usize].take() {
            self.past_waits.add(&connection.waits, self.now_us);
            if connection.in_vhost {
                self.vhosts[connection.vhost as usize].connections -= 1;
            }
            self.publishing_connections -= usize::from(connection.publisher);
            self.receive_bytes -= connection.receive_bytes;
            for unsent in connection.out.into_unsent() {
                self.body_left(unsent);
            }
        }
        self.connections_open -= 1;
    }

    /// The connection has logged in, or is gone. Who only takes his leave has his socket still.
    pub(crate) fn end_handshake(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connection(id)
            && std::mem::take(&mut connection.handshaking)
        {
            self.handshaking -= 1;
        }
    }

    /// Takes back everything the connection had: deliveries, consumers, exclusive queues.
    fn tear_down(&mut self, id: ConnectionId) {
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return };
        connection.waits.end_all(now_us);
        for number in connection.channels.numbers().into_iter().rev() {
            self.forget_channel(id, number);
        }
        self.delete_exclusive_queues(id);
    }

    /// Nothing more is read from this connection; the shell is to close its socket.
    pub(crate) fn close_socket(&mut self, id: ConnectionId, how: CloseHow) {
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return };
        connection.enter(Stage::Done, now_us);
        if connection.close_how.is_none() {
            connection.close_how = Some(how);
            self.closed.push_back((id, how));
        }
        self.tear_down(id);
    }

    /// A connection to close, each named once. The shell then steps [`Input::Disconnected`](crate::Input::Disconnected).
    pub fn next_closed(&mut self) -> Option<(ConnectionId, CloseHow)> {
        while let Some((id, how)) = self.closed.pop_front() {
            // Its peer may have gone first, and its place be another's by now.
            if self.connection(id).is_some_and(|connection| connection.close_how == Some(how)) {
                return Some((id, how));
            }
        }
        None
    }

    /// The client closes: it is answered, and closes the socket itself (a client that is reading sees
    /// its own end then, not ours). If it does not, we do after [`CLOSING_MS`].
    pub(crate) fn client_closes(&mut self, id: ConnectionId) {
        let now_us = self.now_us;
        let numbers = self.connection(id).map(|connection| connection.channels.numbers());
        for number in numbers.unwrap_or_default() {
            self.drop_publisher(id, number);
        }
        self.tear_down(id);
        self.send(id, 0, &connection::CloseOk::default());
        if let Some(connection) = self.connection(id) {
            connection.enter(Stage::Done, now_us);
        }
        self.set_timer(id, now_us + CLOSING_MS * 1000);
    }

    /// Tells the client why, by `connection.close`, and waits for its answer.
    pub(crate) fn connection_error(
        &mut self,
        id: ConnectionId,
        error: AmqpError,
        class_id: u16,
        method_id: u16,
    ) {
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return };
        if matches!(connection.stage, Stage::Closing | Stage::Done | Stage::Refused) {
            return;
        }
        connection.enter(Stage::Closing, now_us);
        let address = connection.peer.address.clone();
        let user = connection.login.as_ref().map(|login| login.user.to_string());
        let text = error.reply_text();
        if error.code != ReplyCode::ConnectionForced {
            self.counters.connection_errors += 1;
            // Of a refused login there is a notice already, which says more.
            if error.code != ReplyCode::AccessRefused || user.is_some() {
                let (code, text) = (error.code.code(), text.clone());
                self.notices.tell(Notice::ConnectionClosed { address, user, code, text });
            }
        }
        self.tear_down(id);
        self.send(
            id,
            0,
            &connection::Close {
                reply_code: error.code.code(),
                reply_text: ShortStr::truncated(&text),
                class_id,
                method_id,
            },
        );
        self.set_timer(id, now_us + CLOSING_MS * 1000);
    }

    /// An error of a channel's method: closes the channel, or the connection where 0-9-1 says so.
    pub(crate) fn channel_error(
        &mut self,
        id: ConnectionId,
        number: u16,
        error: AmqpError,
        class_id: u16,
        method_id: u16,
    ) {
        if error.code.scope() == Scope::Connection {
            return self.connection_error(id, error, class_id, method_id);
        }
        self.counters.channel_errors += 1;
        self.forget_channel(id, number);
        let serial = self.take_serial();
        if let Some(connection) = self.connection(id) {
            let mut closing = Channel::new(serial);
            closing.closing = true;
            connection.channels.insert(number, closing);
            connection.channels_open += 1;
        }
        let text = error.reply_text();
        self.send(
            id,
            number,
            &channel::Close {
                reply_code: error.code.code(),
                reply_text: ShortStr::truncated(&text),
                class_id,
                method_id,
            },
        );
    }

    pub(crate) fn open_channel(
        &mut self,
        id: ConnectionId,
        number: u16,
        open: &channel::Open<'_>,
    ) -> Result<(), AmqpError> {
        let serial = self.take_serial();
        let Some(connection) = self.connection(id) else { return Ok(()) };
        // RabbitMQ counts the channels that are open; their numbers may be any.
        if connection.channels_open >= connection.channel_max {
            return Err(AmqpError::too_many_channels(
                connection.channels_open,
                connection.channel_max,
            ));
        }
        if connection.channel(number).is_some() {
            return Err(AmqpError::second_channel_open());
        }
        connection.channels.insert(number, Channel::new(serial));
        connection.channels_open += 1;
        connection.channels_left.remove(&number);
        let taken = self.name_publisher(id, number, open.reserved_1.as_bytes())?;
        self.send(id, number, &channel::OpenOk { reserved_1: &taken });
        Ok(())
    }

    /// Ends a channel: its consumers are cancelled and its deliveries go back to their places.
    pub(crate) fn forget_channel(&mut self, id: ConnectionId, number: u16) {
        let Some(connection) = self.connection(id) else { return };
        let Some(mut channel) = connection.channels.take(number) else { return };
        connection.channels_open -= 1;
        if let Some(publisher) = channel.publisher.take() {
            self.keep_publisher(*publisher, &channel.mode);
        }
        // From behind: in a queue those behind one that goes move up, and they are mostly this channel's own.
        for key in std::mem::take(&mut channel.consumers).into_iter().rev() {
            self.remove_consumer(key);
        }
        if let Some(reply) = channel.reply_consumer.take() {
            self.reply_tokens.remove(&reply.token);
        }
        if let Mode::Tx(transaction) = &mut channel.mode {
            self.roll_back(transaction, &mut channel.unacked);
        }
        for delivery in channel.unacked.take_newest_first(u64::MAX) {
            self.requeue(delivery);
        }
        self.confirms_left(id);
        // The buffer of a half-received message was counted when it was begun.
        self.memory_bytes -= channel.assembly.bytes.capacity() as u64;
        self.assembling.bytes -= channel.assembly.bytes.capacity() as u64;
    }

    /// A method on channel 0 of an open connection.
    pub(crate) fn connection_method(
        &mut self,
        id: ConnectionId,
        method: &Method<'_>,
    ) -> Result<(), AmqpError> {
        match method {
            Method::ConnectionClose(_) => {
                self.client_closes(id);
                Ok(())
            }
            Method::ConnectionUpdateSecret(_) => {
                // Secrets do not expire here; the client is told that its new one was taken.
                self.send(id, 0, &connection::UpdateSecretOk::default());
                Ok(())
            }
            _ => Err(AmqpError::out_of_order("running")),
        }
    }

    /// After our `connection.close` only its answer counts, or a close that crossed it.
    pub(crate) fn closing_method(&mut self, id: ConnectionId, method: &Method<'_>) {
        match method {
            Method::ConnectionCloseOk(_) => self.close_socket(id, CloseHow::Flushed),
            Method::ConnectionClose(_) => {
                // Once is enough; who goes on closing and reads nothing would fill the memory with answers.
                match self.connection(id).is_some_and(|connection| connection.is_brimful()) {
                    true => self.close_socket(id, CloseHow::Now),
                    false => self.send(id, 0, &connection::CloseOk::default()),
                }
            }
            _ => {}
        }
    }

    pub(crate) fn channel_close(&mut self, id: ConnectionId, number: u16) {
        self.tell_confirms_of(id, number);
        self.drop_publisher(id, number);
        self.forget_channel(id, number);
        let now_us = self.now_us;
        if let Some(connection) = self.connection(id) {
            connection.channels_left.insert(number, now_us);
        }
        self.send(id, number, &channel::CloseOk::default());
    }

    /// `channel.flow` (0-9-1 section 1.5.2.3): the client asks for no more deliveries, or for them. RabbitMQ refuses the
    /// former, so it is for clients that say that they know better.
    pub(crate) fn channel_flow(
        &mut self,
        id: ConnectionId,
        number: u16,
        active: bool,
    ) -> Result<(), AmqpError> {
        let Some(connection) = self.connection(id) else { return Ok(()) };
        if !active && !connection.capabilities.pause {
            return Err(AmqpError::not_implemented("active=false".to_owned()));
        }
        if let Some(channel) = connection.channel(number) {
            channel.active = active;
        }
        if active {
            self.mark_queues_of_channel(id, number);
        }
        self.send(id, number, &channel::FlowOk { active });
        Ok(())
    }

    /// Plans the next look at a connection; the earliest plan holds.
    pub(crate) fn set_timer(&mut self, id: ConnectionId, at_us: u64) {
        if let Some(connection) = self.connection(id) {
            connection.timer_us = at_us;
            self.timers.push(Reverse((at_us, id.0)));
        }
    }

    /// The next look after the login.
    pub(crate) fn plan_heartbeat(&mut self, id: ConnectionId) {
        let now_us = self.now_us;
        let handshake_us = self.config.handshake_timeout_ms * 1000;
        if let Some(connection) = self.connection(id) {
            let every_ms = match connection.heartbeat_s {
                0 => IDLE_CHECK_MS,
                heartbeat_s => (u64::from(heartbeat_s) * 500).min(IDLE_CHECK_MS),
            };
            let every_ms = every_ms.min(u64::from(connection.ack_check_s) * 1000);
            let mut at_us = now_us + every_ms * 1000;
            // `connection.open` is awaited no longer than the rest of the handshake.
            if connection.stage == Stage::Tuned {
                at_us = at_us.min(connection.connected_us + handshake_us);
            }
            self.set_timer(id, at_us);
        }
    }

    pub(crate) fn tick(&mut self) {
        while let Some(Reverse((at_us, index))) = self.timers.peek().copied() {
            if at_us > self.now_us {
                break;
            }
            self.timers.pop();
            let id = ConnectionId(index);
            // An entry of a connection that is gone, or that was planned anew, says nothing.
            if self.connection(id).is_some_and(|connection| connection.timer_us == at_us) {
                self.connection_timer(id);
            }
        }
    }

    fn connection_timer(&mut self, id: ConnectionId) {
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return };
        match connection.stage {
            Stage::Header | Stage::Start | Stage::Tune => {
                self.counters.handshake_timeouts += 1;
                self.close_socket(id, CloseHow::Now);
            }
            Stage::Closing => self.close_socket(id, CloseHow::Flushed),
            Stage::Refused => {
                debug_assert!(now_us >= connection.stage_us + REFUSED_MS * 1000);
                self.close_socket(id, CloseHow::Flushed);
            }
            Stage::Done => self.close_socket(id, CloseHow::Flushed),
            Stage::Tuned | Stage::Open => {
                let handshake_end_us =
                    connection.connected_us + self.config.handshake_timeout_ms * 1000;
                let connection = self.connections[id.0 as usize].as_mut().expect("looked up above");
                if connection.stage == Stage::Tuned && now_us >= handshake_end_us {
                    self.counters.handshake_timeouts += 1;
                    return self.close_socket(id, CloseHow::Now);
                }
                let interval_us = u64::from(connection.heartbeat_s) * 1_000_000;
                if interval_us > 0 {
                    // 0-9-1 section 4.2.7: a peer silent for two intervals is gone. While we do not read because it does not,
                    // that it takes what it asked for is its sign of life (see `sent`). While we do not for another reason,
                    // its silence is our doing, and it counts anew when we do.
                    let takes_its_time =
                        connection.is_brimful() && !connection.out.ready().is_empty();
                    if !takes_its_time && (connection.unheard || connection.keeps_back()) {
                        connection.received_us = now_us;
                    } else if now_us - connection.received_us > 2 * interval_us + interval_us / 2 {
                        self.counters.heartbeat_timeouts += 1;
                        return self.close_socket(id, CloseHow::Now);
                    }
                    if connection.out.len() == 0 && now_us - connection.sent_us >= interval_us / 2 {
                        write_heartbeat(connection.out.buffer());
                        self.mark_connection(id);
                    }
                }
                if let Some(connection) = self.connection(id)
                    && now_us - connection.received_us > 1_000_000
                {
                    connection.partial.shrink_to(0);
                }
                self.check_ack_timeouts(id);
                self.plan_heartbeat(id);
            }
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping != crate::shard::Stopping::No
    }
}
