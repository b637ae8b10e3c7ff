//! Trace context in headers and spans of OpenTelemetry, over a broker in this process.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay::opentelemetry::global;
use forebay::opentelemetry::trace::{
    FutureExt, Link, SpanId, SpanKind, Status, TraceContextExt, TraceId, Tracer,
};
use forebay::opentelemetry::{Context, Value};
use forebay::pipeline::{Backoff, Batch, Item, Outcome, Pipeline, Queues, ToBatch};
use forebay::{
    Binding, Broker, Connection, Exchange, Message, Publisher, Queue, Received, Route, Topology,
    Unconfirmed, Window,
};
use forebay_wire::Value as Header;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tokio::time::timeout;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// All spans of all tests here, which tell their own by the trace.
fn spans() -> &'static InMemorySpanExporter {
    static SPANS: OnceLock<InMemorySpanExporter> = OnceLock::new();
    SPANS.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        global::set_tracer_provider(provider);
        global::set_text_map_propagator(TraceContextPropagator::new());
        exporter
    })
}

/// Of one trace, in the order in which they ended.
fn spans_of(trace: TraceId) -> Vec<SpanData> {
    let all = spans().get_finished_spans().unwrap();
    all.into_iter().filter(|span| span.span_context.trace_id() == trace).collect()
}

fn named<'s>(spans: &'s [SpanData], name: &str) -> &'s SpanData {
    let mut found = spans.iter().filter(|span| span.name == name);
    let only = found.next().unwrap_or_else(|| panic!("no span '{name}' among {spans:#?}"));
    assert!(found.next().is_none(), "there are several '{name}'");
    only
}

fn said<'s>(span: &'s SpanData, attribute: &str) -> Option<&'s Value> {
    let found = span.attributes.iter().find(|it| it.key.as_str() == attribute);
    found.map(|it| &it.value)
}

fn text(span: &SpanData, attribute: &str) -> String {
    said(span, attribute).map(ToString::to_string).unwrap_or_default()
}

/// What the conventions want of every span for messages.
fn assert_conventional(span: &SpanData, operation: &str, kind: &str, destination: &str) {
    assert_eq!(text(span, "messaging.system"), "rabbitmq");
    assert_eq!(text(span, "messaging.operation.name"), operation);
    assert_eq!(text(span, "messaging.operation.type"), kind);
    assert_eq!(text(span, "messaging.destination.name"), destination);
    assert!(span.name.starts_with(operation), "{}", span.name);
    let keys: HashSet<_> = span.attributes.iter().map(|it| it.key.clone()).collect();
    assert_eq!(keys.len(), span.attributes.len(), "each attribute is said once");
}

/// A span of the program, to work in.
fn request() -> (Context, TraceId, SpanId) {
    spans();
    let span = global::tracer("the program").start("request");
    let context = Context::new().with_span(span);
    let here = context.span().span_context().clone();
    (context, here.trace_id(), here.span_id())
}

async fn with_queues(broker: &Broker, queues: &[&str]) -> Connection {
    spans();
    let connection = broker.connect().await.unwrap();
    let topology = queues.iter().fold(Topology::new(), |it, name| it.queue(Queue::durable(*name)));
    connection.declare(topology).await.unwrap();
    connection
}

async fn traced(connection: &Connection, queue: &str) -> Publisher {
    connection.publisher(Route::queue(queue)).opentelemetry().build().await.unwrap()
}

async fn plain(connection: &Connection, queue: &str) -> Publisher {
    connection.publisher(Route::queue(queue)).build().await.unwrap()
}

/// The next message of `queue`, acknowledged.
async fn next_of(connection: &Connection, queue: &str) -> Received {
    let mut consumer = connection.consumer(queue).build().await.unwrap();
    let next = timeout(PATIENCE, consumer.next()).await.expect("it comes").unwrap();
    next.expect("the consumer goes on").ack_and_keep()
}

fn header(message: &Received, name: &str) -> Option<String> {
    Some(message.properties().headers?.get(name)?.as_str()?.to_owned())
}

