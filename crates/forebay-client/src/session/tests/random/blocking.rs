//! The blocking client against the same broker, in one thread: whenever it reads, the broker does something, or harm is done.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::*;
use crate::blocking::{
    Channel, ChannelFault, Connection, ConsumeError, ConsumeOptions, Consumer, Lost,
    Message as Received, Publication,
};
use crate::machine::Settled;

const QUEUES: [&str; 3] = ["q0", "q1", "q2"];
/// Reads in a row that show the client nothing, before something is wrong.
const READS_MAX: u32 = 3_000;

/// The broker, and the connection's other end.
struct Hub {
    random: Random,
    rabbit: Rabbit,
    conn: Conn,
    /// The stream has ended for the client.
    cut: bool,
    well: bool,
    /// What happens in this world: a bit for each.
    faults: u64,
    silent: u32,
}

#[derive(Clone)]
struct End(Arc<Mutex<Hub>>);

impl End {
    fn hub(&self) -> MutexGuard<'_, Hub> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Hub {
    fn turn(&mut self) {
        let Hub { random, rabbit, conn, .. } = self;
        let frames = if self.well { 1_000 } else { random.below(12) };
        for _ in 0..frames {
            if !rabbit.work(conn) {
                break;
            }
        }
        for _ in 0..if self.well { 1_000 } else { random.below(5) } {
            if !(rabbit.confirm(conn, random) | rabbit.deliver(conn, random)) {
                break;
            }
        }
        if !self.well && self.random.in_percent(3) {
            self.spoil();
        }
    }

    fn spoil(&mut self) {
        let what = self.random.below(8);
        if self.faults >> what & 1 == 0 {
            return;
        }
        let Hub { random, rabbit, conn, .. } = self;
        match what {
            0 => self.cut = random.in_percent(20),
            1 | 2 => {
                let numbers = conn.channel_numbers();
                if !numbers.is_empty() && conn.open {
                    let number = numbers[random.below(numbers.len())];
                    rabbit.close_channel(conn, number, 406, SPOILT);
                }
            }
            3 if random.in_percent(20) => rabbit.close(conn, 320),
            4 => rabbit.delete(QUEUES[random.below(3)], Some(conn)),
            5 => rabbit.is_full = random.in_percent(40),
            _ => QUEUES.iter().for_each(|queue| rabbit.declare(queue)),
        }
    }
}

