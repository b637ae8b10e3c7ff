//! Publishers on a pool that grows and shrinks under them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_flow::{Amount, Fixed, Load, Sample, WindowState};
use forebay_server::{Config, Data, Server};
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

use crate::machine::Options;
use crate::{
    ByteStream, CloseError, Connection, Happening, Message, Outcome, Publisher, Queue, Route,
    Topology, Window,
};

use super::Pool;
use crate::session::{Ledger, Target};

/// On a free port.
pub(crate) fn broker() -> Server {
    let config = Config {
        data: Data::Memory,
        amqp: vec!["127.0.0.1:0".to_owned()],
        http: None,
        drain_timeout: Duration::from_millis(500),
        ..Config::default()
    };
    Server::start(config).expect("a broker in memory starts")
}

/// The pool is moved by the test alone.
pub(crate) async fn connect(broker: &Server) -> Connection {
    let uri = format!("amqp://guest:guest@{}/%2f", broker.addresses().amqp[0]);
    Connection::builder().connections_max(1).open(&uri).await.expect("guest may log in")
}

pub(crate) async fn declare(connection: &Connection, queues: &[String]) {
    let topology =
        queues.iter().fold(Topology::new(), |all, queue| all.queue(Queue::durable(queue)));
    connection.declare(topology).await.unwrap();
}

async fn contents(connection: &Connection, queue: &str) -> Vec<u32> {
    let channel = connection.channel().await.unwrap();
    let mut numbers = Vec::new();
    while let Some((message, _)) = channel.get(queue, true).await.unwrap() {
        numbers.push(u32::from_be_bytes(message.body().try_into().unwrap()));
    }
    numbers
}

async fn publish(publisher: Publisher, count: u32) {
    let mut outcomes: Vec<Outcome> = Vec::new();
    for number in 0..count {
        let message = Message::new(number.to_be_bytes().to_vec());
        outcomes.push(publisher.publish(message).await.unwrap());
        tokio::task::yield_now().await;
    }
    for outcome in outcomes {
        outcome.await.unwrap();
    }
}

fn pool(connection: &Connection) -> &Arc<Pool> {
    connection.pool()
}

async fn grow(connection: &Connection) {
    assert!(Pool::grow(&Arc::downgrade(pool(connection))).await);
}