#[tokio::test]
async fn a_trace_goes_from_publisher_to_handler_to_the_next_consumer() {
    let broker = Broker::in_memory().unwrap();
    let connection = with_queues(&broker, &["answers"]).await;
    let topology = Topology::new()
        .exchange(Exchange::durable("shop", "direct"))
        .queue(Queue::durable("orders"))
        .binding(Binding::new("orders", "shop", "new"));
    connection.declare(topology).await.unwrap();
    let (context, trace, program) = request();
    let shop = Route::exchange("shop", "new");
    let orders = connection.publisher(shop).opentelemetry().build().await.unwrap();
    let outcome = orders.publish(Message::new("tea").correlation_id("c-1"));
    outcome.with_context(context).await.unwrap().await.unwrap();

    let answers = traced(&connection, "answers").await;
    let handler = move |order: Item<Received>| {
        let answers = answers.clone();
        async move {
            assert_eq!(order.body(), b"tea");
            answers.publish("served").await.unwrap().await.map(drop)
        }
    };
    let running = Pipeline::from(connection.source("orders"))
        .process(2, handler)
        .opentelemetry(|order: &Received| order.process_span("orders"))
        .start();
    let mut consumer = connection.consumer("answers").opentelemetry().build().await.unwrap();
    let answer = timeout(PATIENCE, consumer.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.body(), b"served");
    running.control().drain(PATIENCE);
    assert_eq!(running.join().await.unwrap().acked, 1);

    let spans = spans_of(trace);
    let published = named(&spans, "publish shop:new");
    assert_eq!(published.span_kind, SpanKind::Producer);
    assert_eq!(published.parent_span_id, program);
    assert_conventional(published, "publish", "send", "shop:new");
    assert_eq!(text(published, "messaging.rabbitmq.destination.routing_key"), "new");
    assert_eq!(said(published, "messaging.message.body.size"), Some(&Value::I64(3)));
    assert_eq!(text(published, "messaging.message.conversation_id"), "c-1");
    assert_eq!(published.status, Status::Unset);

    let processed = named(&spans, "process orders");
    assert_eq!(processed.span_kind, SpanKind::Consumer);
    assert_eq!(processed.parent_span_id, published.span_context.span_id());
    assert_eq!(processed.links.len(), 1);
    assert_eq!(processed.links[0].span_context.span_id(), published.span_context.span_id());
    assert_conventional(processed, "process", "process", "shop:new:orders");
    let id = text(processed, "messaging.message.id");
    assert!(!id.is_empty());
    assert_eq!(text(published, "messaging.message.id"), id, "known when it was confirmed");

    let answered = named(&spans, "publish answers");
    assert_eq!(answered.parent_span_id, processed.span_context.span_id());
    let received = named(&spans, "receive answers");
    assert_eq!(received.span_kind, SpanKind::Client);
    assert_eq!(received.parent_span_id, answered.span_context.span_id());
    assert_eq!(received.links[0].span_context.span_id(), answered.span_context.span_id());
    assert_conventional(received, "receive", "receive", "answers");
    let here = answer.trace_context();
    assert_eq!(here.span().span_context().span_id(), answered.span_context.span_id());
    answer.ack();
    broker.close().unwrap();
}

#[tokio::test]
async fn a_trace_that_another_client_began_goes_on_and_nonsense_is_no_trace() {
    let broker = Broker::in_memory().unwrap();
    let connection = with_queues(&broker, &["jobs"]).await;
    let jobs = plain(&connection, "jobs").await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    // As the instrumentation of other clients writes it.
    let foreign = format!("00-{trace}-b7ad6b7169203331-01");
    let message = Message::new("theirs")
        .header("traceparent", Header::LongStr(foreign.as_bytes()))
        .header("tracestate", Header::LongStr(b"vendor=1"));
    jobs.publish(message).await.unwrap().await.unwrap();
    let nonsense = [
        Header::LongStr(b"00-0-0-01"),
        Header::LongStr(b"\xff\xfe"),
        Header::I64(7),
        Header::Void,
        Header::LongStr(b"00-00000000000000000000000000000000-b7ad6b7169203331-01"),
    ];
    for (number, value) in nonsense.into_iter().enumerate() {
        let message = Message::new("nonsense").header("traceparent", value);
        let message = message.message_id(format!("nonsense-{number}"));
        jobs.publish(message).await.unwrap().await.unwrap();
    }
    let running = Pipeline::from(connection.source("jobs"))
        .process(1, async |_: Item<Received>| ())
        .opentelemetry(|job: &Received| job.process_span("jobs"))
        .start();
    let control = running.control();
    while control.report().acked < 6 {
        tokio::task::yield_now().await;
    }
    control.drain(PATIENCE);
    running.join().await.unwrap();

    let theirs = spans_of(TraceId::from_hex(trace).unwrap());
    let processed = named(&theirs, "process jobs");
    assert_eq!(processed.parent_span_id, SpanId::from_hex("b7ad6b7169203331").unwrap());
    assert!(processed.parent_span_is_remote);
    assert_eq!(processed.span_context.trace_state().get("vendor"), Some("1"));
    let all = spans().get_finished_spans().unwrap();
    let without = all.iter().filter(|it| text(it, "messaging.message.id").starts_with("nonsense-"));
    let without: Vec<_> = without.collect();
    assert_eq!(without.len(), 5);
    for span in without {
        assert_eq!(span.parent_span_id, SpanId::INVALID);
        assert!(span.links.is_empty());
    }
    broker.close().unwrap();
}

