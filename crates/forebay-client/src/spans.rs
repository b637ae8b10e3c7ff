//! Spans of OpenTelemetry, by its conventions for messaging and RabbitMQ (1.36), and their context in headers.
//!
//! ```text
//!   the program's span
//!     └─ publish orders   PRODUCER, until the outcome is known; its context is in the message
//!          ├─ receive orders   CLIENT, the moment at which a consumer that was asked hands the message out
//!          └─ process orders   CONSUMER, begun by a pipeline or by the program: Received::process_span
//! ```
//! What is made, sampled and sent is the program's business: the tracer and the propagator are the global ones of the crate
//! `opentelemetry`. Headers that make no sense are no context.

use std::borrow::Cow;

use forebay_wire::{Table, TableBuf, Value};
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::propagation::{Extractor, Injector};
use opentelemetry::trace::{
    Link, Span, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue};

use crate::message::Message;
use crate::outcome::{NotPublishedReason, Unconfirmed, UnknownReason};
use crate::received::Received;
use crate::session::Target;

/// Makes the spans of one publisher or consumer.
pub(crate) struct Spans {
    tracer: BoxedTracer,
}

impl Spans {
    pub(crate) fn new() -> Spans {
        let scope = InstrumentationScope::builder("forebay-client")
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url("https://opentelemetry.io/schemas/1.36.0");
        Spans { tracer: global::tracer_with_scope(scope.build()) }
    }

    /// Begins the span of a publish, a child of the current one, and says in the message's headers that what becomes of it
    /// belongs there. A context that the program has put into the headers itself stays, and is linked.
    pub(crate) fn publish(&self, target: &Target, message: &mut Message) {
        let own_key = message.own_routing_key();
        let routing_key = own_key.unwrap_or(&target.routing_key);
        // Keys of single messages may be as many as messages: they make no good name.
        let named = if own_key.is_none() { routing_key } else { "" };
        let mut attributes =
            operation("publish", "send", destination([&target.exchange, routing_key]));
        attributes.push(KeyValue::new("messaging.message.body.size", message.body().len() as i64));
        if !routing_key.is_empty() {
            attributes.push(KeyValue::new(ROUTING_KEY, routing_key.to_owned()));
        }
        if let Some(id) = message.own_correlation_id() {
            attributes.push(KeyValue::new(CONVERSATION_ID, id.to_owned()));
        }
        let (said, keeps) = message.with_headers(|headers, keeps| (context_in(headers), keeps));
        let said = said.filter(SpanContext::is_valid);
        let keeps = keeps && said.is_some();
        let kind = if keeps { SpanKind::Client } else { SpanKind::Producer };
        let span = SpanBuilder::from_name(name("publish", &[&target.exchange, named]))
            .with_kind(kind)
            .with_attributes(attributes)
            .with_links(said.into_iter().map(Link::with_context).collect())
            .start(&self.tracer);
        if !span.span_context().is_valid() {
            return;
        }
        let context = Context::current_with_span(span);
        let headers = if keeps {
            None
        } else {
            message.with_headers(|headers, _| Some(with_context(headers, &context)))
        };
        message.set_span(PublishSpan { context, headers });
    }

    /// A consumer of `queue` hands `message` out.
    pub(crate) fn received(&self, queue: &str, message: &Received) {
        let builder = message.span("receive", "receive", queue).with_kind(SpanKind::Client);
        let mut parent = Context::current();
        if !parent.span().span_context().is_valid() {
            parent = message.trace_context();
        }
        builder.start_with_context(&self.tracer, &parent).end();
    }
}

impl std::fmt::Debug for Spans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spans").finish_non_exhaustive()
    }
}

/// The span of a publish, in its message until the outcome is known. Dropped, it ends without one.
#[derive(Debug, Clone)]
pub(crate) struct PublishSpan {
    context: Context,
    /// The message's, and this span's context; `None`: the message says another.
    headers: Option<TableBuf>,
}

impl PublishSpan {
    pub(crate) fn headers(&self) -> Option<&TableBuf> {
        self.headers.as_ref()
    }