async fn renew(connection: &Connection, place: usize) {
    let old = connection.pool().members()[place].clone();
    let new = pool(connection).setup.open(" (anew)").await.unwrap();
    assert!(pool(connection).take_over(&old, &new));
    assert!(!connection.pool().members().iter().any(|guard| Arc::ptr_eq(guard, &old)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_is_kept_while_publishers_move() {
    const MESSAGES: u32 = 2000;
    let broker = broker();
    let connection = connect(&broker).await;
    let queues: Vec<String> = (0..5).map(|number| format!("queue {number}")).collect();
    declare(&connection, &queues).await;
    let mut publishers = Vec::new();
    let mut publishing = Vec::new();
    for queue in &queues {
        let builder = connection.publisher(Route::queue(queue)).window(Window::fixed(30));
        let publisher = builder.build().await.unwrap();
        publishers.push(publisher.clone());
        publishing.push(tokio::spawn(publish(publisher, MESSAGES)));
    }
    let mut changes = 0;
    while publishing.iter().any(|task| !task.is_finished()) {
        // Up to three, others in their places, down to one, and so on.
        match changes % 6 {
            0 | 1 => grow(&connection).await,
            2 | 3 => renew(&connection, changes % 3).await,
            _ => pool(&connection).shrink(),
        }
        changes += 1;
        pool(&connection).look();
        tokio::task::yield_now().await;
    }
    assert!(changes > 6, "{changes} changes");
    for task in publishing {
        task.await.unwrap();
    }
    for (queue, publisher) in queues.iter().zip(&publishers) {
        assert_eq!(contents(&connection, queue).await, (0..MESSAGES).collect::<Vec<_>>());
        let metrics = publisher.metrics();
        assert_eq!((metrics.published, metrics.confirmed), (2000, 2000));
        assert_eq!((metrics.in_flight_messages, metrics.waiting), (0, 0));
    }
    while connection.pool().members().len() > 1 {
        pool(&connection).shrink();
    }
    pool(&connection).look();
    assert!(pool(&connection).lock().retired.is_empty(), "nothing is in flight");
    connection.close().await.unwrap();
    broker.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unordered_publisher_uses_every_connection_and_loses_nothing_with_one() {
    let broker = broker();
    let connection = connect(&broker).await;
    let queues = ["orders".to_owned()];
    declare(&connection, &queues).await;
    let publisher = connection.publisher(Route::queue("orders")).unordered().build().await.unwrap();
    grow(&connection).await;
    grow(&connection).await;
    let before = connection.publishing_metrics();
    let publishing = tokio::spawn(publish(publisher.clone(), 3000));
    let is_used = |place: usize| {
        connection.publishing_metrics()[place].written_bytes > before[place].written_bytes + 1000
    };
    while !(0..3).all(is_used) {
        assert!(!publishing.is_finished(), "over one connection only");
        tokio::task::yield_now().await;
    }
    pool(&connection).shrink();
    pool(&connection).shrink();
    publishing.await.unwrap();
    let mut numbers = contents(&connection, "orders").await;
    numbers.sort_unstable();
    assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
    assert_eq!(publisher.metrics().confirmed, 3000);
    connection.close().await.unwrap();
    broker.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_route_has_outgrown_is_left_for_another_that_loses_nothing() {
    let broker = broker();
    // The kernel is not asked about streams of one's own: nothing but the test says how long the route is.
    let address = broker.addresses().amqp[0].to_string();
    let to = address.clone();
    let make = move || {
        let to = to.clone();
        async move { Ok(Box::new(TcpStream::connect(to).await?) as Box<dyn ByteStream>) }
    };
    let builder = Connection::builder().connections_max(2);
    let connection = builder.over(address, Options::default(), make).await.unwrap();
    let queues = ["spread".to_owned(), "ordered".to_owned()];
    declare(&connection, &queues).await;
    let mut happenings = connection.happenings();
    let spread = connection.publisher(Route::queue("spread")).unordered().build().await.unwrap();
    let ordered = connection.publisher(Route::queue("ordered")).build().await.unwrap();
    let publishing: Vec<_> = [spread, ordered]
        .map(|publisher| tokio::spawn(publish(publisher, 3000)))
        .into_iter()
        .collect();
    let first = connection.pool().members()[0].clone();
    first.link.with(|session| session.set_longer_route());
    while !matches!(happenings.recv().await.unwrap(), Happening::LongerRoute { .. }) {}
    for task in publishing {
        task.await.unwrap();
    }
    assert!(!Arc::ptr_eq(&first, &connection.pool().members()[0]));
    assert_eq!(contents(&connection, "ordered").await, (0..3000).collect::<Vec<_>>());
    let mut numbers = contents(&connection, "spread").await;
    numbers.sort_unstable();
    assert_eq!(numbers, (0..3000).collect::<Vec<_>>());
    let idle = || !first.link.with(|session| session.has_publishers());
    while !idle() {
        pool(&connection).look();
        tokio::task::yield_now().await;
    }
    connection.close().await.unwrap();
    broker.stop().unwrap();
}

#[tokio::test]
async fn who_waits_without_order_is_served_by_the_first_connection_that_comes_back() {
    let broker = broker();
    let address = broker.addresses().amqp[0].to_string();
    // As many streams are made as may be, and each ends when it is told to.
    let (allowed, cut) = (Arc::new(Semaphore::new(2)), Arc::new(Notify::new()));
    let (allow, cut_all, to) = (allowed.clone(), cut.clone(), address.clone());
    let make = move || {
        let (allowed, cut, to) = (allowed.clone(), cut.clone(), to.clone());
        async move {
            allowed.acquire().await.unwrap().forget();
            let mut theirs = TcpStream::connect(to).await?;
            let (ours, mut near) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move {
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut theirs) => {}
                    () = cut.notified() => {}
                }
            });
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        }
    };
    let builder = Connection::builder().connections_max(1).recovery_pause(Duration::from_millis(1));
    let connection = builder.over(address, Options::default(), make).await.unwrap();
    declare(&connection, &["spread".to_owned()]).await;
    let publisher = connection.publisher(Route::queue("spread")).unordered().build().await.unwrap();
    grow(&connection).await;
    let connected = || {
        let members = connection.pool().members();
        members.iter().filter(|guard| guard.link.metrics().connected).count()
    };
    let is_lost = || pool(&connection).look().expect("it is open").0.lost;
    assert!(!is_lost());
    cut_all.notify_waiters();
    while connected() > 0 {
        tokio::task::yield_now().await;
    }
    let publishing = [(); 2].map(|()| tokio::spawn(publish(publisher.clone(), 1)));
    while publisher.metrics().waiting < 2 {
        tokio::task::yield_now().await;
    }
    allow.add_permits(1);
    let served = async {
        while !publishing.iter().all(|task| task.is_finished()) {
            pool(&connection).look();
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), served).await.expect("one of two is there");
    assert_eq!(connected(), 1);
    assert!(is_lost(), "the other one");
    broker.stop().unwrap();
}

/// A window that keeps what it is told of routes that are no longer.
struct Told(Arc<Mutex<Vec<(u64, u64)>>>);

impl forebay_flow::Window for Told {
    fn sent(&mut self, _: u64, _: Load) -> bool {
        false
    }

    fn confirmed(&mut self, _: u64, _: Sample, _: Load) {}

    fn rejected(&mut self, _: u64, _: Load) {}

    fn route_is_no_longer(&mut self, _: u64, rtt_us: u64, rest_us: u64) {
        self.0.lock().unwrap().push((rtt_us, rest_us));
    }

    fn blocked(&mut self, _: u64) {}

    fn unblocked(&mut self, _: u64) {}

    fn window(&self) -> Amount {
        Amount::new(1, u64::MAX)
    }

    fn state(&self) -> WindowState {
        Fixed::new(self.window()).state()
    }
}

/// A broker that acknowledges late looks as if it was far away; whoever logs in beside it hears that it is not.
#[tokio::test]
async fn a_route_that_only_seems_longer_is_not_left() {
    let broker = broker();
    let connection = connect(&broker).await;
    let first = connection.pool().members()[0].clone();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let window = {
        let told = heard.clone();
        move || Box::new(Told(told.clone())) as Box<_>
    };
    let target = Target { exchange: String::new(), routing_key: String::new(), mandatory: false };
    let ledger = Ledger::new(target, "t-", Box::new(window));
    first.link.with_now(|session, now_us| session.add_ledger(ledger, now_us));
    // Where the kernel tells nothing of a connection nothing is refuted.
    let kernel_tells = first.link.network_us() > 0;
    first.link.set_network_us(600_000_000);
    assert!(!Pool::renew(&Arc::downgrade(pool(&connection)), &first, 6_000_000).await);
    let told = std::mem::take(&mut *heard.lock().unwrap());
    assert_eq!(told.len(), usize::from(kernel_tells));
    assert!(told.iter().all(|&(rtt_us, rest_us)| rtt_us < 300_000_000 && rest_us == 6_000_000));
    // Of another host's route that says nothing.
    first.link.set_peer(Some(([192, 0, 2, 1], 5672).into()));
    assert!(!Pool::renew(&Arc::downgrade(pool(&connection)), &first, 6_000_000).await);
    assert!(heard.lock().unwrap().is_empty());
    assert!(Arc::ptr_eq(&first, &connection.pool().members()[0]));
    broker.stop().unwrap();
}

#[tokio::test]
async fn closing_counts_what_was_not_confirmed_where_others_took_the_place() {
    let broker = broker();
    let connection = connect(&broker).await;
    let publisher = connection.publisher(Route::queue("nowhere")).build().await.unwrap();
    for place in 0..3 {
        drop(publisher.publish("x").await.unwrap());
        if place < 2 {
            renew(&connection, 0).await;
        }
    }
    publisher.idle().await;
    pool(&connection).look();
    assert!(pool(&connection).lock().retired.is_empty());
    match connection.close().await {
        Err(CloseError::Unconfirmed { returned: 3, .. }) => {}
        other => panic!("{other:?}"),
    }
    broker.stop().unwrap();
}

#[tokio::test]
async fn a_new_connection_gets_its_share_of_the_publishers() {
    let broker = broker();
    let connection = connect(&broker).await;
    declare(&connection, &["shared".to_owned()]).await;
    let mut publishers = Vec::new();
    for _ in 0..6 {
        publishers.push(connection.publisher(Route::queue("shared")).build().await.unwrap());
    }
    let crowds = || pool(&connection).lock().crowds(|_| 1);
    assert_eq!(crowds(), [6]);
    grow(&connection).await;
    assert_eq!(crowds(), [3, 3]);
    grow(&connection).await;
    assert_eq!(crowds(), [2, 2, 2]);
    pool(&connection).shrink();
    assert_eq!(crowds(), [3, 3]);
    publishers.push(connection.publisher(Route::queue("shared")).build().await.unwrap());
    publishers.push(connection.publisher(Route::queue("shared")).build().await.unwrap());
    assert_eq!(crowds(), [4, 4], "a new one goes where there are fewer");
    renew(&connection, 0).await;
    assert_eq!(crowds(), [4, 4], "all go along");
    drop(publishers);
    assert_eq!(crowds(), [0, 0]);
    broker.stop().unwrap();
}

#[tokio::test]
async fn closing_counts_what_was_not_confirmed_on_connections_that_are_gone() {
    let broker = broker();
    let connection = connect(&broker).await;
    let publisher =
        connection.publisher(Route::queue("nowhere")).unordered().build().await.unwrap();
    grow(&connection).await;
    for _ in 0..10 {
        drop(publisher.publish("x").await.unwrap());
    }
    publisher.idle().await;
    pool(&connection).shrink();
    pool(&connection).look();
    assert!(pool(&connection).lock().retired.is_empty());
    match connection.close().await {
        Err(CloseError::Unconfirmed {
            rejected: 0,
            returned: 10,
            unknown: 0,
            withdrawn: 0,
            lost: None,
        }) => {}
        other => panic!("{other:?}"),
    }
    broker.stop().unwrap();
}
