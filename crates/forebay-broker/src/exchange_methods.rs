//! Class `exchange` (0-9-1 section 1.6 and RabbitMQ's exchange-to-exchange bindings).

use forebay_wire::exchange;

use crate::access::Access;
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::shard::Shard;
use crate::topology::{
    ALTERNATE_EXCHANGE, Bind, BindTo, ExchangeDeclaration, ResourceKind, stripped,
};

impl Shard {
    pub(crate) fn exchange_declare(
        &mut self,
        id: ConnectionId,
        number: u16,
        declare: &exchange::Declare<'_>,
    ) -> Result<(), AmqpError> {
        let name = stripped(declare.exchange.as_bytes()).into_owned();
        let kind = ResourceKind::Exchange;
        if declare.passive {
            self.topology(id).check_exchange(&name)?;
        } else {
            self.permit(id, Access::Configure, kind, &name)?;
            // One that is there keeps the alternate exchange it has, which somebody else was permitted.
            if self.topology(id).exchange_key(&name).is_none()
                && let Some(alternate) =
                    declare.arguments.get(ALTERNATE_EXCHANGE).and_then(|value| value.as_long_str())
            {
                // What an alternate exchange gets is read from one and written to the other.
                self.permit(id, Access::Read, kind, &name)?;
                self.permit(id, Access::Write, kind, alternate)?;
            }
            let changes = self.topology(id).declare_exchange(&ExchangeDeclaration {
                name: &name,
                kind: declare.type_name.as_bytes(),
                durable: declare.durable,
                auto_delete: declare.auto_delete,
                internal: declare.internal,
                arguments: declare.arguments,
            })?;
            self.write_changes(changes);
        }
        if !declare.no_wait {
            self.raise_topology_barrier(id);
            self.send(id, number, &exchange::DeclareOk::default());
        }
        Ok(())
    }

    pub(crate) fn exchange_delete(
        &mut self,
        id: ConnectionId,
        number: u16,
        delete: &exchange::Delete<'_>,
    ) -> Result<(), AmqpError> {
        let name = stripped(delete.exchange.as_bytes()).into_owned();
        self.permit(id, Access::Configure, ResourceKind::Exchange, &name)?;
        let changes = self.topology(id).delete_exchange(&name, delete.if_unused)?;
        self.write_changes(changes);
        if !delete.no_wait {
            self.raise_topology_barrier(id);
            self.send(id, number, &exchange::DeleteOk::default());
        }
        Ok(())
    }

    pub(crate) fn exchange_bind(
        &mut self,
        id: ConnectionId,
        number: u16,
        bind: &exchange::Bind<'_>,
    ) -> Result<(), AmqpError> {
        let (source, destination) =
            self.permitted_ends(id, &bind.source, &bind.destination, &bind.routing_key)?;
        let changes = self.topology(id).bind(&Bind {
            source: &source,
            destination: BindTo::Exchange(&destination),
            routing_key: bind.routing_key.as_bytes(),
            arguments: bind.arguments,
        })?;
        self.write_changes(changes);
        if !bind.no_wait {
            self.raise_topology_barrier(id);
            self.send(id, number, &exchange::BindOk::default());
        }
        Ok(())
    }

    pub(crate) fn exchange_unbind(
        &mut self,
        id: ConnectionId,
        number: u16,
        unbind: &exchange::Unbind<'_>,
    ) -> Result<(), AmqpError> {
        let (source, destination) =
            self.permitted_ends(id, &unbind.source, &unbind.destination, &unbind.routing_key)?;
        let changes = self.topology(id).unbind(&Bind {
            source: &source,
            destination: BindTo::Exchange(&destination),
            routing_key: unbind.routing_key.as_bytes(),
            arguments: unbind.arguments,
        })?;
        self.write_changes(changes);
        if !unbind.no_wait {
            self.raise_topology_barrier(id);
            self.send(id, number, &exchange::UnbindOk::default());
        }
        Ok(())
    }

    fn permitted_ends(
        &mut self,
        id: ConnectionId,
        source: &[u8],
        destination: &[u8],
        routing_key: &[u8],
    ) -> Result<(Vec<u8>, Vec<u8>), AmqpError> {
        let source = stripped(source).into_owned();
        let destination = stripped(destination).into_owned();
        self.permit(id, Access::Write, ResourceKind::Exchange, &destination)?;
        self.permit(id, Access::Read, ResourceKind::Exchange, &source)?;
        self.permit_topic(id, Access::Read, &source, routing_key)?;
        Ok((source, destination))
    }
}