    /// The message has its outcome, and had this message-id.
    pub(crate) fn concluded(&self, message_id: &str, why_not: Option<&Unconfirmed>) {
        let span = self.context.span();
        if !message_id.is_empty() {
            span.set_attribute(KeyValue::new(MESSAGE_ID, message_id.to_owned()));
        }
        if let Some(unconfirmed) = why_not {
            let kind = match unconfirmed {
                Unconfirmed::Rejected => Cow::from("basic.nack"),
                Unconfirmed::Returned(refusal)
                | Unconfirmed::Unknown(UnknownReason::ChannelClosed(refusal)) => {
                    refusal.code.to_string().into()
                }
                Unconfirmed::Unknown(
                    UnknownReason::Lost(_) | UnknownReason::ConnectionsEnded { .. },
                ) => "connection_lost".into(),
                Unconfirmed::Unknown(UnknownReason::TimeOver) | Unconfirmed::Withdrawn => {
                    "timeout".into()
                }
            };
            self.failed(kind, unconfirmed.to_string());
        }
        span.end();
    }

    /// The message was not sent.
    pub(crate) fn refused(&self, reason: &NotPublishedReason) {
        let kind = match reason {
            NotPublishedReason::DeadlinePassed => "deadline_passed",
            NotPublishedReason::TooLong(_) => "too_long",
            NotPublishedReason::TooManyWaiting => "too_many_waiting",
            NotPublishedReason::Lost(_) => "connection_lost",
        };
        self.failed(kind.into(), "the message was not sent".to_owned());
        self.context.span().end();
    }

    fn failed(&self, kind: Cow<'static, str>, description: String) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("error.type", kind));
        span.set_status(Status::error(description));
    }
}

/// Messages are compared by what they say.
impl PartialEq for PublishSpan {
    fn eq(&self, _: &PublishSpan) -> bool {
        true
    }
}

const ROUTING_KEY: &str = "messaging.rabbitmq.destination.routing_key";
const CONVERSATION_ID: &str = "messaging.message.conversation_id";
const MESSAGE_ID: &str = "messaging.message.id";

impl Received {
    /// The context that its publisher put into its headers, as the global propagator of OpenTelemetry reads them: to work in
    /// it, or to begin a span as its child. Without one, or with one that makes no sense, a context without a span.
    #[must_use]
    pub fn trace_context(&self) -> Context {
        match self.raw_properties().headers() {
            Some(headers) => extract(headers),
            None => Context::new(),
        }
    }

    /// A span for the work on this message, which came from `queue`, to be started: `process` by the conventions, with a
    /// link to the message's own context. A pipeline that is given this (`Process::opentelemetry`) begins one for each
    /// attempt, as a child of that context; elsewhere `order.process_span("orders").start_with_context(&tracer, &order.trace_context())` does the same.
    #[must_use]
    pub fn process_span(&self, queue: &str) -> SpanBuilder {
        self.span("process", "process", queue).with_kind(SpanKind::Consumer)
    }

    fn span(&self, operation_name: &'static str, kind: &'static str, queue: &str) -> SpanBuilder {
        let text = |bytes| String::from_utf8_lossy(bytes);
        let (exchange, routing_key) = (text(self.exchange()), text(self.routing_key()));
        // A queue that its own name leads to is named once.
        let last = if *routing_key == *queue { "" } else { queue };
        let name_parts = [&*exchange, &*routing_key, last];
        let mut attributes = operation(operation_name, kind, destination(name_parts));
        let mut add = |key, value: &str| attributes.push(KeyValue::new(key, value.to_owned()));
        if !routing_key.is_empty() {
            add(ROUTING_KEY, &routing_key);
        }
        let properties = self.properties();
        if let Some(id) = properties.message_id {
            add(MESSAGE_ID, &id.to_string());
        }
        if let Some(id) = properties.correlation_id {
            add(CONVERSATION_ID, &id.to_string());
        }
        let size = self.body().len() as i64;
        attributes.push(KeyValue::new("messaging.message.body.size", size));
        if let Ok(tag @ 1..) = i64::try_from(self.delivery_tag()) {
            attributes.push(KeyValue::new("messaging.rabbitmq.message.delivery_tag", tag));
        }
        let creation = self.trace_context().span().span_context().clone();
        SpanBuilder::from_name(name(operation_name, &[queue]))
            .with_attributes(attributes)
            .with_links(vec![Link::with_context(creation)])
    }
}

fn operation(name: &'static str, kind: &'static str, destination: String) -> Vec<KeyValue> {
    vec![
        KeyValue::new("messaging.system", "rabbitmq"),
        KeyValue::new("messaging.operation.name", name),
        KeyValue::new("messaging.operation.type", kind),
        KeyValue::new("messaging.destination.name", destination),
    ]
}

/// `{exchange}:{routing key}`, and `:{queue}` for who consumes, without what is empty.
fn destination<const N: usize>(parts: [&str; N]) -> String {
    let name = joined(&parts);
    if name.is_empty() { "amq.default".to_owned() } else { name }
}

