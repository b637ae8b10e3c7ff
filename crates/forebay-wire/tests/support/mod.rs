//! What several of the integration tests need: methods, properties and tables out of thin air.
#![allow(dead_code, unused_imports, unreachable_pub)] // each test file uses its part

pub mod fast_random;
pub mod fuzz_bodies;
pub mod pool;
pub mod without_fuzzer;

/// Calls `$callback!` with every method: module, amq-protocol's class, then per method our variant,
/// the struct, the arguments both libraries have (`ours = theirs` where names differ), and the
/// arguments only ours exposes with the value amq-protocol writes for them.
macro_rules! every_method {
    ($callback:ident) => {
        $callback! {
            connection Connection {
                ConnectionStart Start (version_major, version_minor, server_properties, mechanisms, locales) ()
                ConnectionStartOk StartOk (client_properties, mechanism, response, locale) ()
                ConnectionSecure Secure (challenge) ()
                ConnectionSecureOk SecureOk (response) ()
                ConnectionTune Tune (channel_max, frame_max, heartbeat) ()
                ConnectionTuneOk TuneOk (channel_max, frame_max, heartbeat) ()
                ConnectionOpen Open (virtual_host) (reserved_1 = ShortStr::default(), reserved_2 = false)
                ConnectionOpenOk OpenOk () (reserved_1 = ShortStr::default())
                ConnectionClose Close (reply_code, reply_text, class_id, method_id) ()
                ConnectionCloseOk CloseOk () ()
                ConnectionBlocked Blocked (reason) ()
                ConnectionUnblocked Unblocked () ()
                ConnectionUpdateSecret UpdateSecret (new_secret, reason) ()
                ConnectionUpdateSecretOk UpdateSecretOk () ()
            }
            channel Channel {
                ChannelOpen Open () (reserved_1 = ShortStr::default())
                ChannelOpenOk OpenOk () (reserved_1 = b"")
                ChannelFlow Flow (active) ()
                ChannelFlowOk FlowOk (active) ()
                ChannelClose Close (reply_code, reply_text, class_id, method_id) ()
                ChannelCloseOk CloseOk () ()
            }
            access Access {
                AccessRequest Request (realm, exclusive, passive, active, write, read) ()
                AccessRequestOk RequestOk () (ticket = 1)
            }
            exchange Exchange {
                ExchangeDeclare Declare (exchange, type_name = kind, passive, durable, auto_delete, internal, no_wait = nowait, arguments) (ticket = 0)
                ExchangeDeclareOk DeclareOk () ()
                ExchangeDelete Delete (exchange, if_unused, no_wait = nowait) (ticket = 0)
                ExchangeDeleteOk DeleteOk () ()
                ExchangeBind Bind (destination, source, routing_key, no_wait = nowait, arguments) (ticket = 0)
                ExchangeBindOk BindOk () ()
                ExchangeUnbind Unbind (destination, source, routing_key, no_wait = nowait, arguments) (ticket = 0)
                ExchangeUnbindOk UnbindOk () ()
            }
            queue Queue {
                QueueDeclare Declare (queue, passive, durable, exclusive, auto_delete, no_wait = nowait, arguments) (ticket = 0)
                QueueDeclareOk DeclareOk (queue, message_count, consumer_count) ()
                QueueBind Bind (queue, exchange, routing_key, no_wait = nowait, arguments) (ticket = 0)
                QueueBindOk BindOk () ()
                QueuePurge Purge (queue, no_wait = nowait) (ticket = 0)
                QueuePurgeOk PurgeOk (message_count) ()
                QueueDelete Delete (queue, if_unused, if_empty, no_wait = nowait) (ticket = 0)
                QueueDeleteOk DeleteOk (message_count) ()
                QueueUnbind Unbind (queue, exchange, routing_key, arguments) (ticket = 0)
                QueueUnbindOk UnbindOk () ()
            }
            basic Basic {
                BasicQos Qos (prefetch_count, global) (prefetch_size = 0)
                BasicQosOk QosOk () ()
                BasicConsume Consume (queue, consumer_tag, no_local, no_ack, exclusive, no_wait = nowait, arguments) (ticket = 0)
                BasicConsumeOk ConsumeOk (consumer_tag) ()
                BasicCancel Cancel (consumer_tag, no_wait = nowait) ()
                BasicCancelOk CancelOk (consumer_tag) ()
                BasicPublish Publish (exchange, routing_key, mandatory, immediate) (ticket = 0)
                BasicReturn Return (reply_code, reply_text, exchange, routing_key) ()
                BasicDeliver Deliver (consumer_tag, delivery_tag, redelivered, exchange, routing_key) ()
                BasicGet Get (queue, no_ack) (ticket = 0)
                BasicGetOk GetOk (delivery_tag, redelivered, exchange, routing_key, message_count) ()
                BasicGetEmpty GetEmpty () (reserved_1 = ShortStr::default())
                BasicAck Ack (delivery_tag, multiple) ()
                BasicReject Reject (delivery_tag, requeue) ()
                BasicRecoverAsync RecoverAsync (requeue) ()
                BasicRecover Recover (requeue) ()
                BasicRecoverOk RecoverOk () ()
                BasicNack Nack (delivery_tag, multiple, requeue) ()
            }
            confirm Confirm {
                ConfirmSelect Select (no_wait = nowait) ()
                ConfirmSelectOk SelectOk () ()
            }
            tx Tx {
                TxSelect Select () ()
                TxSelectOk SelectOk () ()
                TxCommit Commit () ()
                TxCommitOk CommitOk () ()
                TxRollback Rollback () ()
                TxRollbackOk RollbackOk () ()
            }
        }
    };
}
pub(crate) use every_method;
