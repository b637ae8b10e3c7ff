//! What programs rely on, case by case; the same code for every engine.
//!
//! A case fails if the promise is not kept. What may differ between engines it writes down, as the answer to
//! a question; `tests/engines/run.py` makes the table of differences from it.

mod breaking;
mod consuming;
mod limits;
mod pipelines;
mod publishing;
mod routing;
mod topology;
mod working;

use std::time::Duration;

use forebay::{Connection, DeclareQueue, Message, Publisher, Route, Topology};

use crate::Tried;
use crate::engine::{Engine, Failure};

/// Much longer than any case takes. A thousand logins at a cluster of three RabbitMQ take 30 s and more on a slow host.
const PATIENCE: Duration = Duration::from_secs(180);

/// Answers to questions that engines may answer differently.
#[derive(Default)]
pub(crate) struct Saw(Vec<(String, String)>);

impl Saw {
    pub(crate) fn note(&mut self, question: &str, answer: impl ToString) {
        self.0.push((question.to_owned(), answer.to_string()));
    }
}

/// All cases, each with its name, its promise and its function.
macro_rules! cases {
    ($($module:ident::$case:ident: $promise:literal,)+) => {
        /// Runs every case whose name begins so, one after another.
        pub(crate) async fn run(engine: &Engine, only: &str, mut told: impl FnMut(Tried)) {
            $(
                let name = concat!(stringify!($module), ".", stringify!($case));
                if name.starts_with(only) {
                    let mut saw = Saw::default();
                    let case = $module::$case(engine, &mut saw);
                    let outcome = match tokio::time::timeout(PATIENCE, case).await {
                        Ok(Ok(())) => Ok(saw.0),
                        Ok(Err(failure)) => Err(failure.to_string()),
                        Err(_) => Err(format!("was not done after {} s", PATIENCE.as_secs())),
                    };
                    told(Tried { case: name.to_owned(), promise: $promise.to_owned(), outcome });
                }
            )+
        }
    };
}

cases! {
    publishing::every_publish_has_one_outcome: "a thousand publishes give a thousand confirms, and the messages are there",
    publishing::order_is_kept: "one publisher's messages reach a consumer in the order in which they were published, while its credit tunes itself",
    publishing::unroutable_is_an_error: "a message for a queue that does not exist is returned with 312",
    publishing::unroutable_may_be_allowed: "with allow_unroutable such a message is confirmed and gone",
    publishing::a_missing_exchange_is_told: "publishing to an exchange that does not exist ends in an outcome with 404",
    publishing::properties_arrive: "all properties, headers and the body arrive as they were sent",
    publishing::large_messages_pass: "a message of 1 MiB, in many frames, arrives whole",
    publishing::empty_messages_pass: "a message without a body arrives",
    publishing::many_callers_share_a_publisher: "fifty tasks on one publisher each get their own outcomes",
    breaking::cuts_lose_nothing: "over 1000 cuts of its connection a publisher gets every confirm; every message is in the queue, and what is there twice is marked",
    consuming::acked_is_gone: "what was acknowledged does not come again",
    consuming::dropped_comes_again: "a delivery dropped without an ack comes again, marked as redelivered",
    consuming::rejected_is_gone: "a rejected message is gone",
    consuming::consumers_share_a_queue: "two consumers of a queue get every message once",
    consuming::a_missing_queue_is_refused: "consuming a queue that does not exist is refused with 404",
    consuming::deletion_ends_consumers: "a consumer learns that its queue was deleted",
    consuming::an_exclusive_consumer_is_alone: "an exclusive consumer may be had",
    consuming::stopping_gives_back: "what a stopped consumer did not take is there for the next one",
    consuming::get_takes_one: "basic.get takes one message and tells how many are left",
    working::leases_last_as_long_as_the_program: "where leases are granted, work that takes several ack timeouts is done once, and a frozen program's job goes to another",
    pipelines::each_outcome_is_kept: "what a handler decides, for each of the outcomes, happens to its message",
    pipelines::attempts_outlive_the_pipeline: "a message that was put off is there for the next pipeline",
    pipelines::what_cannot_be_put_off_is_held: "a message that cannot wait in the broker waits in the pipeline for its time, and that is told",
    pipelines::keys_stay_in_order: "messages of a key are done one after the other, in order, also when some fail or are put off",
    pipelines::long_jobs_start_at_once: "25 workers are inside 25 long jobs at the same time, with one consumer and with eight",
    pipelines::failed_batches_are_split: "of a batch with one bad message the others are done, and it alone is rejected",
    pipelines::a_drain_loses_nothing: "what a drained pipeline has not acknowledged is there for the next one",
    pipelines::it_tells_where_time_went: "the segments of marked messages add up to their time, and name pauses before retries as the cause",
    routing::exchange_kinds: "direct, fanout, topic and headers exchanges route as AMQP says",
    routing::exchanges_bind_to_exchanges: "a message passes through bound exchanges, once a queue",
    routing::an_alternate_exchange_takes_the_rest: "what an exchange cannot route goes to its alternate exchange",
    routing::each_key_keeps_to_its_part: "through a consistent-hash exchange all messages arrive, each key in one part and in order",
    topology::declaring_again_changes_nothing: "the same topology may be declared again",
    topology::other_arguments_are_refused: "declaring with another durability is refused with 406, and the connection lives on",
    topology::purging_and_deleting_count: "purge and delete tell how many messages went",
    topology::a_queue_may_be_named_by_the_broker: "a queue declared without a name gets one, and is gone with its connection",
    limits::what_it_says_about_itself: "the broker names itself and its capabilities",
    limits::which_arguments_it_takes: "each argument of a queue is taken, or refused with a reply code",
    limits::where_a_requeued_message_goes: "a requeued message comes again",
    limits::how_often_it_was_delivered: "a message that was given back comes again",
    limits::transactions: "a transaction publishes all or is refused",
}

/// Fails with a sentence.
fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}

/// A connection with a queue of the engine's kind, and a publisher to it.
async fn with_queue(engine: &Engine, queue: &str) -> Result<(Connection, Publisher), Failure> {
    let connection = engine.connect().await?;
    connection.declare(Topology::new().queue(engine.queue(queue))).await?;
    let publisher = connection.publisher(Route::queue(queue)).build().await?;
    Ok((connection, publisher))
}

async fn confirmed(publisher: &Publisher, message: impl Into<Message>) -> Result<(), Failure> {
    publisher.publish(message).await?.await?;
    Ok(())
}

/// Messages that are ready, as the broker counts them.
async fn ready(connection: &Connection, queue: &str) -> Result<u32, Failure> {
    let channel = connection.channel().await?;
    let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
    Ok(channel.declare_queue(queue, passive).await?.message_count)
}

/// Waits until so many are ready: brokers may count a little later than they confirm.
async fn until_ready(connection: &Connection, queue: &str, count: u32) -> Result<(), Failure> {
    while ready(connection, queue).await? != count {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
