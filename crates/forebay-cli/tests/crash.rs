//! kill -9 under load, again and again: nothing confirmed may be missing, nothing may be invented.
//!
//! ```text
//!   start ─► check every queue against the model, ack most of it ─► load ─► SIGKILL ─┐
//!     ▲                                                                              │
//!     └───────────── now and then: killed during the start, stopped by SIGTERM ◄─────┘
//! ```
//! A failure prints its seed; `FOREBAY_SEED` repeats sizes, targets and decisions (not the scheduler).

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::blocking::{
    ChannelFault, Connection, ConsumeOptions, DeclareExchange, DeclareQueue,
};
use support::broker::{Broker, Start};
use support::dir::Dir;
use support::load::{confirm_marker, consume, publish};
use support::message::Messages;
use support::model::{Consumed, Found, Model, Published, QUEUES};
use support::random::{Random, seed};
use support::{PATIENCE, scaled};

const PUBLISHERS: u32 = 3;
/// What a check leaves unacknowledged at most: the least of the budgets below lets nobody hold much more.
const LEFT_MAX_BYTES: usize = 2 << 20;
const MEMORY_BUDGETS: [&str; 3] = ["16MiB", "64MiB", "256MiB"];

struct Scene {
    dir: Dir,
    messages: Arc<Messages>,
    random: Random,
    model: Model,
    /// This time everything found is left where it is.
    keep_all: bool,
    /// The last number of each publisher.
    last: [u64; PUBLISHERS as usize],
    /// Durable queues that were declared, or deleted, in earlier rounds.
    declared: Option<String>,
    deleted: Option<String>,
}

#[test]
fn nothing_confirmed_is_lost_by_kill_9() {
    let seed = seed();
    let mut scene = Scene {
        dir: Dir::new("crash"),
        messages: Arc::new(Messages::new(seed)),
        random: Random::new(seed),
        model: Model::default(),
        keep_all: false,
        last: [0; PUBLISHERS as usize],
        declared: None,
        deleted: None,
    };
    let began = Instant::now();
    let (mut kills, mut stops, mut checked, mut confirmed) = (0, 0, 0, 0);
    let mut slowest_start = Duration::ZERO;
    // Under load; rounds that end with SIGTERM come on top.
    let kills_wanted = scaled(55, 8);
    while kills < kills_wanted {
        let round = kills + stops;
        let broker = scene.start();
        slowest_start = slowest_start.max(broker.ready_after);
        if round == 0 {
            scene.declare(&broker);
        }
        checked += scene.check(&broker, round);
        let clean = scene.random.percent(12);
        let (published, consumed) = scene.load(broker, clean);
        if clean {
            stops += 1;
        } else {
            kills += 1;
        }
        for by in &published {
            scene.last[by.publisher as usize] = by.last;
            confirmed += by.confirmed.iter().map(|(first, last)| last - first + 1).sum::<u64>();
        }
        let wrong = scene.model.round(&scene.messages, &published, &consumed);
        none(&wrong, &format!("in round {round}, seed {seed}"));
    }
    let broker = scene.start();
    checked += scene.check(&broker, 0);
    assert_eq!(broker.stop().code, Some(0));
    println!(
        "{kills} kills, {stops} stops, {confirmed} confirmed, {checked} found again, \
         slowest start {} ms, {:.1} s in all",
        slowest_start.as_millis(),
        began.elapsed().as_secs_f64()
    );
    assert!(confirmed > kills_wanted * 10, "there was hardly any load");
}

impl Scene {
    fn start(&mut self) -> Broker {
        // The broker lets nobody hold more unacked than its budget.
        self.keep_all = self.random.percent(15);
        let budget = match self.keep_all {
            true => "512MiB",
            false => MEMORY_BUDGETS[self.random.below(3) as usize],
        };
        let start = Start::on_disk(self.dir.path())
            .flag("--memory-budget", budget)
            .line("log_cap = \"256MiB\"");
        // Recovery must survive being killed, too.
        for _ in 0..self.random.below(3) {
            let starting = start.spawn();
            std::thread::sleep(Duration::from_micros(self.random.below(40_000)));
            starting.kill();
        }
        start.ready()
    }

    fn declare(&mut self, broker: &Broker) {
        let mut channel = broker.connect().channel().unwrap();
        for queue in QUEUES.into_iter().chain(["marker"]) {
            channel.declare_queue(queue, durable()).unwrap();
        }
        let how = DeclareExchange { durable: true, ..DeclareExchange::default() };
        channel.declare_exchange("fan", "fanout", how).unwrap();
        channel.bind_queue("left", "fan", "").unwrap();
        channel.bind_queue("right", "fan", "").unwrap();
    }