#[tokio::test]
async fn a_batch_links_to_its_messages_and_tells_that_it_failed() {
    let broker = Broker::in_memory().unwrap();
    let connection = with_queues(&broker, &["lines"]).await;
    let lines = traced(&connection, "lines").await;
    let mut published = Vec::new();
    for line in ["one", "two", "three"] {
        let (context, trace, _) = request();
        let outcome = lines.publish(line).with_context(context).await.unwrap();
        outcome.await.unwrap();
        published.push(named(&spans_of(trace), "publish lines").span_context.clone());
    }
    let attempts = AtomicU32::new(0);
    let written = move |_: Item<Batch<String>>| {
        let first = attempts.fetch_add(1, Ordering::Relaxed) == 0;
        async move { if first { Err("the disk is full") } else { Ok(()) } }
    };
    let running = Pipeline::from(connection.source("lines"))
        .process(3, async |line: Item<Received>| {
            ToBatch::new(String::from_utf8_lossy(line.body()).into_owned())
        })
        .opentelemetry(|line: &Received| line.process_span("lines"))
        .retries(Backoff::new(1, Duration::from_millis(1), Duration::from_millis(1)))
        .batch("files", 3, PATIENCE, written)
        .start();
    let control = running.control();
    while control.report().acked < 3 {
        tokio::task::yield_now().await;
    }
    control.drain(PATIENCE);
    running.join().await.unwrap();

    let all = spans().get_finished_spans().unwrap();
    let batches: Vec<_> = all.iter().filter(|span| span.name == "batch lines").collect();
    let [failed, done] = batches[..] else { panic!("two attempts, not {batches:#?}") };
    for batch in [failed, done] {
        assert_eq!(batch.span_kind, SpanKind::Consumer);
        assert_conventional(batch, "batch", "process", "lines");
        assert_eq!(said(batch, "messaging.batch.message_count"), Some(&Value::I64(3)));
        assert_eq!(said(batch, "messaging.message.id"), None, "each message has its own");
        assert_eq!(text(batch, "forebay.batcher"), "files");
        let links: HashSet<_> = batch.links.iter().map(|it| it.span_context.span_id()).collect();
        let expected: HashSet<_> = published.iter().map(|it| it.span_id()).collect();
        assert_eq!(links, expected);
        let tell = |it: &Link| it.attributes[0].key.as_str().to_owned();
        assert!(batch.links.iter().all(|it| tell(it) == "messaging.message.id"));
        assert_eq!(batch.parent_span_id, SpanId::INVALID, "no message is more its parent");
    }
    assert_eq!(failed.status, Status::error("the disk is full"));
    assert_eq!(text(failed, "error.type"), "_OTHER");
    assert_eq!(done.status, Status::Unset);
    assert_eq!(said(done, "forebay.attempt"), Some(&Value::I64(2)));
    broker.close().unwrap();
}

#[tokio::test]
async fn errors_panics_and_timeouts_of_handlers_are_told_and_blocking_ones_are_in_their_span() {
    let broker = Broker::in_memory().unwrap();
    let connection = with_queues(&broker, &["work", "steps"]).await;
    let work = traced(&connection, "work").await;
    let (context, trace, _) = request();
    for how in ["error", "panic", "hang"] {
        let message = Message::new(how).message_id(how);
        work.publish(message).with_context(context.clone()).await.unwrap().await.unwrap();
    }
    let handler = async |item: Item<Received>| match item.body() {
        b"error" => Err::<(), _>("bad input"),
        b"panic" => panic!("out of luck"),
        _ => std::future::pending().await,
    };
    let running = Pipeline::from(connection.source("work"))
        .process(3, handler)
        .timeout(Duration::from_millis(50))
        .opentelemetry(|item: &Received| item.process_span("work"))
        .on_failure(Outcome::Reject)
        .start();
    let control = running.control();
    while control.report().rejected < 3 {
        tokio::task::yield_now().await;
    }
    control.drain(PATIENCE);
    running.join().await.unwrap();
    let spans = spans_of(trace);
    let processed = |id| {
        let mut found = spans.iter().filter(|span| span.name == "process work");
        found.find(|span| text(span, "messaging.message.id") == id).unwrap()
    };
    assert_eq!(text(processed("error"), "error.type"), "_OTHER");
    assert_eq!(processed("error").status, Status::error("bad input"));
    assert_eq!(text(processed("panic"), "error.type"), "panic");
    assert_eq!(text(processed("hang"), "error.type"), "timeout");

    let steps = traced(&connection, "steps").await;
    let (context, trace, _) = request();
    steps.publish("go").with_context(context).await.unwrap().await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::channel(1);
    let blocking = move |_: Item<Received>| {
        let here = Context::current().span().span_context().span_id();
        tell.blocking_send(here).unwrap();
    };
    let running = Pipeline::from(connection.source("steps"))
        .process_blocking(1, blocking)
        .opentelemetry(|item: &Received| item.process_span("steps"))
        .start();
    let inside = timeout(PATIENCE, told.recv()).await.unwrap().unwrap();
    running.control().drain(PATIENCE);
    running.join().await.unwrap();
    assert_eq!(inside, named(&spans_of(trace), "process steps").span_context.span_id());
    broker.close().unwrap();
}

