//! Programs whose handlers fail, and put off what they failed at on the wait ladder, at a broker as ill as any: rungs are in the way,
//! deleted, or not for us to make, connections are cut and programs die. In the end each message was handled, and as often as may be.

use std::collections::{BTreeMap, BTreeSet};

use forebay_wire::{ArrayBuf, RawProperties, TableBuf, Value};
use tokio::task::JoinSet;

use super::super::rabbit::name_of;
use super::*;
use crate::message::since_1970_us;
use crate::{Again, ChannelFault, NotPutOff, OpenError, Rung, WaitLadder};

/// For a connection: all hosts may be tried before one lets in, and each for 10 s twice.
const PATIENCE: Duration = Duration::from_secs(70);

/// What a program knows of what it put off.
struct PutOff {
    again: Again,
    asked_at_ms: u64,
    queue: &'static str,
    /// Its message-id, and whether it has a header of its own.
    id: Option<String>,
    mine: bool,
}

/// What programs saw and did.
#[derive(Default)]
struct Story {
    /// By the delivery.
    put_off: BTreeMap<u64, PutOff>,
    /// How often each message was handled, and how often that may be once too many.
    handled: BTreeMap<String, u64>,
    doubts: BTreeMap<String, u64>,
    /// Nothing is published any more.
    last: bool,
    /// Programs are told that a queue of a rung's name is one.
    made_by_others: bool,
    /// How often something was put off, and how often not: not declared, returned, and unknown.
    waits: u64,
    refused: u64,
    returned: u64,
    unknown: u64,
    taken_away: u64,
    lives: u64,
    /// What came back as there was no such rung: to which life of which program, which rung, and how often that had been deleted.
    missed: BTreeSet<(u64, String, u64)>,
}

/// A program, or what its handlers know of it.
#[derive(Clone)]
struct Program {
    hub: Shared,
    story: Arc<Mutex<Story>>,
    queue: &'static str,
    life: u64,
}

fn now_ms() -> u64 {
    since_1970_us() / 1_000
}

fn mine(raw: RawProperties<'_>) -> bool {
    raw.headers().is_some_and(|headers| headers.get("mine").is_some())
}