    /// Looks at everything after a restart. Returns how many messages were found.
    fn check(&mut self, broker: &Broker, round: u64) -> u64 {
        let connection = broker.connect();
        self.check_topology(&connection, round);
        let mut count = 0;
        for queue in QUEUES {
            count += self.check_queue(&connection, queue);
        }
        let mut channel = connection.channel().unwrap();
        channel.purge_queue("marker").unwrap();
        // For the load to come. Gone after the last round, so this is a new one.
        let passing = channel.declare_queue("passing", DeclareQueue::default()).unwrap();
        assert_eq!(passing.message_count, 0);
        connection.close().unwrap();
        count
    }

    fn check_queue(&mut self, connection: &Connection, queue: &'static str) -> u64 {
        let mut channel = connection.channel().unwrap();
        let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
        let there = channel.declare_queue(queue, passive).expect("a durable queue is there");
        let unbounded = ConsumeOptions { prefetch: 0, ..ConsumeOptions::default() };
        let mut consumer = channel.consume(queue, unbounded).unwrap();
        let (mut found, mut left, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
        let mut left_bytes = 0;
        for number in 0..there.message_count {
            let message = consumer.next_message(Some(PATIENCE)).unwrap();
            let Some(message) = message else {
                panic!(
                    "only {number} of {} messages came from '{queue}', with {left_bytes} bytes unacknowledged",
                    there.message_count
                );
            };
            match self.messages.check(&message, queue) {
                Ok(id) => {
                    found.push(Found { id, redelivered: message.redelivered() });
                    let leave = left_bytes < LEFT_MAX_BYTES && self.random.percent(5);
                    if self.keep_all || leave {
                        left_bytes += message.body().len();
                        left.push(id);
                    } else {
                        consumer.ack(&message, false).unwrap();
                    }
                }
                Err(what) => wrong.push(what),
            }
        }
        consumer.cancel().unwrap();
        assert!(consumer.take_ready().is_none(), "'{queue}' has more than it says");
        assert!(channel.get(queue, true).unwrap().is_none(), "'{queue}' has more than it says");
        wrong.extend(self.model.check(&self.messages, queue, &found));
        none(&wrong, &format!("after a restart, in {} messages of '{queue}'", found.len()));
        // The acks are on disk by then.
        channel.confirm_select(1).unwrap();
        confirm_marker(&mut channel).unwrap();
        self.model.restart(queue, left);
        // What is not acked goes back.
        channel.close().unwrap();
        found.len() as u64
    }

    /// `declare-ok` and `delete-ok` are promises, too; transient queues are gone.
    fn check_topology(&mut self, connection: &Connection, round: u64) {
        let is_there = |name: &str| {
            let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
            match connection.channel().unwrap().declare_queue(name, passive) {
                Ok(_) => true,
                Err(ChannelFault::Refused(refusal)) if refusal.code == 404 => false,
                Err(fault) => panic!("{fault}"),
            }
        };
        assert!(!is_there("passing"), "a transient queue survived");
        if let Some(name) = &self.deleted {
            assert!(!is_there(name), "the deleted queue {name} is back");
        }
        let mut channel = connection.channel().unwrap();
        if let Some(name) = self.declared.take() {
            assert!(is_there(&name), "the declared queue {name} is lost");
            channel.delete_queue(&name).unwrap();
            self.deleted = Some(name);
        }
        let name = format!("round-{round}");
        channel.declare_queue(&name, durable()).unwrap();
        self.declared = Some(name);
    }

    /// Everybody at work for a moment; then the end, which nobody expects.
    fn load(&mut self, broker: Broker, clean: bool) -> (Vec<Published>, Vec<Consumed>) {
        let url = broker.url();
        let length = Duration::from_millis(self.random.between(50, 300));
        let queues = ["orders", "orders", "left"];
        let (messages, last, random) = (&self.messages, self.last, &mut self.random);
        std::thread::scope(|scope| {
            let url = &url;
            let publishers: Vec<_> = (0..PUBLISHERS)
                .map(|publisher| {
                    let (first, window) = (last[publisher as usize] + 1, random.between(1, 200));
                    scope.spawn(move || publish(url, messages, publisher, first, window))
                })
                .collect();
            let consumers: Vec<_> = queues
                .into_iter()
                .map(|queue| {
                    let random = Random::new(random.bits());
                    scope.spawn(move || consume(url, messages, queue, random))
                })
                .collect();
            // How long the load lasts; nothing is waited for.
            std::thread::sleep(length);
            if clean {
                assert_eq!(broker.stop().code, Some(0));
            } else {
                broker.kill();
            }
            (
                publishers.into_iter().map(|thread| thread.join().unwrap()).collect(),
                consumers.into_iter().map(|thread| thread.join().unwrap()).collect(),
            )
        })
    }
}

fn durable() -> DeclareQueue {
    DeclareQueue { durable: true, ..DeclareQueue::default() }
}

/// Fails with the first few of what is wrong.
fn none(wrong: &[String], when: &str) {
    if !wrong.is_empty() {
        let few: Vec<&str> = wrong.iter().take(10).map(String::as_str).collect();
        panic!("{} things are wrong {when}:\n  {}", wrong.len(), few.join("\n  "));
    }
}
