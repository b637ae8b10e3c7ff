//! From a publish to its queues: permission, existence, extra keys, and a memory of the last route.

use forebay_wire::{Properties, RawProperties, Table};

use crate::access::Access;
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::message::Message;
use crate::shard::Shard;
use crate::topology::{QueueKey, ResourceKind, extra_routing_keys, without_bcc};

impl Shard {
    /// 403 or 404 if the channel may not publish the message being assembled where it is to go. A
    /// remembered route that still holds was permitted before.
    pub(crate) fn permit_publish(
        &mut self,
        id: ConnectionId,
        number: u16,
    ) -> Result<(), AmqpError> {
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else { return Ok(()) };
        let version = self.vhosts[connection.vhost as usize].topology.version();
        let Some(channel) = connection.channel(number) else { return Ok(()) };
        channel.assembly.permitted_at = version;
        if channel.assembly.remembered && channel.route_cache.version == version {
            return Ok(());
        }
        channel.forget_remembered();
        let exchange = channel.assembly.exchange.clone();
        self.permit(id, Access::Write, ResourceKind::Exchange, &exchange)?;
        self.topology(id).exchange_to_publish(&exchange)?;
        if self.has_topic_permissions(id)
            && let Some(channel) = self.connection(id).and_then(|c| c.channel(number))
        {
            let routing_key = channel.assembly.routing_key.clone();
            self.permit_topic(id, Access::Write, &exchange, &routing_key)?;
        }
        Ok(())
    }

    /// The same for the keys in `CC` and `BCC`, and 406 if they are none: here, because a commit could not refuse one
    /// publish without the rest.
    pub(crate) fn permit_extra_keys(
        &mut self,
        id: ConnectionId,
        number: u16,
        headers: Table<'_>,
    ) -> Result<(), AmqpError> {
        let keys = extra_routing_keys(headers)?;
        if !self.has_topic_permissions(id) {
            return Ok(());
        }
        let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) else {
            return Ok(());
        };
        let exchange = channel.assembly.exchange.clone();
        for key in keys {
            self.permit_topic(id, Access::Write, &exchange, key)?;
        }
        Ok(())
    }

    /// Fills `queues` with the channel's last route.
    pub(crate) fn remembered_route(
        &mut self,
        id: ConnectionId,
        number: u16,
        queues: &mut Vec<QueueKey>,
    ) {
        if let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) {
            queues.extend_from_slice(&channel.route_cache.queues);
        }
    }

    /// Fills `queues`. Returns the message to enqueue instead, if it must not be seen as it is.
    pub(crate) fn route(
        &mut self,
        id: ConnectionId,
        number: u16,
        message: &Message,
        permitted_at: u64,
        queues: &mut Vec<QueueKey>,
    ) -> Result<Option<Message>, AmqpError> {
        let (exchange, routing_key) = (message.exchange(), message.routing_key());
        let raw = RawProperties::trusted(message.raw_properties());
        let headers = raw.headers();
        let headers = headers.unwrap_or_default();
        let extra = extra_routing_keys(headers)?;
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
            return Ok(None);
        };
        let topology = &self.vhosts[connection.vhost as usize].topology;
        let Some(from) = topology.exchange_key(&exchange) else {
            // Deleted since the transaction took the message: nobody can have it.
            return Ok(None);
        };
        topology.route(from, &routing_key, &extra, raw, &mut self.route_set);
        queues.extend_from_slice(self.route_set.queues());
        // What was permitted before the last change need not be so now.
        if extra.is_empty()
            && permitted_at == topology.version()
            && !self.route_set.depends_on_headers()
            && let Some(channel) = connection.channel(number)
        {
            let cache = &mut channel.route_cache;
            cache.version = topology.version();
            cache.exchange.clear();
            cache.exchange.extend_from_slice(&exchange);
            cache.routing_key.clear();
            cache.routing_key.extend_from_slice(&routing_key);
            cache.queues.clear();
            cache.queues.extend_from_slice(queues);
        }
        let Some(kept) = without_bcc(headers) else { return Ok(None) };
        let mut properties = Vec::new();
        Properties { headers: Some(kept.as_table()), ..raw.parse() }.encode(&mut properties);
        Ok(Some(message.with_properties(&properties)))
    }
}