impl Program {
    fn story(&self) -> std::sync::MutexGuard<'_, Story> {
        lock(&self.story)
    }

    /// What is said of attempts is what was said when it was put off, though others did.
    fn check(&self, delivery: &Delivery) {
        let text = String::from_utf8_lossy(delivery.body()).into_owned();
        let before = text.rsplit('#').nth(1).expect("it has a number").parse::<u64>();
        let Ok(before) = before else {
            assert_eq!((delivery.attempts(), delivery.due_ms()), (0, None), "{text}");
            return;
        };
        let story = self.story();
        let PutOff { again, .. } = &story.put_off[&before];
        let said = (delivery.attempts(), delivery.due_ms());
        assert_eq!(said, (again.attempts, Some(again.due_ms)), "{text}");
    }

    /// False: it may come again.
    fn done(&self, delivery: Delivery) -> bool {
        let number = number_of(&delivery);
        let mut hub = lock(&self.hub);
        let in_time = delivery.ack().in_time().is_ok();
        if in_time {
            hub.rabbit.said.insert(number, Said::Ack);
        }
        in_time && !hub.rabbit.rungs.came_back.contains(&number)
    }

    /// Tries until it succeeds, or the message waits in the broker.
    async fn handle(self, ladder: WaitLadder, delivery: Delivery, mut random: Random) {
        self.check(&delivery);
        let number = number_of(&delivery);
        let name = name_of(delivery.body());
        let mut attempts = delivery.attempts();
        let mut due_ms = delivery.due_ms().unwrap_or(0);
        let mut asked = false;
        loop {
            if due_ms > now_ms() && !asked {
                let again = Again { attempts, due_ms, marks: None };
                if let Some(leaving) = ladder.put_off(&delivery, &again) {
                    asked = true;
                    let put_off = PutOff {
                        again,
                        asked_at_ms: now_ms(),
                        queue: self.queue,
                        id: delivery.properties().message_id.map(|id| id.to_string()),
                        mine: mine(delivery.raw_properties()),
                    };
                    self.story().put_off.insert(number, put_off);
                    let rung = Rung::within_ms(due_ms - now_ms()).expect("there is one");
                    let copy = format!("{name}~{number}");
                    if self.left(&copy, rung.name(self.queue), leaving).await {
                        self.done(delivery);
                        return;
                    }
                } else {
                    let rest_ms = due_ms - now_ms();
                    let shortest = ladder.shortest().max(Duration::from_millis(1_008));
                    assert!(Duration::from_millis(rest_ms) < shortest, "{rest_ms}");
                }
            }
            sleep(Duration::from_millis(due_ms.saturating_sub(now_ms()))).await;
            assert!(due_ms <= now_ms(), "{name} is tried early");
            if random.in_percent(35) || lock(&self.hub).well {
                break;
            }
            attempts += 1;
            let pause_ms = [500, 3_000, 12_000, 40_000][random.below(4)];
            due_ms = now_ms() + pause_ms + random.below(5_000) as u64;
        }
        *self.story().handled.entry(name.clone()).or_default() += 1;
        if !self.done(delivery) {
            *self.story().doubts.entry(name).or_default() += 1;
        }
    }

    /// Whether a message waits in the broker now.
    async fn left(
        &self,
        copy: &str,
        rung: String,
        leaving: impl Future<Output = Result<(), NotPutOff>>,
    ) -> bool {
        let times = || lock(&self.hub).rabbit.rungs.taken_away.get(&rung).copied().unwrap_or(0);
        let missing = (self.life, rung.clone(), times());
        let known = self.story().missed.contains(&missing);
        let outcome =
            timeout(Duration::from_secs(300), leaving).await.expect("it has its patience");
        let times = times();
        let hub = lock(&self.hub);
        let arrivals = hub.rabbit.arrivals.get(copy).map_or(&[][..], Vec::as_slice);
        let answered = |fate: Fate| arrivals.iter().any(|it| it.answered && it.fate == fate);
        let mut story = self.story();
        match &outcome {
            Ok(()) => {
                assert!(answered(Fate::Taken), "{copy}: {arrivals:?}");
                story.waits += 1;
            }
            Err(NotPutOff::Unconfirmed(Unconfirmed::Returned(_))) => {
                assert!(answered(Fate::Returned), "{copy}: {arrivals:?}");
                assert!(!known || missing.2 < times, "{rung} was missed, and is not made again");
                story.missed.insert((self.life, rung, times));
                story.returned += 1;
            }
            Err(NotPutOff::Unconfirmed(Unconfirmed::Unknown(_))) => {
                let name = copy.split('~').next().unwrap();
                *story.doubts.entry(name.to_owned()).or_default() += 1;
                story.unknown += 1;
            }
            Err(NotPutOff::Unconfirmed(Unconfirmed::Rejected)) => {
                assert!(answered(Fate::Rejected), "{copy}: {arrivals:?}");
            }
            Err(NotPutOff::OfUser { .. }) => panic!("it is of nobody"),
            Err(why) => {
                assert!(arrivals.is_empty(), "{copy}: {why:?}, and {arrivals:?}");
                let refused = |fault: &ChannelFault| matches!(fault, ChannelFault::Refused(_));
                let counts = matches!(why, NotPutOff::NotDeclared(error) if refused(&error.fault));
                story.refused += u64::from(counts);
            }
        }
        outcome.is_ok()
    }

    /// Lives, dies and begins again, until everything is done.
    async fn run(mut self, mut random: Random) {
        loop {
            let opening = open(&self.hub, &mut random);
            let Ok(Ok(connection)) = timeout(PATIENCE, opening).await else {
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            self.life = {
                let mut story = self.story();
                story.lives += 1;
                story.lives
            };
            let mut handlers = JoinSet::new();
            let mut taken = Vec::new();
            let enough = self.live(&connection, &mut handlers, &mut taken, &mut random).await;
            if random.in_percent(40) {
                // Its handlers go on meanwhile.
                let patience = Duration::from_secs(random.below(9) as u64);
                let _ = timeout(patience, connection.clone().close()).await;
            }
            // Whatever its handlers have now goes back to the queue.
            for number in taken {
                let mut hub = lock(&self.hub);
                let said = hub.rabbit.said.get_mut(&number).expect("it was taken");
                if *said == Said::InWork {
                    *said = Said::Requeue;
                }
            }
            handlers.abort_all();
            while let Some(ended) = handlers.join_next().await {
                assert!(ended.is_ok() || ended.unwrap_err().is_cancelled(), "no handler panics");
            }
            if enough {
                return;
            }
        }
    }

    /// True: enough.
    async fn live(
        &self,
        connection: &Connection,
        handlers: &mut JoinSet<()>,
        taken: &mut Vec<u64>,
        random: &mut Random,
    ) -> bool {
        let from = Duration::from_secs([1, 5][random.below(2)]);
        let mut ladder = WaitLadder::new(connection, self.queue).from_pause(from);
        if self.story().made_by_others {
            ladder = ladder.made_by_others();
        }
        let end = Instant::now() + Duration::from_secs([3, 20, 90, 1_000][random.below(4)]);
        let mut consumer = None;
        loop {
            if !lock(&self.hub).well && Instant::now() > end {
                return false;
            }
            while let Some(ended) = handlers.try_join_next() {
                ended.expect("no handler panics");
            }
            let Some(consuming) = &mut consumer else {
                let building = connection.consumer(self.queue).fixed_credit(30).build();
                match timeout(Duration::from_secs(5), building).await {
                    Ok(Ok(built)) => consumer = Some(built),
                    _ => sleep(Duration::from_millis(100)).await,
                }
                continue;
            };
            match timeout(Duration::from_millis(500), consuming.next()).await {
                Ok(Ok(Some(delivery))) => {
                    let number = number_of(&delivery);
                    let before = lock(&self.hub).rabbit.said.insert(number, Said::InWork);
                    assert_eq!(before, None, "handed out twice");
                    taken.push(number);
                    let of_its_own = Random(random.next());
                    handlers.spawn(self.clone().handle(ladder.clone(), delivery, of_its_own));
                }
                Ok(Ok(None)) => panic!("it was not stopped"),
                Ok(Err(_)) => consumer = None,
                Err(_) => {
                    let hub = lock(&self.hub);
                    let waits = hub.rabbit.rungs().iter().any(|rung| hub.rabbit.ready(rung) > 0);
                    if handlers.is_empty() && !waits && hub.is_empty() && self.story().last {
                        return true;
                    }
                }
            }
        }
    }
}

