//! Spans of OpenTelemetry, one for each attempt at a message and one for each attempt at a batch.
//!
//! A source knows what a message is called and where its context is; so the span comes from a function of the value. Its first
//! link is the context with which the message came: the span of a message is a child of that, the span of a batch has a link
//! to each of its messages', as the conventions for messaging want it.

use std::borrow::Cow;
use std::fmt;

use opentelemetry::context::FutureExt;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::trace::{Link, SpanBuilder, SpanKind, Status, TraceContextExt};
use opentelemetry::{Context, InstrumentationScope, KeyValue};

use crate::handler::Failure;

/// Describes the span of a value.
type SpanOf<T> = Box<dyn Fn(&T) -> SpanBuilder + Send + Sync>;

/// Makes the spans of a stage.
pub(crate) struct Spans<T> {
    tracer: BoxedTracer,
    span_of: SpanOf<T>,
    /// What came with a value is its span's parent, too.
    follows: bool,
}

impl<T> Spans<T> {
    /// For messages.
    pub(crate) fn new(span_of: impl Fn(&T) -> SpanBuilder + Send + Sync + 'static) -> Spans<T> {
        let scope = InstrumentationScope::builder("forebay-pipeline")
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url("https://opentelemetry.io/schemas/1.36.0");
        let tracer = global::tracer_with_scope(scope.build());
        Spans { tracer, span_of: Box::new(span_of), follows: true }
    }

    /// For batches, whose messages came with contexts of their own.
    pub(crate) fn of_batches(
        span_of: impl Fn(&T) -> SpanBuilder + Send + Sync + 'static,
    ) -> Spans<T> {
        Spans { follows: false, ..Spans::new(span_of) }
    }

    /// The span of the attempts at `value`, not begun yet.
    pub(crate) fn described(&self, value: &T) -> Box<Described> {
        Box::new(Described((self.span_of)(value)))
    }

    /// An attempt begins.
    pub(crate) fn begin(&self, described: &Described, attempt: u32) -> Attempt {
        let mut builder = described.0.clone();
        if attempt > 1 {
            let again = KeyValue::new("forebay.attempt", i64::from(attempt));
            builder.attributes.get_or_insert_default().push(again);
        }
        let links = builder.links.iter().flatten();
        let first = links.map(|link| link.span_context.clone()).next().filter(|_| self.follows);
        let parent = Context::current();
        let parent = match first {
            Some(came_with) if !parent.span().span_context().is_valid() => {
                parent.with_remote_span_context(came_with)
            }
            _ => parent,
        };
        let span = builder.start_with_context(&self.tracer, &parent);
        Attempt(parent.with_span(span))
    }
}

/// The span of a message, to be begun.
pub(crate) struct Described(SpanBuilder);

/// The span of an attempt, begun. Dropped, it ends.
pub(crate) struct Attempt(Context);

impl Attempt {
    /// What the work does belongs to the attempt.
    pub(crate) async fn around<W: Future>(&self, work: W) -> W::Output {
        work.with_context(self.0.clone()).await
    }

    pub(crate) fn ended(&self, failure: Option<&Failure>) {
        let span = self.0.span();
        if let Some(failure) = failure {
            let kind = match failure {
                Failure::Error(_) => "_OTHER",
                Failure::Panic(_) => "panic",
                Failure::TimedOut(_) => "timeout",
            };
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(failure.to_string()));
        }
        span.end();
    }
}

/// For work on another thread: what it does belongs to what is current here.
pub(crate) fn carried<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let context = Context::current();
    move || {
        let _attached = context.attach();
        work()
    }
}

const OPERATION: &str = "messaging.operation.name";

/// The span of a batch of these messages: a link to where each came from, and of the attributes those that all have.
pub(crate) fn of_batch<'a>(
    batcher: &'static str,
    messages: usize,
    mut described: impl Iterator<Item = &'a Described>,
) -> SpanBuilder {
    let mut links = Vec::new();
    let mut common: Vec<KeyValue> = Vec::new();
    let mut link = |described: &Described| {
        links.extend(described.0.links.iter().flatten().next().map(|link| {
            let id = described.0.attributes.iter().flatten();
            let id = id.filter(|attribute| attribute.key.as_str() == "messaging.message.id");
            Link::new(link.span_context.clone(), id.cloned().collect(), 0)
        }));
    };
    if let Some(first) = described.next() {
        link(first);
        let own = |attribute: &&KeyValue| attribute.key.as_str() != OPERATION;
        common.extend(first.0.attributes.iter().flatten().filter(own).cloned());
    }
    for other in described {
        link(other);
        common.retain(|attribute| other.0.attributes.iter().flatten().any(|it| it == attribute));
    }
    let place = common.iter().find(|it| it.key.as_str() == "messaging.destination.name");
    let name: Cow<'static, str> = match place {
        Some(place) => format!("batch {}", place.value).into(),
        None => "batch".into(),
    };
    common.extend([
        KeyValue::new(OPERATION, "batch"),
        KeyValue::new("messaging.batch.message_count", messages as i64),
        KeyValue::new("forebay.batcher", batcher),
    ]);
    SpanBuilder::from_name(name)
        .with_kind(SpanKind::Consumer)
        .with_attributes(common)
        .with_links(links)
}

impl<T> fmt::Debug for Spans<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").finish_non_exhaustive()
    }
}
