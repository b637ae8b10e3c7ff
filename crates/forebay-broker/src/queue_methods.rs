//! Class `queue` (0-9-1 section 1.7): how queues are declared and bound, and what may be asked of them.

use forebay_wire::{ShortStr, TableBuf, queue};

use crate::access::Access;
use crate::ack_timeout::timeout_argument;
use crate::dead_letters::EXCHANGE_ARGUMENT;
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::levels::max_priority;
use crate::queue::Queue;
use crate::reply_to::REPLY_TO;
use crate::shard::Shard;
use crate::topology::{
    Bind, BindTo, Change, ExchangeKind, MetaWrite, QueueDeclaration, QueueKey, QueueRecord,
    Resource, ResourceKind, VhostTopology, check_queue_arguments, check_queue_equivalent,
    is_reserved, stripped,
};

impl Shard {
    pub(crate) fn vhost_name(&self, id: ConnectionId) -> String {
        let vhost = match self.connections.get(id.0 as usize) {
            Some(Some(connection)) => connection.vhost as usize,
            _ => 0,
        };
        self.vhosts[vhost].name.clone()
    }

    pub(crate) fn topology(&mut self, id: ConnectionId) -> &mut VhostTopology {
        let vhost = self.connection(id).map_or(0, |connection| connection.vhost as usize);
        &mut self.vhosts[vhost].topology
    }

    /// 403 unless the user may.
    pub(crate) fn permit(
        &mut self,
        id: ConnectionId,
        access: Access,
        kind: ResourceKind,
        name: &[u8],
    ) -> Result<(), AmqpError> {
        let Some(connection) = self.connection(id) else { return Ok(()) };
        let (Some(permissions), Some(login)) = (&connection.permissions, &connection.login) else {
            return Ok(());
        };
        let (permissions, user) = (permissions.clone(), login.user.clone());
        let vhost = self.vhost_name(id);
        permissions.check(access, Resource { kind, name, vhost: &vhost }, user)
    }

    pub(crate) fn has_topic_permissions(&mut self, id: ConnectionId) -> bool {
        self.connection(id)
            .and_then(|connection| connection.permissions.as_ref())
            .is_some_and(|permissions| !permissions.topics.is_empty())
    }

    /// 403 unless the user may use the routing key, if this is a topic exchange.
    pub(crate) fn permit_topic(
        &mut self,
        id: ConnectionId,
        access: Access,
        exchange: &[u8],
        routing_key: &[u8],
    ) -> Result<(), AmqpError> {
        if !self.has_topic_permissions(id) {
            return Ok(());
        }
        let is_topic =
            self.topology(id).exchange(exchange).is_some_and(|x| x.kind() == ExchangeKind::Topic);
        let vhost = self.vhost_name(id);
        let Some(connection) = self.connection(id) else { return Ok(()) };
        match (&connection.permissions, &connection.login) {
            (Some(permissions), Some(login)) if is_topic => {
                let exchange = Resource::exchange(exchange, &vhost);
                permissions.topics.check(access, exchange, routing_key, &login.user)
            }
            _ => Ok(()),
        }
    }

    /// The name a method means: an empty one is the channel's last declared queue.
    fn meant_queue(
        &mut self,
        id: ConnectionId,
        number: u16,
        name: &[u8],
    ) -> Result<Vec<u8>, AmqpError> {
        if !name.is_empty() {
            return Ok(name.to_vec());
        }
        self.connection(id)
            .and_then(|c| c.channel(number))
            .and_then(|channel| channel.last_queue.clone())
            .ok_or_else(AmqpError::no_declared_queue)
    }

    /// The queue that a method means: permitted, existing, and not somebody else's.
    pub(crate) fn queue_for(
        &mut self,
        id: ConnectionId,
        number: u16,
        name: ShortStr<'_>,
        access: Option<Access>,
    ) -> Result<QueueKey, AmqpError> {
        let name = self.meant_queue(id, number, name.as_bytes())?;
        if let Some(access) = access {
            self.permit(id, access, ResourceKind::Queue, &name)?;
        }
        self.existing_queue(id, &name)
    }

