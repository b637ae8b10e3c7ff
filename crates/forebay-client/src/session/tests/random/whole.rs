//! The same with the whole client around the session: tasks that use it, futures that are dropped, sockets for consuming and for
//! publishing, on a clock that only goes when all of them wait.

mod hub;
mod ladder;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use self::hub::{Host, Hub, Shared, broker, dial, lock, state};
use super::rabbit::POISON;
use super::*;
use crate::outcome::{Confirmed, NotPublishedReason};
use crate::pool::Pool;
use crate::shell::Dialer;
use crate::system_clock::by_hand;
use crate::{
    CallError, Caller, Connection, Consumer, Delivery, Outcome, Publisher as Handle, Route, Window,
};

/// Nothing takes so long once all is well. Ten connections end over each of two messages, a minute apart where a host closes each
/// second one at once: that is 1,300 s and more.
const BOUND: Duration = Duration::from_secs(10_000);
const QUEUES: [&str; 3] = ["q0", "q1", "q2"];

/// Publishes under its own name until all is well; true at once when it is told that the connection is closed.
async fn publish(hub: Shared, name: String, handle: Handle, mut random: Random) {
    let mut outcomes: Vec<(String, Outcome)> = Vec::new();
    for number in 1.. {
        let (well, closing) = state(&hub);
        if well || number > 400 {
            break;
        }
        let message_name = format!("{name}-{number}");
        let size = [0, 10, 300, 5_000][random.below(4)];
        let mut text = format!("{message_name}|{}", "-".repeat(size));
        if lock(&hub).takes_poison(&mut random) {
            text = format!("{message_name}{POISON}");
        }
        let mut message = Message::new(text.into_bytes());
        if random.in_percent(20) {
            message = message.message_id(format!("own {message_name}"));
        }
        let ms = [1, 50, 2_000][random.below(3)];
        let patience = Duration::from_millis(ms);
        let asked = match random.below(3) {
            0 => Some(handle.publish_within(patience, message).await),
            1 => timeout(patience, handle.publish(message)).await.ok(),
            _ => Some(handle.publish(message).await),
        };
        match asked {
            None => {} // dropped: it may have been admitted in that very moment
            Some(Ok(outcome)) => outcomes.push((message_name, outcome)),
            Some(Err(refused)) => {
                lock(&hub).unsent.push(message_name);
                match refused.reason {
                    NotPublishedReason::DeadlinePassed => {}
                    NotPublishedReason::Lost(_) => {
                        let hub = lock(&hub);
                        assert!(closing || hub.closing || hub.gives_up, "nobody closed it");
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        if !outcomes.is_empty() && random.in_percent(30) {
            let (name, outcome) = outcomes.swap_remove(random.below(outcomes.len()));
            match random.below(3) {
                0 => drop(outcome),
                1 => {
                    let mut outcome = outcome;
                    match timeout(patience, &mut outcome).await {
                        Ok(told) => lock(&hub).hear(name, told),
                        Err(_) => outcomes.push((name, outcome)),
                    }
                }
                _ => {
                    let told = outcome.await;
                    lock(&hub).hear(name, told);
                }
            }
        }
        if random.in_percent(5) {
            let _ = timeout(patience, handle.idle()).await;
        }
        if random.in_percent(30) {
            sleep(patience).await;
        }
    }
    for (name, outcome) in outcomes {
        let told = outcome.await;
        lock(&hub).hear(name, told);
    }
    handle.idle().await;
}

/// Asks, in several tasks at once, and hears the answers to what it asked.
async fn ask(hub: Shared, name: String, caller: Caller, mut random: Random) {
    for number in 1..200 {
        if lock(&hub).well {
            break;
        }
        let name = format!("{name}-{number}");
        let request = format!("{name}|{}", "-".repeat([0, 300, 5_000][random.below(3)]));
        let route = Route::queue(["q0", "q1", "nowhere"][random.below(3)]);
        let patience = Duration::from_millis([1, 80, 3_000][random.below(3)]);
        let dropped_after = Duration::from_millis([2, 10_000][random.below(2)]);
        let asked = caller.call(patience, &route, request.clone().into_bytes());
        match timeout(dropped_after, asked).await {
            Ok(Ok(reply)) => {
                assert_eq!(reply.body(), format!("re {request}").as_bytes());
                lock(&hub).replies += 1;
            }
            Ok(Err(CallError::TimedOut { unsent: true })) => lock(&hub).unasked.push(name),
            Ok(Err(CallError::Lost(_))) if lock(&hub).closing => break,
            Ok(Err(_)) | Err(_) => {}
        }
        if random.in_percent(50) {
            sleep(patience).await;
        }
    }
}

fn number_of(delivery: &Delivery) -> u64 {
    String::from_utf8_lossy(delivery.body()).rsplit('#').next().unwrap().parse().unwrap()
}

/// Whether it was in time.
fn settle(hub: &Shared, delivery: Delivery, said: Said) -> bool {
    let number = number_of(&delivery);
    // The broker may hear of it before this task goes on.
    let mut hub = lock(hub);
    let settlement = match said {
        Said::Ack => delivery.ack(),
        Said::Reject => delivery.reject(),
        _ => delivery.requeue(),
    };
    let in_time = settlement.in_time().is_ok();
    if in_time {
        hub.rabbit.said.insert(number, said);
    }
    in_time
}

/// Consumes until it is told to stop, from whatever queue is there.
async fn consume(hub: Shared, connection: Connection, mut random: Random) {
    loop {
        let queue = QUEUES[random.below(3)];
        let mut builder = connection.consumer(queue).workers(1 + random.below(3) as u16);
        if random.in_percent(50) {
            builder = builder.credit_max(5);
        }
        if random.in_percent(30) {
            builder = builder.fixed_credit(3);
        }
        let limited = random.in_percent(20);
        if limited {
            builder = builder.work_limit(Duration::from_millis(300));
        }
        let patience = Duration::from_millis([20, 500, 60_000][random.below(3)]);
        let built = timeout(patience, builder.build()).await;
        let consumer = match built {
            Ok(Ok(consumer)) => consumer,
            _ if lock(&hub).closing => return,
            _ => {
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if use_up(&hub, queue, consumer, limited, &mut random).await {
            return;
        }
    }
}

/// True: enough.
async fn use_up(
    hub: &Shared,
    queue: &str,
    mut consumer: Consumer,
    limited: bool,
    random: &mut Random,
) -> bool {
    let mut held: Vec<Delivery> = Vec::new();
    let mut last = 0;
    for turn in 0.. {
        let (well, closing) = state(hub);
        if !well && turn > 60 && random.in_percent(5) {
            if random.in_percent(50) {
                consumer.stop();
                drain(hub, &mut consumer, &mut held, random).await;
            }
            break;
        }
        let ms = [1, 30, 800][random.below(3)];
        match timeout(Duration::from_millis(ms), consumer.next()).await {
            Ok(Ok(Some(delivery))) => {
                let number = number_of(&delivery);
                assert!(number > last, "{number} after {last}");
                last = number;
                let mut hub = lock(hub);
                let said = if limited { Said::Overdue } else { Said::InWork };
                assert_eq!(hub.rabbit.said.insert(number, said), None, "handed out twice");
                hub.taken += 1;
                held.push(delivery);
            }
            Ok(Ok(None)) => panic!("it was not stopped"),
            Ok(Err(_)) => break,
            Err(_) if closing || well && lock(hub).rabbit.ready(queue) == 0 => break,
            Err(_) => {}
        }
        while !held.is_empty() && (well || random.in_percent(40)) {
            let delivery = held.swap_remove(random.below(held.len()));
            let all = [Said::Ack, Said::Ack, Said::Requeue, Said::Reject];
            settle(hub, delivery, if well { Said::Ack } else { all[random.below(4)] });
        }
    }
    let (well, closing) = state(hub);
    if random.in_percent(50) {
        drop(consumer);
    }
    for delivery in held {
        settle(hub, delivery, Said::Requeue);
    }
    closing || well && lock(hub).is_empty()
}

/// Takes no more, and finishes some of what it has, on however many connections meanwhile.
async fn drain(
    hub: &Shared,
    consumer: &mut Consumer,
    held: &mut Vec<Delivery>,
    random: &mut Random,
) {
    for _ in 0..random.below(20) {
        let next = timeout(Duration::from_millis(1), consumer.next()).await;
        let next = next.expect("who has stopped has nothing to wait for");
        assert!(!matches!(next, Ok(Some(_))), "{next:?} after it was stopped");
        if !held.is_empty() && random.in_percent(60) {
            let delivery = held.swap_remove(random.below(held.len()));
            let said = [Said::Ack, Said::Requeue, Said::Reject][random.below(3)];
            let in_time = settle(hub, delivery, said);
            lock(hub).drained += u64::from(in_time);
        }
        if state(hub).1 {
            break;
        }
        sleep(Duration::from_millis([1, 30, 800][random.below(3)])).await;
    }
}

/// One of them at least is well.
fn hosts(random: &mut Random) -> Vec<Host> {
    let mut hosts = vec![Host::Well; 1 + random.below(3)];
    let sound = random.below(hosts.len());
    for (place, host) in hosts.iter_mut().enumerate() {
        if place != sound && random.in_percent(50) {
            *host = Host::ill(random);
        }
    }
    hosts
}

/// On a clock that goes when everybody waits.
fn in_its_time<T>(seed: u64, world: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let _turned = by_hand::turn(seed);
        world.await
    })
}

async fn live(seed: u64) -> [u64; 8] {
    let mut random = Random(seed);
    let hosts = hosts(&mut random);
    let hub = Arc::new(Mutex::new(Hub::new(seed, hosts, [0, 2][random.below(2)])));
    let broker = tokio::spawn(broker(hub.clone()));
    let dialled = hub.clone();
    let outgoing_bytes_max = [1, 3_000, 1 << 20][random.below(3)];
    let options = Options { heartbeat_s: 10, outgoing_bytes_max, ..Options::default() };
    let patience = Duration::from_secs([0, 3, 300][random.below(3)]);
    let mut builder = Connection::builder()
        .recovery_pause(Duration::from_millis(20))
        .close_patience(patience)
        .connections_max(1 + random.below(3) as u32);
    let bound = random.below(12);
    if bound < 2 {
        lock(&hub).gives_up = true;
        builder = match bound {
            0 => builder.without_recovery(),
            _ => builder.recovery_rounds(1 + random.below(3) as u32),
        };
    }
    let addresses = (0..lock(&hub).hosts.len()).map(|host| format!("host {host}")).collect();
    let make = Arc::new(move |host| dial(&dialled, host));
    let opening = Connection::with(builder.options(options), Dialer::Made { addresses, make });
    let connection = timeout(BOUND, opening).await.expect("it opens").unwrap();
    if random.in_percent(50) {
        let topology = Topology::new().queue(Queue::durable("q0"));
        let declaring = timeout(BOUND, connection.declare(topology));
        // It may have been let in where it was closed at once.
        let declared = declaring.await.expect("it is declared or not");
        assert!(declared.is_ok() || lock(&hub).dialled > 0, "{declared:?}");
    }
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    for place in 0..3 {
        let queue = QUEUES[random.below(3)];
        let exchange = random.in_percent(20);
        let route = if exchange { Route::exchange("x", queue) } else { Route::queue(queue) };
        let mut publisher = connection.publisher(route);
        if random.in_percent(60) {
            publisher = publisher.window(Window::fixed([1, 3, 20][random.below(3)]));
        } else if random.in_percent(50) {
            publisher = publisher.unordered();
        }
        if random.in_percent(30) {
            publisher = publisher.outcome_within(Duration::from_secs(2 << random.below(5)));
        }
        let Ok(handle) = publisher.build().await else { continue };
        for clone in 0..1 + random.below(2) {
            let name = format!("p{place}.{clone}");
            let of_its_own = lock(&hub).random();
            tasks.push(tokio::spawn(publish(hub.clone(), name, handle.clone(), of_its_own)));
        }
    }
    for _ in 0..2 {
        let of_its_own = lock(&hub).random();
        tasks.push(tokio::spawn(consume(hub.clone(), connection.clone(), of_its_own)));
    }
    let caller = connection.caller();
    for place in 0..2 {
        let of_its_own = lock(&hub).random();
        let name = format!("a{place}");
        tasks.push(tokio::spawn(ask(hub.clone(), name, caller.clone(), of_its_own)));
    }
    lock(&hub).well = false;
    let end = Instant::now() + Duration::from_secs(5 << random.below(4));
    while Instant::now() < end {
        sleep(Duration::from_millis(1 + random.below(2_000) as u64)).await;
        let pool = Arc::downgrade(connection.pool());
        match random.below(4) {
            0 => drop(timeout(Duration::from_millis(500), Pool::grow(&pool)).await),
            1 => connection.pool().shrink(),
            _ => {}
        }
    }
    // Each socket gets its patience for outcomes, then the broker 5 s to agree.
    let closing_bound = patience + Duration::from_millis(5_100);
    if random.in_percent(30) {
        lock(&hub).closing = true;
        let closing = timeout(closing_bound, connection.clone().close());
        let rest = if random.in_percent(70) {
            drop(closing.await.expect("it closes, whatever the broker does"));
            Duration::ZERO
        } else {
            // Dropped after its first moment, or before.
            let _ = timeout(Duration::from_millis(random.below(20) as u64), closing).await;
            closing_bound
        };
        // Whoever waits is told, though nothing is well; and then does what takes some seconds at most.
        for task in tasks.drain(..) {
            timeout(rest + Duration::from_secs(10), task)
                .await
                .unwrap_or_else(|_| panic!("somebody was not told: {}", lock(&hub).tell()))
                .expect("no task panics");
        }
    }
    lock(&hub).heal();
    for task in tasks {
        timeout(BOUND, task)
            .await
            .unwrap_or_else(|_| panic!("somebody waits for ever: {}", lock(&hub).tell()))
            .expect("no task panics");
    }
    lock(&hub).closing = true;
    drop(timeout(closing_bound, connection.close()).await.expect("it closes"));
    broker.abort();
    let _ = broker.await;
    let hub = lock(&hub);
    for (name, outcome) in &hub.told {
        let arrivals = hub.rabbit.arrivals.get(name).map_or(0, Vec::len);
        match outcome {
            Ok(confirmed) if !confirmed.republished => assert_eq!(arrivals, 1, "{name}"),
            Err(Unconfirmed::Withdrawn) => assert_eq!(arrivals, 0, "{name}"),
            _ => {}
        }
    }
    for name in &hub.unsent {
        assert!(!hub.rabbit.arrivals.contains_key(name), "{name} was not sent");
    }
    for name in &hub.unasked {
        assert!(!hub.rabbit.requests.contains(name), "{name} was not sent");
    }
    let republished = |told: &&(String, Result<Confirmed, _>)| {
        told.1.as_ref().is_ok_and(|confirmed: &Confirmed| confirmed.republished)
    };
    let marked = hub.told.iter().filter(republished).count() as u64;
    let (told, unsent) = (hub.told.len() as u64, hub.unsent.len() as u64);
    [told, unsent, marked, hub.taken, hub.replies, hub.dialled, hub.drained, hub.culprits]
}

#[test]
fn whoever_uses_a_connection_hears_the_truth_and_in_time_whatever_the_broker_does() {
    if let Some(seen) = seeds::all_hold(20, 5, |seed| in_its_time(seed, live(seed))) {
        assert!(
            seen[..6].iter().all(|count| *count > 10) && seen[6] > 0 && seen[7] > 0,
            "{seen:?}"
        );
    }
}