#[tokio::test]
async fn a_publish_that_fails_says_so_and_its_message_comes_back_as_it_was() {
    let broker = Broker::in_memory().unwrap();
    let connection = with_queues(&broker, &["q"]).await;
    let (context, trace, _) = request();
    let nowhere = traced(&connection, "nowhere").await;
    let outcome = nowhere.publish("x").with_context(context.clone()).await.unwrap().await;
    assert!(matches!(outcome, Err(Unconfirmed::Returned(_))));
    let returned = named(&spans_of(trace), "publish nowhere").clone();
    assert_eq!(text(&returned, "error.type"), "312");
    assert!(matches!(returned.status, Status::Error { .. }));

    let window = connection.publisher(Route::queue("q")).window(Window::fixed(1));
    let narrow = window.opentelemetry().build().await.unwrap();
    connection.channel().await.unwrap(); // the publisher's own is open by now, or soon
    let message = Message::new("y").routing_key("k".repeat(300));
    let refused = narrow.publish(message.clone()).with_context(context).await.unwrap_err();
    assert_eq!(refused.message, message);
    let refused_span = named(&spans_of(trace), "publish").clone();
    assert_eq!(text(&refused_span, "error.type"), "too_long");
    let again = refused.message.routing_key("q");
    let untraced = plain(&connection, "q").await;
    untraced.publish(again).await.unwrap().await.unwrap();
    assert_eq!(header(&next_of(&connection, "q").await, "traceparent"), None);
    broker.close().unwrap();
}

#[tokio::test]
async fn a_context_of_the_programs_own_stays_and_one_that_was_passed_on_is_replaced() {
    let broker = Broker::in_memory().unwrap();
    let connection = with_queues(&broker, &["q"]).await;
    let publisher = traced(&connection, "q").await;
    let theirs = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let own = || Message::new("x").header("traceparent", Header::LongStr(theirs.as_bytes()));
    let link = |span: &SpanData| span.links[0].span_context.span_id().to_string();

    let (context, trace, _) = request();
    publisher.publish(own()).with_context(context).await.unwrap().await.unwrap();
    let received = next_of(&connection, "q").await;
    assert_eq!(header(&received, "traceparent").as_deref(), Some(theirs));
    let span = named(&spans_of(trace), "publish q").clone();
    assert_eq!(span.span_kind, SpanKind::Client, "its context is not the message's");
    assert_eq!(link(&span), "00f067aa0ba902b7");

    let (context, trace, _) = request();
    let forwarded = Message::forward(&received).routing_key("q");
    publisher.publish(forwarded).with_context(context).await.unwrap().await.unwrap();
    let received = next_of(&connection, "q").await;
    assert_eq!(header(&received, "traceparent").as_deref(), Some(theirs));
    assert_eq!(link(named(&spans_of(trace), "publish")), "00f067aa0ba902b7");

    let (context, trace, _) = request();
    let passed_on = Message::new("y").with_properties(&received.properties());
    publisher.publish(passed_on).with_context(context).await.unwrap().await.unwrap();
    let received = next_of(&connection, "q").await;
    let span = named(&spans_of(trace), "publish q").clone();
    let expected = format!("00-{trace}-{}-01", span.span_context.span_id());
    assert_eq!(header(&received, "traceparent"), Some(expected));
    let count = |it: &Received| it.properties().headers.map_or(0, |table| table.iter().count());
    assert_eq!(count(&received), 1, "and the old one is gone");
    assert_eq!(link(&span), "00f067aa0ba902b7");
    broker.close().unwrap();
}

#[tokio::test]
async fn who_does_not_ask_for_spans_publishes_what_it_was_given() {
    let broker = Broker::in_memory().unwrap();
    let connection = with_queues(&broker, &["q"]).await;
    let (context, trace, _) = request();
    let publisher = plain(&connection, "q").await;
    publisher.publish("x").with_context(context).await.unwrap().await.unwrap();
    assert!(next_of(&connection, "q").await.properties().headers.is_none());
    assert!(spans_of(trace).iter().all(|span| span.name == "request"));
    broker.close().unwrap();
}
