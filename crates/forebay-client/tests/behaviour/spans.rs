//! What a subscriber of `tracing` sees of a client, without anything being asked of the client.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::rig::{Broker, PATIENCE, declare, soon, with_queue};
use forebay_client::{CallError, Route, Unconfirmed};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Instrument, Level, Metadata, Subscriber};

/// One span of the client.
#[derive(Debug, Clone, Default)]
struct Seen {
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<&'static str, String>,
    handles: u32,
    ended: bool,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Seen {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name).parse().expect("a number")
    }
}

/// Keeps every span of the client, and the texts of its events.
struct Capture {
    level: Level,
    spans: Arc<Mutex<Vec<Seen>>>,
    events: Arc<Mutex<Vec<Seen>>>,
    entered: Mutex<Vec<u64>>,
}

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let of_ours =
            ["forebay_client", "spans"].iter().any(|it| metadata.target().starts_with(it));
        of_ours && *metadata.level() <= self.level
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let parent = self.entered.lock().unwrap().last().copied();
        let mut seen =
            Seen { name: attributes.metadata().name(), parent, handles: 1, ..Seen::default() };
        attributes.record(&mut seen);
        let mut spans = self.spans.lock().unwrap();
        spans.push(seen);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut self.spans.lock().unwrap()[id.into_u64() as usize - 1]);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut seen = Seen::default();
        event.record(&mut seen);
        self.events.lock().unwrap().push(seen);
    }

    fn enter(&self, id: &Id) {
        self.entered.lock().unwrap().push(id.into_u64());
    }

    fn exit(&self, _: &Id) {
        self.entered.lock().unwrap().pop();
    }

    fn clone_span(&self, id: &Id) -> Id {
        self.spans.lock().unwrap()[id.into_u64() as usize - 1].handles += 1;
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let span = &mut self.spans.lock().unwrap()[id.into_u64() as usize - 1];
        span.handles -= 1;
        span.ended = span.handles == 0;
        span.ended
    }
}

/// What is seen at a level while the guard lives.
struct Watched {
    spans: Arc<Mutex<Vec<Seen>>>,
    events: Arc<Mutex<Vec<Seen>>>,
    _guard: tracing::subscriber::DefaultGuard,
}

fn watch(level: Level) -> Watched {
    let (spans, events) = (Arc::default(), Arc::default());
    let capture = Capture {
        level,
        spans: Arc::clone(&spans),
        events: Arc::clone(&events),
        entered: Mutex::default(),
    };
    let _guard = tracing::subscriber::set_default(capture);
    Watched { spans, events, _guard }
}

impl Watched {
    fn spans(&self, name: &str) -> Vec<Seen> {
        let spans = self.spans.lock().unwrap();
        spans.iter().filter(|span| span.name == name).cloned().collect()
    }
}

#[tokio::test]
async fn a_publish_tells_how_long_it_waited_and_for_what() {
    let watched = watch(Level::DEBUG);
    let broker = Broker::start();
    let (connection, publisher) = with_queue(&broker, "orders").await;
    let program = tracing::info_span!("program");
    let outcome = publisher.publish("one").instrument(program.clone()).await.unwrap();
    soon("an outcome", outcome).await.unwrap();
    let lost = connection.publisher(Route::queue("nowhere")).build().await.unwrap();
    let outcome = lost.publish("two").await.unwrap();
    let returned = soon("an outcome", outcome).await.unwrap_err();
    assert!(matches!(returned, Unconfirmed::Returned(_)), "{returned}");

    let [one, two] = &watched.spans("publish")[..] else { panic!("two publishes") };
    assert!(one.ended && two.ended);
    assert_eq!(one.parent, program.id().map(|id| id.into_u64()));
    assert_eq!((one.field("exchange"), one.field("routing_key")), ("", "orders"));
    assert_eq!((one.number("body_bytes"), one.number("admitted_wait_us")), (3, 0));
    assert_eq!(one.number("in_flight_messages"), 1);
    assert_eq!(one.number("window_messages"), u64::from(publisher.metrics().window_messages));
    assert_eq!(one.number("confirm_us"), publisher.metrics().confirm_latency.max_us);
    assert_eq!((one.field("outcome"), one.field("republished")), ("confirmed", "false"));
    assert!(two.field("outcome").contains("no queue took the message"), "{two:?}");
    // And the connections themselves.
    assert!(!watched.spans("amqp").is_empty());
    let events = watched.events.lock().unwrap();
    assert!(events.iter().any(|event| event.fields.get("reconnects").is_some_and(|it| it == "0")));
}

