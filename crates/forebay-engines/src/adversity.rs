//! A cluster is hurt while messages flow: nothing confirmed may be missing, what comes twice says so, and
//! the flow comes back by itself.
//!
//! Four publishers, each on a connection of its own and with its own numbers, and four consumers, over two
//! quorum queues. For each way of hurting: hurt, wait until every publisher and every queue has moved on while
//! the node is still hurt, mend, wait until the cluster is whole and they have moved on again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay::{
    Connection, DeclareQueue, Delivery, Happening, Outcome, Publisher, Queue, REPUBLISHED_HEADER,
    Route, Topology, Unconfirmed,
};
use forebay_wire::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::Tried;
use crate::cluster::Cluster;
use crate::ledger::{Balance, Ledger};

const QUEUES: usize = 2;
const PUBLISHERS: usize = 4;
const CONSUMERS: usize = 4;
/// Between two messages of a publisher; it falls behind when the window is full.
const PUBLISH_EVERY: Duration = Duration::from_millis(5);
/// Publishers and consumers give a silent channel up after this; a confirm took 17 s on a busy machine whose leader
/// was frozen.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Messages that every publisher gets confirmed, and its queue delivers, before the flow counts as going on.
const PROGRESS_MESSAGES: u64 = 100;
/// Much longer than any cluster of this size needs; who waits so long waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// Before a node that stays apart is restarted.
const WHOLE_WITHIN_S: &str = "20";

/// What is done to a node.
struct Hurt {
    case: &'static str,
    promise: &'static str,
    hurt: &'static str,
    /// With the node's number, if it needs one.
    mend: &'static str,
    /// Whose leader is hurt.
    queue: usize,
}

const HURTS: [Hurt; 4] = [
    Hurt {
        case: "adversity.leader_is_killed",
        promise: "publishing and consuming go on while a queue's leader is dead, and after its restart",
        hurt: "kill",
        mend: "start",
        queue: 0,
    },
    Hurt {
        case: "adversity.leader_is_frozen",
        promise: "publishing and consuming go on while a queue's leader says nothing, and after it wakes",
        hurt: "freeze",
        mend: "thaw",
        queue: 1,
    },
    Hurt {
        case: "adversity.leader_is_cut_off",
        promise: "publishing and consuming go on while a queue's leader cannot reach its peers, and after",
        hurt: "cut",
        mend: "heal",
        queue: 0,
    },
    Hurt {
        case: "adversity.leader_is_stopped",
        promise: "publishing and consuming go on while a queue's leader is shut down, and after its restart",
        hurt: "stop",
        mend: "start",
        queue: 1,
    },
];

struct Flow {
    cluster: Cluster,
    ledgers: [Mutex<Ledger>; PUBLISHERS],
    /// What is asked how it does when it does not move on.
    publishers: [Mutex<Option<Publisher>>; PUBLISHERS],
    /// Publishers end.
    stopping: AtomicBool,
    /// Consumers tell how they do.
    asked: watch::Sender<()>,
    /// Consumers end.
    drained: watch::Sender<bool>,
    reconnects: Mutex<u64>,
    channels_replaced: Mutex<u64>,
}