impl Read for End {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut hub = self.hub();
        if !hub.well && hub.random.in_percent(10) {
            return Err(ErrorKind::WouldBlock.into());
        }
        hub.turn();
        if hub.cut {
            let reset = hub.random.in_percent(50);
            return if reset { Err(ErrorKind::ConnectionReset.into()) } else { Ok(0) };
        }
        if hub.conn.output.is_empty() {
            hub.silent += 1;
            assert!(hub.silent < READS_MAX, "somebody waits for ever");
            return if hub.conn.over { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        hub.silent = 0;
        let most = if hub.well { into.len() } else { 1 + hub.random.below(5_000) };
        let count = hub.conn.output.len().min(into.len()).min(most);
        into[..count].copy_from_slice(&hub.conn.output[..count]);
        hub.conn.output.drain(..count);
        Ok(count)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut hub = self.hub();
        if !hub.well && hub.random.in_percent(10) {
            return Err(ErrorKind::WouldBlock.into());
        }
        if hub.cut || hub.conn.over {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let count = if hub.well { bytes.len() } else { 1 + hub.random.below(bytes.len()) };
        hub.conn.input.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A channel, and what its user knows of it.
struct Used {
    name: String,
    channel: Channel,
    published: u32,
    open: BTreeMap<u64, String>,
    /// With their queues, and whether their user has cancelled them.
    consumers: Vec<(Consumer, &'static str, bool)>,
    /// Tags that the broker may know yet.
    tags: BTreeSet<&'static str>,
    held: Vec<(Received, u64)>,
}

#[derive(Default)]
struct Seen {
    settled: u64,
    returned: u64,
    taken: u64,
    /// Of a consumer that was cancelled.
    left: u64,
    refused: u64,
    lost: u64,
    /// Deliveries that were acknowledged on a connection which then was closed as it should be.
    done: u64,
}

struct User {
    random: Random,
    hub: End,
    connection: Connection,
    channels: Vec<Used>,
    made: usize,
    /// Names of messages that were acknowledged on this connection, and on those that were closed well.
    acked: BTreeSet<String>,
    done: BTreeSet<String>,
    /// Channels that the broker had closed when the connection began.
    closed_before: u64,
    seen: Seen,
}

fn connect(hub: &End) -> Option<Connection> {
    {
        let mut hub = hub.hub();
        let channel_max = if hub.random.in_percent(30) { 2 } else { 2047 };
        (hub.conn, hub.cut) = (Conn::new(0, channel_max, 0), false);
    }
    Connection::over(hub.clone(), hub.clone(), Options::default()).ok()
}

fn number_of(message: &Received) -> (String, u64) {
    let body = String::from_utf8_lossy(message.body()).into_owned();
    let (name, rest) = body.split_once('|').unwrap();
    (name.to_owned(), rest.rsplit('#').next().unwrap().parse().unwrap())
}

impl User {
    /// Another connection, as the one there was is of no more use.
    fn begin_anew(&mut self) {
        self.channels.clear();
        self.acked.clear();
        self.seen.lost += 1;
        loop {
            {
                let hub = &mut *self.hub.hub();
                hub.rabbit.end(&mut hub.conn);
                self.closed_before = hub.rabbit.channels_closed;
            }
            if let Some(connection) = connect(&self.hub) {
                self.connection = connection;
                return;
            }
        }
    }

    /// What a fault leaves of the channel at that place.
    fn failed(&mut self, at: usize, fault: &ChannelFault) {
        match fault {
            ChannelFault::Lost(_) => self.begin_anew(),
            ChannelFault::Refused(refusal) => {
                assert!(refusal.text.contains(SPOILT) || refusal.code == 404, "{refusal}");
                self.seen.refused += 1;
                self.channels.swap_remove(at);
            }
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self) {
        match self.connection.channel() {
            Ok(mut channel) => {
                self.made += 1;
                let selected = channel.confirm_select([1, 5, 100][self.random.below(3)]);
                self.channels.push(Used {
                    name: format!("p{}", self.made),
                    channel,
                    published: 0,
                    open: BTreeMap::new(),
                    consumers: Vec::new(),
                    tags: BTreeSet::new(),
                    held: Vec::new(),
                });
                if let Err(fault) = selected {
                    self.failed(self.channels.len() - 1, &fault);
                }
            }
            Err(ChannelFault::NotUsable(crate::machine::ChannelError::AllInUse { .. })) => {}
            Err(ChannelFault::Refused(_)) => self.seen.refused += 1,
            Err(ChannelFault::Lost(_)) => self.begin_anew(),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn step(&mut self) {
        if self.channels.is_empty() || self.random.in_percent(3) && self.channels.len() < 4 {
            return self.open();
        }
        let at = self.random.below(self.channels.len());
        let used = &mut self.channels[at];
        let done = match self.random.below(100) {
            0..30 => {
                used.published += 1;
                let name = format!("{}-{}", used.name, used.published);
                let size = [0, 300, 9_000][self.random.below(3)];
                let body = format!("{name}|{}", "-".repeat(size));
                let publication = Publication {
                    routing_key: ["q0", "q1", "q2", "nowhere"][self.random.below(4)],
                    mandatory: self.random.in_percent(60),
                    body: body.as_bytes(),
                    ..Publication::default()
                };
                used.channel.publish(&publication).map(|sequence| {
                    assert!(used.open.insert(sequence, name).is_none(), "{sequence} twice");
                })
            }
            30..40 => used.channel.pump(Duration::ZERO),
            40..45 => used.channel.flush(),
            45..50 => used.channel.wait_settled_for(Duration::from_micros(100)).map(drop),
            50..60 => self.consume(at),
            60..80 => self.take(at),
            80..90 => self.settle(at),
            90..93 => self.cancel(at),
            93..95 => {
                if !used.consumers.is_empty() {
                    used.consumers.swap_remove(self.random.below(used.consumers.len()));
                }
                Ok(())
            }
            95 => {
                // What was held goes back with it.
                let used = self.channels.swap_remove(at);
                let closed = if self.random.in_percent(50) { used.channel.close() } else { Ok(()) };
                match closed {
                    Err(ChannelFault::Lost(_)) => self.begin_anew(),
                    Err(ChannelFault::Refused(_)) | Ok(()) => {}
                    Err(other) => panic!("{other:?}"),
                }
                return;
            }
            96 if self.random.in_percent(30) => return self.close(),
            _ => Ok(()),
        };
        match done {
            Err(fault) => self.failed(at, &fault),
            Ok(()) => self.hear(at),
        }
    }

    fn consume(&mut self, at: usize) -> Result<(), ChannelFault> {
        let used = &mut self.channels[at];
        let tag = ["a", "b", "c"][self.random.below(3)];
        if used.tags.contains(tag) {
            return Ok(());
        }
        let queue = QUEUES[self.random.below(3)];
        let prefetch = [1, 3, 30][self.random.below(3)];
        let options = ConsumeOptions { prefetch, tag: tag.to_owned(), ..ConsumeOptions::default() };
        match used.channel.consume(queue, options) {
            Ok(consumer) => {
                assert_eq!(consumer.tag(), tag);
                used.tags.insert(tag);
                used.consumers.push((consumer, queue, false));
                Ok(())
            }
            Err(ConsumeError::Channel(fault)) => Err(fault),
            Err(ConsumeError::Cancelled) => panic!("it has not begun"),
        }
    }

    fn take(&mut self, at: usize) -> Result<(), ChannelFault> {
        let used = &mut self.channels[at];
        if used.consumers.is_empty() {
            return Ok(());
        }
        let which = self.random.below(used.consumers.len());
        let (consumer, queue, _) = &mut used.consumers[which];
        match consumer.next_message(Some(Duration::ZERO)) {
            Ok(None) => Ok(()),
            Ok(Some(message)) => {
                assert_eq!(message.routing_key(), queue.as_bytes(), "it is another consumer's");
                let (_, number) = number_of(&message);
                let said = self.hub.hub().rabbit.said.insert(number, Said::InWork);
                assert_eq!(said, None, "handed out twice");
                self.seen.taken += 1;
                used.held.push((message, number));
                Ok(())
            }
            Err(ConsumeError::Cancelled) => {
                let (mut consumer, _, cancelled) = used.consumers.swap_remove(which);
                // Another may have the tag of one that was cancelled.
                used.tags.retain(|tag| cancelled || *tag != consumer.tag());
                assert!(consumer.take_ready().is_none(), "all comes before that is told");
                Ok(())
            }
            Err(ConsumeError::Channel(fault)) => Err(fault),
        }
    }

    fn cancel(&mut self, at: usize) -> Result<(), ChannelFault> {
        let used = &mut self.channels[at];
        if used.consumers.is_empty() {
            return Ok(());
        }
        let which = self.random.below(used.consumers.len());
        let (consumer, _, cancelled) = &mut used.consumers[which];
        consumer.cancel()?;
        used.tags.retain(|tag| *cancelled || *tag != consumer.tag());
        *cancelled = true;
        self.seen.left += u64::from(consumer.has_ready());
        Ok(())
    }

    fn settle(&mut self, at: usize) -> Result<(), ChannelFault> {
        let used = &mut self.channels[at];
        if used.held.is_empty() {
            return Ok(());
        }
        let (message, number) = used.held.swap_remove(self.random.below(used.held.len()));
        let said = [Said::Ack, Said::Ack, Said::Requeue, Said::Reject][self.random.below(4)];
        let said = if self.hub.hub().well { Said::Ack } else { said };
        self.hub.hub().rabbit.said.insert(number, said);
        match said {
            Said::Ack => {
                used.channel.ack(message.delivery_tag(), false)?;
                self.acked.insert(number_of(&message).0);
                Ok(())
            }
            said => used.channel.nack(message.delivery_tag(), false, said == Said::Requeue),
        }
    }

    /// The outcomes that have come to a channel.
    fn hear(&mut self, at: usize) {
        let Some(used) = self.channels.get_mut(at) else { return };
        let hub = self.hub.hub();
        for Settled { first, last, acked } in used.channel.take_settled() {
            for sequence in first..=last {
                let name = used.open.remove(&sequence).expect("it is open");
                let arrivals = &hub.rabbit.arrivals[&name];
                let [arrival] = &arrivals[..] else { panic!("{name} arrived {arrivals:?}") };
                assert!(arrival.answered && acked == (arrival.fate != Fate::Rejected), "{name}");
                self.seen.settled += 1;
            }
        }
        for returned in used.channel.take_returns() {
            let body = String::from_utf8_lossy(returned.message.body()).into_owned();
            let name = body.split('|').next().unwrap();
            assert_eq!(hub.rabbit.arrivals[name][0].fate, Fate::Returned, "{name}");
            self.seen.returned += 1;
        }
    }

    fn close(&mut self) {
        let closed = self.connection.clone().close();
        match closed {
            // With a channel that the broker closed its acknowledgements may have been too late.
            Ok(()) if self.hub.hub().rabbit.channels_closed == self.closed_before => {
                self.seen.done += self.acked.len() as u64;
                self.done.append(&mut self.acked);
            }
            Ok(()) => {}
            Err(Lost::ClosedByUs) => panic!("it is closed once"),
            Err(_) => {}
        }
        assert!(self.connection.channel().is_err());
        self.begin_anew();
    }

    /// All is well: everything is settled, taken and acknowledged, and none of it comes again.
    fn finish(&mut self) {
        {
            let hub = &mut *self.hub.hub();
            (hub.well, hub.rabbit.is_full) = (true, false);
            QUEUES.iter().for_each(|queue| hub.rabbit.declare(queue));
        }
        let mut at = 0;
        while at < self.channels.len() {
            match self.channels[at].channel.wait_settled() {
                Ok(()) => {
                    self.hear(at);
                    assert!(self.channels[at].open.is_empty(), "settled, and not told");
                    at += 1;
                }
                Err(fault) => self.failed(at, &fault),
            }
        }
        self.channels.clear();
        while self.channels.is_empty() {
            self.open();
        }
        for queue in QUEUES {
            let options = ConsumeOptions { tag: queue.into(), ..ConsumeOptions::default() };
            let mut consumer = self.channels[0].channel.consume(queue, options).unwrap();
            while self.is_more_in(queue) {
                let next = consumer.next_message(Some(Duration::ZERO)).unwrap();
                let Some(message) = next else { continue };
                let (name, number) = number_of(&message);
                assert!(!self.done.contains(&name), "{name} was acknowledged in time");
                self.hub.hub().rabbit.said.insert(number, Said::Ack);
                consumer.ack(&message, false).unwrap();
            }
            consumer.cancel().unwrap();
        }
        self.connection.clone().close().unwrap();
        assert!(!QUEUES.into_iter().any(|queue| self.is_more_in(queue)));
    }

    /// Whether the broker has messages of it, or anybody holds one.
    fn is_more_in(&self, queue: &str) -> bool {
        let hub = self.hub.hub();
        hub.rabbit.ready(queue) + Rabbit::unacked(&hub.conn) > 0
    }
}

fn live(seed: u64, steps: u64) -> [u64; 7] {
    let hub = End(Arc::new(Mutex::new(Hub {
        random: Random(seed ^ 1),
        rabbit: Rabbit::new(),
        conn: Conn::new(0, 2047, 0),
        cut: false,
        well: true,
        faults: Random(!seed).next() | Random(seed ^ 7).next(),
        silent: 0,
    })));
    QUEUES.iter().for_each(|queue| hub.hub().rabbit.declare(queue));
    let connection = connect(&hub).expect("all is well");
    hub.hub().well = false;
    let mut user = User {
        random: Random(seed),
        hub,
        connection,
        channels: Vec::new(),
        made: 0,
        acked: BTreeSet::new(),
        done: BTreeSet::new(),
        closed_before: 0,
        seen: Seen::default(),
    };
    for _ in 0..steps {
        user.step();
    }
    user.finish();
    let Seen { settled, returned, taken, left, refused, lost, done } = user.seen;
    [settled, returned, taken, left, refused, lost, done]
}

#[test]
fn who_blocks_hears_the_truth_and_gets_each_delivery_once_whatever_the_broker_does() {
    let steps = seeds::steps();
    if let Some(seen) = seeds::all_hold(40, 10, |seed| live(seed, steps)) {
        assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
    }
}