/// Of a span: the operation, and where.
fn name(operation: &'static str, parts: &[&str]) -> Cow<'static, str> {
    match joined(parts) {
        place if place.is_empty() => operation.into(),
        place => format!("{operation} {place}").into(),
    }
}

fn joined(parts: &[&str]) -> String {
    let said: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    said.join(":")
}

// ---- headers

fn context_in(headers: Table<'_>) -> Option<SpanContext> {
    (!headers.is_empty()).then(|| extract(headers).span().span_context().clone())
}

/// Onto an empty context: what is current here has nothing to do with it.
fn extract(headers: Table<'_>) -> Context {
    let carrier = Headers(headers);
    global::get_text_map_propagator(|it| it.extract_with_context(&Context::new(), &carrier))
}

/// `headers` with `context` instead of what they said of one.
fn with_context(headers: Table<'_>, context: &Context) -> TableBuf {
    let mut said = Said(Vec::new());
    global::get_text_map_propagator(|it| it.inject_context(context, &mut said));
    let others = headers
        .iter()
        .filter(|(name, _)| said.0.iter().all(|(said, _)| said.as_bytes() != name.as_bytes()));
    let kept =
        others.fold(TableBuf::new(), |table, (name, value)| table.with(name.as_bytes(), value));
    // A propagator says nothing by an empty text.
    let said = said.0.iter().filter(|(_, value)| !value.is_empty());
    said.fold(kept, |table, (name, value)| table.with(name, Value::LongStr(value.as_bytes())))
}

struct Headers<'a>(Table<'a>);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().filter_map(|(name, _)| str::from_utf8(name.as_bytes()).ok()).collect()
    }
}

struct Said(Vec<(String, String)>);

impl Injector for Said {
    fn set(&mut self, key: &str, value: String) {
        self.0.push((key.to_owned(), value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
        let near = "[0-9a-f]{1,3}-[0-9a-fA-F]{0,33}-[0-9a-f]{0,17}-[0-9a-f]{0,3}(-x)?";
        let text = prop_oneof![
            any::<Vec<u8>>(),
            near.prop_map(String::into_bytes),
            "[a-z=,; ]{0,40}".prop_map(String::into_bytes)
        ];
        let name = prop_oneof![
            Just(b"traceparent".to_vec()),
            Just(b"tracestate".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..20)
        ];
        proptest::collection::vec((name, text), 0..4)
    }

    fn table(pairs: &[(Vec<u8>, Vec<u8>)]) -> TableBuf {
        let add = |table: TableBuf, (name, value): &(Vec<u8>, Vec<u8>)| {
            table.with(name, Value::LongStr(value))
        };
        pairs.iter().fold(TableBuf::new(), add)
    }

    proptest! {
        #[test]
        fn any_headers_give_a_context_that_can_be_said_again_or_none(pairs in values()) {
            global::set_text_map_propagator(TraceContextPropagator::new());
            let headers = table(&pairs);
            let found = extract(headers.as_table());
            let again = with_context(headers.as_table(), &found);
            let found = found.span().span_context().clone();
            if found.is_valid() {
                prop_assert_eq!(context_in(again.as_table()), Some(found));
            }
        }

        #[test]
        fn a_context_survives_headers_and_leaves_the_others(
            trace in 1_u128.., span in 1_u64.., sampled in any::<bool>(), pairs in values()
        ) {
            global::set_text_map_propagator(TraceContextPropagator::new());
            let flags = TraceFlags::default().with_sampled(sampled);
            let ids = (TraceId::from(trace), SpanId::from(span));
            let said = SpanContext::new(ids.0, ids.1, flags, true, TraceState::default());
            let headers = table(&pairs);
            let with = with_context(
                headers.as_table(), &Context::new().with_remote_span_context(said.clone())
            );
            prop_assert_eq!(context_in(with.as_table()), Some(said));
            let is_ours = |name: &[u8]| name == b"traceparent" || name == b"tracestate";
            let others: Vec<_> = pairs.iter().filter(|(name, _)| !is_ours(name)).cloned().collect();
            prop_assert_eq!(with.as_table().iter().count(), others.len() + 1);
            let kept: Vec<_> = with.as_table().iter()
                .filter(|(name, _)| !is_ours(name.as_bytes()))
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_long_str().unwrap().to_vec()))
                .collect();
            prop_assert_eq!(kept, others);
        }
    }
}