/// Prints what was tried.
pub(crate) async fn run(mut told: impl FnMut(Tried)) -> Result<(), String> {
    let cluster = Cluster::around_us()?;
    let connection = connect(&cluster, 0, "watcher").await?;
    let topology = (0..QUEUES).fold(Topology::new(), |t, n| t.queue(Queue::quorum(queue_name(n))));
    connection.declare(topology).await.map_err(|error| error.to_string())?;
    let flow = Arc::new(Flow {
        cluster,
        ledgers: std::array::from_fn(|_| Mutex::new(Ledger::new(Instant::now()))),
        publishers: Default::default(),
        stopping: AtomicBool::new(false),
        asked: watch::Sender::new(()),
        drained: watch::Sender::new(false),
        reconnects: Mutex::new(0),
        channels_replaced: Mutex::new(0),
    });
    let mut consumers = JoinSet::new();
    for number in 0..CONSUMERS {
        consumers.spawn(consume(flow.clone(), number));
    }
    let mut publishers = JoinSet::new();
    for number in 0..PUBLISHERS {
        publishers.spawn(publish(flow.clone(), number));
    }
    flow.moves_on("before anything is hurt").await?;
    for hurt in &HURTS {
        let began = Instant::now();
        let outcome = flow.hurt(hurt).await;
        eprintln!("{}: {:.1} s", hurt.case, began.elapsed().as_secs_f32());
        let stuck = outcome.is_err();
        if stuck {
            flow.tell_who_is_stuck().await;
        }
        told(Tried { case: hurt.case.to_owned(), promise: hurt.promise.to_owned(), outcome });
        if stuck {
            break; // what comes after would tell of the same again
        }
    }
    flow.stopping.store(true, Ordering::Relaxed);
    let finished = ended("publishers", &mut publishers).await;
    told(tried(
        "adversity.outcomes",
        "every publish came to its outcome, and none is unknown",
        finished.and_then(|()| flow.outcomes()),
    ));
    let arrived = flow.all_arrived().await;
    told(tried("adversity.nothing_lost", "everything confirmed was delivered", arrived));
    let marked = flow.duplicates_are_marked();
    told(tried(
        "adversity.duplicates",
        "what came twice is marked as republished or redelivered",
        marked,
    ));
    let empty = flow.settled(&connection, &mut consumers).await;
    told(tried("adversity.acks", "what was acknowledged is gone from the queues", empty));
    // Some of its hosts may be gone for good; there is nothing to lose here any more.
    let _ = connection.close().await;
    Ok(())
}

fn tried(case: &str, promise: &str, outcome: Result<Vec<(String, String)>, String>) -> Tried {
    Tried { case: case.to_owned(), promise: promise.to_owned(), outcome }
}