async fn open(hub: &Shared, random: &mut Random) -> Result<Connection, OpenError> {
    let dialled = hub.clone();
    let addresses = (0..lock(hub).hosts.len()).map(|host| format!("host {host}")).collect();
    let make = Arc::new(move |host| dial(&dialled, host));
    let outgoing_bytes_max = [1, 3_000, 1 << 20][random.below(3)];
    let options = Options { heartbeat_s: 10, outgoing_bytes_max, ..Options::default() };
    let builder = Connection::builder()
        .recovery_pause(Duration::from_millis(20))
        .close_patience(Duration::from_secs(3))
        .connections_max(1 + random.below(3) as u32);
    Connection::with(builder.options(options), Dialer::Made { addresses, make }).await
}

/// Publishes until all is well.
async fn publish(hub: Shared, name: String, handle: Handle, mut random: Random) {
    for number in 1..60 {
        if lock(&hub).well {
            break;
        }
        let message_name = format!("{name}-{number}");
        let text = format!("{message_name}|{}", "-".repeat([0, 300, 5_000][random.below(3)]));
        let mut message = Message::new(text.into_bytes());
        if random.in_percent(30) {
            message = message.message_id(format!("own {message_name}"));
        }
        if random.in_percent(30) {
            message = message.header("mine", Value::I64(7)).expires_after_ms(1 << 40);
        }
        if random.in_percent(30) {
            // It was put back by hand.
            let deaths = QUEUES.iter().fold(ArrayBuf::new(), |deaths, queue| {
                let death = TableBuf::new().with("queue", Value::LongStr(queue.as_bytes()));
                deaths.with(Value::Table(death.as_table()))
            });
            message = message.header("x-death", Value::Array(deaths.as_array()));
            message = message.header("CC", Value::Array(ArrayBuf::new().as_array()));
        }
        let outcome = handle.publish(message).await.expect("nobody closed it");
        if random.in_percent(50) {
            let told = outcome.await;
            lock(&hub).hear(message_name, told);
        }
        sleep(Duration::from_millis([1, 100, 4_000][random.below(3)])).await;
    }
    handle.idle().await;
}

/// What else others do to rungs.
async fn meddle(program: Program, mut random: Random) {
    let may_deny = random.in_percent(30);
    while !lock(&program.hub).well {
        sleep(Duration::from_millis([100, 1_000, 3_000][random.below(3)])).await;
        let mut hub = lock(&program.hub);
        let rungs = hub.rabbit.rungs();
        if !rungs.is_empty() && random.in_percent(50) {
            let rung = &rungs[random.below(rungs.len())];
            if hub.rabbit.ready(rung) == 0 || random.in_percent(5) {
                hub.rabbit.take_away(rung);
                program.story().taken_away += 1;
            }
        }
        hub.rabbit.rungs.denies = may_deny && random.in_percent(40);
    }
    lock(&program.hub).rabbit.rungs.denies = false;
}