    fn existing_queue(&mut self, id: ConnectionId, name: &[u8]) -> Result<QueueKey, AmqpError> {
        let vhost = self.vhost_name(id);
        let resource = Resource::queue(name, &vhost);
        let key = self.topology(id).queue(name).ok_or_else(|| AmqpError::not_found(resource))?;
        match self.queues[key.0 as usize].owner {
            Some(owner) if owner != id => Err(AmqpError::resource_locked(resource)),
            _ => Ok(key),
        }
    }

    pub(crate) fn queue_declare(
        &mut self,
        id: ConnectionId,
        number: u16,
        declare: &queue::Declare<'_>,
    ) -> Result<(), AmqpError> {
        let name = stripped(declare.queue.as_bytes()).into_owned();
        if name == REPLY_TO || (name.starts_with(REPLY_TO) && declare.passive) {
            return self.reply_queue_declare(id, number, declare, &name);
        }
        let (name, key) = if declare.passive {
            let key = self.existing_queue(id, &name)?;
            (name, key)
        } else {
            let name = match name {
                name if name.is_empty() => self.made_up_name("amq.gen-"),
                name if is_reserved(&name) => {
                    return Err(AmqpError::reserved_name(ResourceKind::Queue, &name));
                }
                name => name,
            };
            self.permit(id, Access::Configure, ResourceKind::Queue, &name)?;
            let key = match self.topology(id).queue(&name) {
                Some(key) => {
                    self.check_redeclared(id, key, &name, declare)?;
                    key
                }
                None => self.create_queue(id, &name, declare)?,
            };
            (name, key)
        };
        if let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) {
            channel.last_queue = Some(name.clone());
        }
        self.shorten_idle(key);
        self.expire_idle(key);
        let queue = &mut self.queues[key.0 as usize];
        queue.used(self.now_us);
        if declare.no_wait {
            return Ok(());
        }
        let stored = queue.stored;
        let ready = self.ready_in(key);
        let queue = &self.queues[key.0 as usize];
        let message_count = ready.min(u64::from(u32::MAX)) as u32;
        let consumer_count = queue.consumers.len() as u32;
        if stored {
            self.raise_topology_barrier(id);
        }
        let queue = ShortStr::new(&name).unwrap_or_default();
        self.send(id, number, &queue::DeclareOk { queue, message_count, consumer_count });
        Ok(())
    }

    /// A passive declare of a reply name asks whether its requester is still there.
    fn reply_queue_declare(
        &mut self,
        id: ConnectionId,
        number: u16,
        declare: &queue::Declare<'_>,
        name: &[u8],
    ) -> Result<(), AmqpError> {
        if name != REPLY_TO && !self.replies_wanted(name) {
            let vhost = self.vhost_name(id);
            return Err(AmqpError::not_found(Resource::queue(name, &vhost)));
        }
        if !declare.no_wait {
            let queue = ShortStr::new(name).unwrap_or_default();
            let answer = queue::DeclareOk { queue, message_count: 0, consumer_count: 1 };
            self.send(id, number, &answer);
        }
        Ok(())
    }

    fn check_redeclared(
        &mut self,
        id: ConnectionId,
        key: QueueKey,
        name: &[u8],
        declare: &queue::Declare<'_>,
    ) -> Result<(), AmqpError> {
        let vhost = self.vhost_name(id);
        let resource = Resource::queue(name, &vhost);
        let queue = &self.queues[key.0 as usize];
        let owned_by_asker = queue.owner == Some(id);
        if queue.owner.is_some() != declare.exclusive || (declare.exclusive && !owned_by_asker) {
            return Err(AmqpError::resource_locked(resource));
        }
        check_queue_equivalent(
            resource,
            QueueDeclaration {
                durable: queue.stored,
                auto_delete: queue.auto_delete,
                arguments: queue.arguments.as_table(),
            },
            QueueDeclaration {
                durable: lasts(declare),
                auto_delete: declare.auto_delete,
                arguments: declare.arguments,
            },
        )
    }

    fn create_queue(
        &mut self,
        id: ConnectionId,
        name: &[u8],
        declare: &queue::Declare<'_>,
    ) -> Result<QueueKey, AmqpError> {
        let vhost_name = self.vhost_name(id);
        let resource = Resource::queue(name, &vhost_name);
        check_queue_arguments(resource, declare.arguments)?;
        let dead_letters = declare.arguments.get(EXCHANGE_ARGUMENT);
        if let Some(exchange) = dead_letters.and_then(|value| value.as_long_str()) {
            // What dies is read from one and written to the other.
            self.permit(id, Access::Read, ResourceKind::Queue, name)?;
            self.permit(id, Access::Write, ResourceKind::Exchange, exchange)?;
        }
        let vhost = self.connection(id).map_or(0, |connection| connection.vhost);
        let queue_id = self.next_queue_id;
        self.next_queue_id += 1 + u64::from(max_priority(declare.arguments));
        let policies = &self.vhosts[vhost as usize].topology.policies;
        let all = policies.queue_arguments(name, declare.arguments);
        let ack_timeout_ms = timeout_argument(resource, all.as_table())?;
        let declared = TableBuf::from(declare.arguments);
        let mut queue =
            Queue::new(queue_id, vhost, name).with_arguments(self.now_us, declared, all.as_table());
        queue.stored = lasts(declare);
        queue.auto_delete = declare.auto_delete;
        queue.owner = declare.exclusive.then_some(id);
        queue.ack_timeout_ms = ack_timeout_ms;
        let stored = queue.stored;
        let record = QueueRecord {
            vhost: vhost_name,
            name: name.into(),
            id: queue_id,
            durable: stored,
            auto_delete: declare.auto_delete,
            exclusive: declare.exclusive,
            arguments: queue.arguments.clone(),
        };
        let key = QueueKey(self.queues.insert(Box::new(queue)) as u32);
        self.vhosts[vhost as usize].topology.add_queue(name, key, stored);
        if declare.exclusive
            && let Some(connection) = self.connection(id)
        {
            connection.exclusive_queues.push((key, queue_id));
        }
        if stored {
            self.write_meta(MetaWrite::Put { key: record.key(), value: record.encode() });
        }
        self.plan_queue(key);
        Ok(key)
    }

    pub(crate) fn queue_bind(
        &mut self,
        id: ConnectionId,
        number: u16,
        bind: &queue::Bind<'_>,
    ) -> Result<(), AmqpError> {
        // An empty key with an empty queue name means the last queue's name (0-9-1 section 1.7.2.3).
        let both_empty = bind.queue.is_empty() && bind.routing_key.is_empty();
        let name = self.meant_queue(id, number, &stripped(bind.queue.as_bytes()))?;
        let routing_key =
            if both_empty { name.clone() } else { bind.routing_key.as_bytes().to_vec() };
        let exchange = stripped(bind.exchange.as_bytes()).into_owned();
        self.permit(id, Access::Write, ResourceKind::Queue, &name)?;
        self.permit(id, Access::Read, ResourceKind::Exchange, &exchange)?;
        self.permit_topic(id, Access::Read, &exchange, &routing_key)?;
        // In RabbitMQ's order: an exchange that is not there is said before a queue that is somebody else's.
        self.topology(id).check_exchange(&exchange)?;
        self.locked_elsewhere(id, &name)?;
        let change = self.topology(id).bind(&Bind {
            source: &exchange,
            destination: BindTo::Queue(&name),
            routing_key: &routing_key,
            arguments: bind.arguments,
        })?;
        self.write_changes(change);
        if !bind.no_wait {
            self.raise_topology_barrier(id);
            self.send(id, number, &queue::BindOk::default());
        }
        Ok(())
    }

    pub(crate) fn queue_unbind(
        &mut self,
        id: ConnectionId,
        number: u16,
        unbind: &queue::Unbind<'_>,
    ) -> Result<(), AmqpError> {
        let both_empty = unbind.queue.is_empty() && unbind.routing_key.is_empty();
        let name = self.meant_queue(id, number, &stripped(unbind.queue.as_bytes()))?;
        let routing_key =
            if both_empty { name.clone() } else { unbind.routing_key.as_bytes().to_vec() };
        let exchange = stripped(unbind.exchange.as_bytes()).into_owned();
        self.permit(id, Access::Write, ResourceKind::Queue, &name)?;
        self.permit(id, Access::Read, ResourceKind::Exchange, &exchange)?;
        self.permit_topic(id, Access::Read, &exchange, &routing_key)?;
        self.locked_elsewhere(id, &name)?;
        let changes = self.topology(id).unbind(&Bind {
            source: &exchange,
            destination: BindTo::Queue(&name),
            routing_key: &routing_key,
            arguments: unbind.arguments,
        })?;
        self.write_changes(changes);
        self.raise_topology_barrier(id);
        self.send(id, number, &queue::UnbindOk::default());
        Ok(())
    }

    /// 405 if the queue exists and belongs to another connection.
    fn locked_elsewhere(&mut self, id: ConnectionId, name: &[u8]) -> Result<(), AmqpError> {
        if self.topology(id).queue(name).is_some() {
            self.existing_queue(id, name)?;
        }
        Ok(())
    }

    pub(crate) fn queue_purge(
        &mut self,
        id: ConnectionId,
        number: u16,
        purge: &queue::Purge<'_>,
    ) -> Result<(), AmqpError> {
        let key = self.queue_for(id, number, purge.queue, Some(Access::Read))?;
        let message_count = self.purge(key);
        if !purge.no_wait {
            self.send(id, number, &queue::PurgeOk { message_count });
        }
        Ok(())
    }

    pub(crate) fn queue_delete(
        &mut self,
        id: ConnectionId,
        number: u16,
        delete: &queue::Delete<'_>,
    ) -> Result<(), AmqpError> {
        let name = self.meant_queue(id, number, &stripped(delete.queue.as_bytes()))?;
        self.permit(id, Access::Configure, ResourceKind::Queue, &name)?;
        let vhost = self.vhost_name(id);
        let (message_count, consumers) = match self.topology(id).queue(&name) {
            // Deleting what is not there is no error (RabbitMQ since 3.2).
            None => Default::default(),
            Some(_) => {
                let key = self.existing_queue(id, &name)?;
                let queue = &self.queues[key.0 as usize];
                let resource = Resource::queue(&name, &vhost);
                if delete.if_empty && self.ready_in(key) > 0 {
                    return Err(AmqpError::not_empty(resource));
                }
                if delete.if_unused && !queue.consumers.is_empty() {
                    return Err(AmqpError::in_use(resource));
                }
                self.end_queue(key)
            }
        };
        if !delete.no_wait {
            self.raise_topology_barrier(id);
            self.send(id, number, &queue::DeleteOk { message_count });
        }
        // Behind the answer, as with RabbitMQ: it may be the same channel.
        self.tell_cancelled(consumers);
        Ok(())
    }

    /// Writes what of a change survives a restart.
    pub(crate) fn write_changes(&mut self, changes: Vec<Change>) {
        for change in changes {
            if let Some(write) = change.meta_write() {
                self.write_meta(write);
            }
        }
    }

    pub(crate) fn write_meta(&mut self, write: MetaWrite) {
        match write {
            MetaWrite::Put { key, value } => self.store.put_meta(&key, &value),
            MetaWrite::Delete { key } => self.store.delete_meta(&key),
        }
        self.topology_batch = self.store.open_batch();
    }

    /// An answer about topology is not sent before the last change of it is on disk.
    pub(crate) fn raise_topology_barrier(&mut self, id: ConnectionId) {
        self.raise_barrier(id, self.topology_batch);
    }
}

/// Whether the queue is to survive the broker. What goes with its connection is not, and a redeclaration may say of it what it
/// likes, as with RabbitMQ.
fn lasts(declare: &queue::Declare<'_>) -> bool {
    declare.durable && !declare.exclusive
}