impl Flow {
    fn ledger(&self, publisher: usize) -> MutexGuard<'_, Ledger> {
        self.ledgers[publisher].lock().expect("nobody panics while holding a ledger")
    }

    async fn hurt(&self, hurt: &Hurt) -> Result<Vec<(String, String)>, String> {
        let leader = self.cluster.order(&["leader", &queue_name(hurt.queue)]).await?;
        for publisher in 0..PUBLISHERS {
            self.ledger(publisher).take_longest_gap();
        }
        eprintln!("{} node {leader}", hurt.hurt);
        self.cluster.order(&[hurt.hurt, &leader]).await?;
        self.moves_on(&format!("while node {leader} is hurt by {}", hurt.hurt)).await?;
        let mend = if hurt.mend == "heal" { vec!["heal"] } else { vec![hurt.mend, &leader] };
        self.cluster.order(&mend).await?;
        let queues: Vec<String> = (0..QUEUES).map(queue_name).collect();
        let whole = ["whole", WHOLE_WITHIN_S].into_iter().chain(queues.iter().map(String::as_str));
        self.cluster.order(&whole.collect::<Vec<_>>()).await?;
        self.moves_on(&format!("after {} of node {leader}", hurt.mend)).await?;
        let gaps = (0..PUBLISHERS).map(|publisher| self.ledger(publisher).take_longest_gap());
        let gap = gaps.max().expect("there are publishers");
        eprintln!("longest time without a confirm: {:.1} s", gap.as_secs_f32());
        Ok(Vec::new())
    }

    /// Whoever has unconfirmed or unacknowledged messages, the broker or the client, is the one who is stuck.
    async fn tell_who_is_stuck(&self) {
        let tables = [
            "list_channels connection number messages_unconfirmed messages_unacknowledged prefetch_count",
            "list_queues name leader online messages_ready messages_unacknowledged consumers",
            "list_consumers",
        ];
        for table in tables {
            let words: Vec<&str> = ["ctl", "3"].into_iter().chain(table.split(' ')).collect();
            eprintln!("{}", self.cluster.order(&words).await.unwrap_or_else(|error| error));
        }
        self.asked.send_replace(());
    }

    /// Waits until every publisher had so many confirmed, and so many of its messages have arrived, since now.
    async fn moves_on(&self, when: &str) -> Result<(), String> {
        let before: Vec<(u64, u64)> = self.progress();
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.progress();
            let slow: Vec<usize> = (0..PUBLISHERS)
                .filter(|&n| {
                    now[n].0 < before[n].0 + PROGRESS_MESSAGES
                        || now[n].1 < before[n].1 + PROGRESS_MESSAGES
                })
                .collect();
            if slow.is_empty() {
                return Ok(());
            }
            if Instant::now() > end {
                for &number in &slow {
                    let publisher = self.publishers[number].lock().expect("nobody panics here");
                    eprintln!(
                        "publisher {number}: {:?}",
                        publisher.as_ref().map(Publisher::metrics)
                    );
                }
                return Err(format!(
                    "{when}: publishers {slow:?} did not move on within {} s: confirmed and arrived \
                     {before:?} before, {now:?} now",
                    PATIENCE.as_secs()
                ));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn progress(&self) -> Vec<(u64, u64)> {
        (0..PUBLISHERS).map(|publisher| self.ledger(publisher).progress()).collect()
    }

    fn balances(&self) -> Vec<Balance> {
        (0..PUBLISHERS).map(|publisher| self.ledger(publisher).balance()).collect()
    }

    fn outcomes(&self) -> Result<Vec<(String, String)>, String> {
        let (mut unknown, mut rejected) = (Vec::new(), 0);
        for publisher in 0..PUBLISHERS {
            let mut ledger = self.ledger(publisher);
            unknown.append(&mut ledger.unknown);
            let balance = ledger.balance();
            rejected += balance.rejected;
        }
        let confirmed: u64 = self.balances().iter().map(|balance| balance.confirmed).sum();
        let reconnects = *self.reconnects.lock().expect("nobody panics while counting");
        let replaced = *self.channels_replaced.lock().expect("nobody panics while counting");
        eprintln!(
            "{confirmed} confirmed, {rejected} rejected, {} unknown, {reconnects} reconnects, {replaced} channels replaced",
            unknown.len()
        );
        let open: u64 = self.balances().iter().map(|balance| balance.open).sum();
        match unknown.first() {
            Some(first) => Err(format!("{} are unknown: {first}", unknown.len())),
            None if open > 0 => Err(format!("{open} publishes have no outcome")),
            None => Ok(Vec::new()),
        }
    }

    async fn all_arrived(&self) -> Result<Vec<(String, String)>, String> {
        let end = Instant::now() + PATIENCE;
        loop {
            let balances = self.balances();
            let lost: usize = balances.iter().map(|balance| balance.lost.len()).sum();
            if lost == 0 {
                return Ok(Vec::new());
            }
            if Instant::now() > end {
                let first = balances.iter().enumerate().find_map(|(publisher, balance)| {
                    balance.lost.first().map(|number| format!("{number} of publisher {publisher}"))
                });
                return Err(format!("{lost} messages were confirmed and never came: {first:?}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn duplicates_are_marked(&self) -> Result<Vec<(String, String)>, String> {
        let balances = self.balances();
        let copies: u64 = balances.iter().map(|balance| balance.copies_too_many).sum();
        let unmarked: usize = balances.iter().map(|balance| balance.unmarked.len()).sum();
        eprintln!("{copies} messages came more than once, {unmarked} of them without a mark");
        if unmarked > 0 {
            return Err(format!("{unmarked} of {copies} copies bear no mark"));
        }
        Ok(Vec::new())
    }
}

impl Flow {
    /// Lets the consumers take the rest and end; nothing may come back to the queues then.
    async fn settled(
        &self,
        connection: &Connection,
        consumers: &mut JoinSet<Result<(), String>>,
    ) -> Result<Vec<(String, String)>, String> {
        emptied(connection).await?;
        self.drained.send_replace(true);
        ended("consumers", consumers).await?;
        emptied(connection).await?;
        Ok(Vec::new())
    }
}

fn queue_name(number: usize) -> String {
    format!("flow-{number}")
}

async fn connect(cluster: &Cluster, place: usize, name: &str) -> Result<Connection, String> {
    let connection = Connection::builder().name(name).open(&cluster.uri(place)).await;
    connection.map_err(|error| format!("{name}: {error}"))
}

/// Tells of losses and reconnects.
fn watch(flow: &Arc<Flow>, connection: &Connection, name: String) {
    let (flow, mut happenings) = (flow.clone(), connection.happenings());
    tokio::spawn(async move {
        while let Ok(happening) = happenings.recv().await {
            match happening {
                Happening::Connected { address, reconnects } if reconnects > 0 => {
                    *flow.reconnects.lock().expect("nobody panics while counting") += 1;
                    eprintln!("{name}: connected to {address}");
                }
                Happening::Retrying { .. } => {}
                other => eprintln!("{name}: {other:?}"),
            }
        }
    });
}

async fn publish(flow: Arc<Flow>, number: usize) -> Result<(), String> {
    let name = format!("publisher {number}");
    let connection = connect(&flow.cluster, number, &name).await?;
    watch(&flow, &connection, name.clone());
    let route = Route::queue(queue_name(number % QUEUES));
    let publisher = connection.publisher(route).stall_timeout(STALL_TIMEOUT).build().await;
    let publisher = publisher.map_err(|fault| fault.to_string())?;
    *flow.publishers[number].lock().expect("nobody panics here") = Some(publisher.clone());
    let mut ticks = tokio::time::interval(PUBLISH_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut outcomes = JoinSet::new();
    while !flow.stopping.load(Ordering::Relaxed) {
        ticks.tick().await;
        let message = flow.ledger(number).publish();
        let body = format!("{number} {message} {}", "x".repeat(200));
        let outcome = publisher.publish(body.into_bytes()).await;
        let outcome = outcome.map_err(|refused| format!("{name}: {refused}"))?;
        outcomes.spawn(await_outcome(flow.clone(), number, message, outcome));
        while let Some(ended) = outcomes.try_join_next() {
            ended.expect("it does not panic");
        }
    }
    while outcomes.join_next().await.is_some() {}
    let replaced = publisher.metrics().channels_replaced;
    *flow.channels_replaced.lock().expect("nobody panics while counting") += replaced;
    *flow.publishers[number].lock().expect("nobody panics here") = None;
    drop(publisher);
    connection.close().await.map_err(|lost| format!("{name}: {lost}"))
}

async fn await_outcome(flow: Arc<Flow>, number: usize, message: usize, outcome: Outcome) {
    match outcome.await {
        Ok(_) => flow.ledger(number).confirm(Instant::now(), message),
        Err(Unconfirmed::Rejected) => flow.ledger(number).reject(message),
        Err(why) => flow.ledger(number).unknown.push(format!("{message}: {why}")),
    }
}

async fn consume(flow: Arc<Flow>, number: usize) -> Result<(), String> {
    let name = format!("consumer {number}");
    // Another first host than the publisher of the same number.
    let connection = connect(&flow.cluster, number + 1, &name).await?;
    watch(&flow, &connection, name.clone());
    let queue = queue_name(number % QUEUES);
    let consumer = connection.consumer(queue).stall_timeout(STALL_TIMEOUT).build().await;
    let mut consumer = consumer.map_err(|error| format!("{name}: {error}"))?;
    let mut asked = flow.asked.subscribe();
    let mut drained = flow.drained.subscribe();
    loop {
        let next = tokio::select! {
            next = consumer.next() => next,
            _ = asked.changed() => {
                eprintln!("{name}: {:?}", consumer.metrics());
                continue;
            }
            _ = drained.changed() => {
                consumer.stop();
                return connection.close().await.map_err(|lost| format!("{name}: {lost}"));
            }
        };
        match next {
            Ok(Some(delivery)) => {
                let (publisher, message) = numbers(&delivery);
                let marked = delivery.redelivered() || is_republished(&delivery);
                flow.ledger(publisher).arrive(message, marked);
                delivery.ack();
            }
            Ok(None) => return Ok(()),
            Err(error) => {
                eprintln!("{name}: {error}");
                return Err(error.to_string());
            }
        }
    }
}

fn is_republished(delivery: &Delivery) -> bool {
    let headers = delivery.properties().headers;
    headers.and_then(|headers| headers.get(REPUBLISHED_HEADER)) == Some(Value::Bool(true))
}

fn numbers(delivery: &Delivery) -> (usize, usize) {
    let body = std::str::from_utf8(delivery.body()).expect("we wrote text");
    let mut words = body.split(' ').map(|word| word.parse().expect("we wrote numbers"));
    (words.next().expect("a publisher"), words.next().expect("a message"))
}

async fn ended(what: &str, tasks: &mut JoinSet<Result<(), String>>) -> Result<(), String> {
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|error| error.to_string())??;
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .unwrap_or_else(|_| Err(format!("{what} did not end within {} s", PATIENCE.as_secs())))
}

/// Acks leave a little after they were given.
async fn emptied(connection: &Connection) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut left = 0;
        for number in 0..QUEUES {
            let channel = connection.channel().await.map_err(|fault| fault.to_string())?;
            let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
            let info = channel.declare_queue(&queue_name(number), passive).await;
            left += info.map_err(|fault| fault.to_string())?.message_count;
        }
        if left == 0 {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("{left} messages are still there"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