async fn live(seed: u64) -> [u64; 8] {
    let mut random = Random(seed);
    let hub = Arc::new(Mutex::new(Hub::new(seed, hosts(&mut random), 0)));
    let story = Arc::new(Mutex::new(Story::default()));
    let program = |queue| Program { hub: hub.clone(), story: story.clone(), queue, life: 0 };
    {
        let mut hub = lock(&hub);
        hub.rabbit.rungs.is_old = random.in_percent(25);
        if random.in_percent(30) {
            hub.rabbit.stand_in_the_way("q1.retry.8s");
        } else {
            lock(&story).made_by_others = random.in_percent(50);
        }
        if random.in_percent(60) {
            hub.faults &= !(1 << 4); // no queue is deleted
        }
    }
    let broker = tokio::spawn(broker(hub.clone()));
    let connection = timeout(BOUND, open(&hub, &mut random)).await.expect("it opens").unwrap();
    let mut publishing = JoinSet::new();
    for (place, queue) in QUEUES.into_iter().enumerate() {
        let handle = connection.publisher(Route::queue(queue)).build().await.expect("it is there");
        let of_its_own = Random(random.next());
        publishing.spawn(publish(hub.clone(), format!("p{place}"), handle, of_its_own));
    }
    lock(&hub).well = false;
    let mut programs = JoinSet::new();
    for queue in ["q0", "q0", "q1", "q2"] {
        programs.spawn(program(queue).run(Random(random.next())));
    }
    programs.spawn(meddle(program("q0"), Random(random.next())));
    sleep(Duration::from_secs(20 << random.below(4))).await;
    lock(&hub).heal();
    let last = async {
        while let Some(ended) = publishing.join_next().await {
            ended.expect("no publisher panics");
        }
        program("q0").story().last = true;
        while let Some(ended) = programs.join_next().await {
            ended.expect("no program panics");
        }
    };
    let ended = timeout(BOUND, last).await;
    ended.unwrap_or_else(|_| panic!("{}", tell(&hub, &program("q0"))));
    broker.abort();
    let _ = broker.await;
    let (hub, program) = (lock(&hub), program("q0"));
    let story = program.story();
    check(&hub.rabbit, &story);
    let Story { waits, refused, returned, unknown, taken_away, lives, .. } = *story;
    [
        hub.rabbit.rungs.expired,
        waits,
        refused,
        returned,
        unknown,
        taken_away,
        lives,
        story.handled.len() as u64,
    ]
}

fn tell(hub: &Shared, program: &Program) -> String {
    let (hub, story) = (lock(hub), program.story());
    let waits = |rung: String| (hub.rabbit.ready(&rung), rung);
    let rungs: Vec<_> = hub.rabbit.rungs().into_iter().map(waits).collect();
    format!("something waits for ever, last {}: {}, {rungs:?}", story.last, hub.tell())
}

fn check(rabbit: &Rabbit, story: &Story) {
    for (name, arrivals) in rabbit.arrivals.iter().filter(|(name, _)| !name.contains('~')) {
        let handled = story.handled.get(name).copied().unwrap_or(0);
        let there = arrivals.iter().filter(|it| it.fate == Fate::Taken).count();
        let gone = rabbit.rungs.gone.contains(name);
        assert!(handled > 0 || there == 0 || gone, "{name} is lost");
        let doubts = |of: &BTreeMap<String, u64>| of.get(name).copied().unwrap_or(0);
        let doubts = doubts(&story.doubts) + doubts(&rabbit.rungs.doubts);
        assert!(handled <= 1 + doubts, "{name} was handled {handled} times, for {doubts} reasons");
    }
    for copy in &rabbit.rungs.copies {
        let PutOff { again, asked_at_ms, queue, id, mine: had_mine } =
            &story.put_off[&copy.delivery];
        let raw = RawProperties::trusted(&copy.properties);
        assert_eq!(mine(raw), *had_mine);
        assert_eq!(raw.parse().message_id.map(|it| it.to_string()), *id, "of {}", copy.delivery);
        let Some((stays_ms, to)) = &copy.way else { continue };
        assert_eq!(to, queue);
        let rest_ms = again.due_ms - asked_at_ms;
        let longest_ms = u64::from(Rung::LONGEST.seconds()) * 1_000;
        assert!(*stays_ms <= rest_ms, "for {stays_ms} ms, and it is due in {rest_ms} ms");
        let is_longest = 2 * stays_ms * 1_008 / 1_000 > rest_ms || *stays_ms == longest_ms;
        assert!(is_longest, "for {stays_ms} ms, and it is due in {rest_ms} ms");
    }
}

#[test]
fn what_is_put_off_is_handled_in_time_and_by_one_whatever_the_broker_does() {
    if let Some(seen) = seeds::all_hold(40, 10, |seed| in_its_time(seed, live(seed))) {
        assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
    }
}