#[tokio::test]
async fn a_publish_that_is_not_admitted_says_why() {
    let watched = watch(Level::DEBUG);
    let broker = Broker::start();
    let (connection, publisher) = with_queue(&broker, "orders").await;
    connection.close().await.unwrap();
    publisher.publish("late").await.unwrap_err();
    let [late] = &watched.spans("publish")[..] else { panic!("one publish") };
    assert!(late.ended && late.field("outcome").contains("closed"), "{late:?}");
}

#[tokio::test]
async fn a_delivery_is_a_span_while_it_is_in_work() {
    let watched = watch(Level::DEBUG);
    let broker = Broker::start();
    let (connection, publisher) = with_queue(&broker, "orders").await;
    for body in ["one", "two"] {
        soon("an outcome", publisher.publish(body).await.unwrap()).await.unwrap();
    }
    let mut consumer = connection.consumer("orders").build().await.unwrap();
    let first = soon("a delivery", consumer.next()).await.unwrap().unwrap();
    let span = first.tracing_span();
    async { tracing::info!("working") }.instrument(span.clone()).await;
    assert!(!watched.spans("delivery")[0].ended);
    assert!(first.ack().in_time().is_ok());
    drop(span);
    let second = soon("a delivery", consumer.next()).await.unwrap().unwrap();
    drop(second);

    let [one, two] = &watched.spans("delivery")[..] else { panic!("two deliveries") };
    assert!(one.ended && two.ended);
    assert_eq!((one.field("queue"), one.field("redelivered")), ("orders", "false"));
    assert_eq!((one.number("body_bytes"), one.number("in_work")), (3, 1));
    assert!(one.number("credit") >= 1);
    assert_eq!((one.field("settled"), one.field("in_time")), ("acked", "true"));
    assert_eq!(two.field("settled"), "requeued");
    let least = one.number("service_us").min(two.number("service_us"));
    assert_eq!(least, consumer.metrics().service.min_us);
}

#[tokio::test]
async fn a_call_is_a_span_and_counted() {
    let watched = watch(Level::DEBUG);
    let broker = Broker::start();
    let connection = broker.connect().await;
    declare(&connection, "rpc").await;
    let replies = connection.publisher(Route::queue("")).allow_unroutable().build().await.unwrap();
    let mut requests = connection.consumer("rpc").build().await.unwrap();
    let caller = connection.caller();
    let (calling, route) = (caller.clone(), Route::queue("rpc"));
    let call = tokio::spawn(async move { calling.call(PATIENCE, &route, "ping").await });
    let request = soon("a request", requests.next()).await.unwrap().unwrap();
    let waiting = caller.metrics();
    assert_eq!((waiting.calls, waiting.waiting), (1, 1));
    drop(replies.publish(request.reply("pong").unwrap()).await.unwrap());
    request.ack();
    assert_eq!(soon("a reply", call).await.unwrap().unwrap().body(), b"pong");
    let error = caller.call(PATIENCE, &Route::queue("none"), "x").await.unwrap_err();
    assert!(matches!(error, CallError::Unroutable(_)), "{error}");
    let patience = Duration::from_millis(1);
    let error = caller.call(patience, &Route::queue("rpc"), "x").await.unwrap_err();
    assert!(matches!(error, CallError::TimedOut { .. }), "{error}");

    let [replied, unroutable, late] = &watched.spans("call")[..] else { panic!("three calls") };
    assert!(replied.ended && unroutable.ended && late.ended);
    assert_eq!((replied.field("routing_key"), replied.field("outcome")), ("rpc", "replied"));
    let metrics = caller.metrics();
    assert!(replied.number("reply_us") >= metrics.reply_latency.max_us);
    assert!(unroutable.field("outcome").contains("no queue took the request"), "{unroutable:?}");
    assert_eq!(late.number("patience_ms"), 1);
    assert_eq!((metrics.calls, metrics.waiting, metrics.reply_latency.count), (3, 0, 1));
    assert_eq!((metrics.failed, metrics.given_up), (1, 1));
}

#[tokio::test]
async fn who_asks_for_less_has_no_span_for_a_message() {
    let watched = watch(Level::INFO);
    let broker = Broker::start();
    let (connection, publisher) = with_queue(&broker, "orders").await;
    soon("an outcome", publisher.publish("one").await.unwrap()).await.unwrap();
    let mut consumer = connection.consumer("orders").build().await.unwrap();
    let delivery = soon("a delivery", consumer.next()).await.unwrap().unwrap();
    assert!(delivery.tracing_span().is_disabled());
    delivery.ack();
    for name in ["publish", "delivery", "call"] {
        assert!(watched.spans(name).is_empty(), "{name}");
    }
    assert!(!watched.spans("amqp").is_empty());
}
