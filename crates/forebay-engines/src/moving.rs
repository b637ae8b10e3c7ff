//! `forebay move` from one broker to another, at least one of which is not ours: nothing changed, and wherever the command
//! is killed nothing lost.
//!
//! A quorum queue counts in the headers how often it delivered a message before (`x-delivery-count`), and orders them anew;
//! this comes along, and is what may differ beside the mark.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay::REPUBLISHED_HEADER;
use forebay::blocking::{Channel, Connection, DeclareQueue, Publication};
use forebay_wire::{ArrayBuf, Properties, RawProperties, ShortStr, Table, TableBuf, Value};

use crate::Tried;
use crate::engine::Failure;

/// Messages that are moved in order and compared.
const WHOLE: u32 = 240;
/// Messages that are moved by commands which are killed.
const MESSAGES: u32 = 2_000;
/// Kills that have to be among them.
const KILLS_MIN: u32 = 3;
/// Much longer than the move takes; who waits so long waits for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a quorum queue delivered a message before.
const COUNT_HEADER: &str = "x-delivery-count";

/// Between which brokers.
#[derive(clap::Args)]
pub(crate) struct Way {
    /// The command that moves
    #[arg(long)]
    forebay: PathBuf,
    /// The broker that has the messages
    #[arg(long)]
    from: String,
    /// The broker that gets them
    #[arg(long)]
    to: String,
    /// They come out of a quorum queue
    #[arg(long)]
    from_quorum: bool,
    /// They go into a quorum queue
    #[arg(long)]
    to_quorum: bool,
    /// What the way is called in the names of the cases
    #[arg(long)]
    name: String,
}

/// Tries the way.
pub(crate) fn run(way: &Way, mut told: impl FnMut(Tried)) {
    for (case, promise, try_it) in [
        (
            "whole",
            "moved messages keep their order, body, properties and headers of every type",
            whole as fn(&Way) -> Result<(), Failure>,
        ),
        (
            "killed",
            "a move that is killed again and again and continued loses nothing; what is there twice is marked",
            killed,
        ),
    ] {
        let outcome = try_it(way).map(|()| Vec::new()).map_err(|failure| failure.to_string());
        let case = format!("move.{}.{case}", way.name);
        told(Tried { case, promise: promise.to_owned(), outcome });
    }
}

fn whole(way: &Way) -> Result<(), Failure> {
    let queue = "moved.whole";
    let (mut from, mut to) = way.open(queue)?;
    let headers = headers_of_all_types();
    let mut expected = Vec::new();
    for number in 0..WHOLE {
        let properties = properties_of_all_kinds(headers.as_table())[number as usize % 5];
        let body = match number % 7 {
            0 => Vec::new(),
            1 => vec![number as u8; 3_000 * (number as usize % 11)],
            _ => number.to_be_bytes().to_vec(),
        };
        from.publish(queue, properties, &body)?;
        expected.push((encoded(&properties), body));
    }
    from.until_ready(queue, WHOLE)?;
    let ended = way.command(queue, &[]).output()?;
    if !ended.status.success() {
        return Err(format!("the move {}: {}", ended.status, text(&ended.stderr)).into());
    }
    let arrived = to.drain(queue)?;
    let order = |messages: &[Stored]| messages.iter().map(|it| it.1.clone()).collect();
    let (sent, got): (Vec<_>, Vec<_>) = (order(&expected), order(&arrived));
    if sent != got {
        return Err(format!("of {WHOLE} bodies in order {} came, or in another", got.len()).into());
    }
    for (number, (expected, arrived)) in expected.iter().zip(&arrived).enumerate() {
        let same = if way.through_quorum() {
            let original = RawProperties::validate(&expected.0)?.parse();
            without_what_a_move_adds(&arrived.0, true)? == (fields(&original, true), false)
        } else {
            expected.0 == arrived.0
        };
        if !same {
            let (expected, arrived) = (said(&expected.0), said(&arrived.0));
            return Err(format!("message {number} was {expected}, and is {arrived}").into());
        }
    }
    way.clean(queue, from, to)
}

fn killed(way: &Way) -> Result<(), Failure> {
    let queue = "moved.killed";
    let (mut from, mut to) = way.open(queue)?;
    let headers = headers_of_all_types();
    let originals = properties_of_all_kinds(headers.as_table());
    for number in 0..MESSAGES {
        from.publish(queue, originals[number as usize % 5], &number.to_be_bytes())?;
    }
    from.until_ready(queue, MESSAGES)?;

    let deadline = Instant::now() + PATIENCE;
    let (mut kills, mut ended) = (0, false);
    while !ended {
        let mut child = way.command(queue, &["--prefetch", "200"]).spawn()?;
        // Until so many have arrived, which is anywhere between its start and its end.
        let goal = to.ready(queue)? + random_below(MESSAGES / 8);
        let (arrived, late) = watch(&mut child, &mut to, queue, goal, deadline)?;
        child.kill()?;
        let output = child.wait_with_output()?;
        if late {
            return Err(format!("after {kills} kills there are {arrived}, and no more come").into());
        }
        match output.status.code() {
            Some(0) => ended = true,
            Some(_) => return Err(format!("it stopped: {}", text(&output.stderr)).into()),
            None => kills += 1,
        }
    }

    let mut missing: BTreeSet<u32> = (0..MESSAGES).collect();
    let mut twice = 0;
    for (properties, body) in to.drain(queue)? {
        let number = u32::from_be_bytes(body[..].try_into()?);
        let original = originals.get(number as usize % 5).expect("five of them");
        let (plain, marked) = without_what_a_move_adds(&properties, way.through_quorum())?;
        if plain != fields(original, way.through_quorum()) {
            let (before, after) = (said(&encoded(original)), said(&properties));
            return Err(format!("message {number} was {before}, and is {after}").into());
        }
        if !missing.remove(&number) {
            twice += 1;
            if !marked {
                return Err(format!("message {number} is there twice, unmarked").into());
            }
        }
    }
    eprintln!("{}: {kills} kills, {twice} duplicates", way.name);
    let left = from.ready(queue)?;
    if !missing.is_empty() || left > 0 {
        return Err(format!("{} are lost and {left} not moved: {missing:?}", missing.len()).into());
    }
    if kills < KILLS_MIN {
        return Err(format!("it was killed {kills} times only").into());
    }
    way.clean(queue, from, to)
}

/// Waits until so many have arrived or the command ended; whether it took too long.
fn watch(
    child: &mut Child,
    to: &mut Broker,
    queue: &str,
    goal: u32,
    deadline: Instant,
) -> Result<(u32, bool), Failure> {
    loop {
        let arrived = to.ready(queue)?;
        if arrived >= goal || child.try_wait()?.is_some() {
            return Ok((arrived, false));
        }
        if Instant::now() >= deadline {
            return Ok((arrived, true));
        }
    }
}

impl Way {
    fn open(&self, queue: &str) -> Result<(Broker, Broker), Failure> {
        let from = Broker::open(&self.from, queue, self.from_quorum)?;
        Ok((from, Broker::open(&self.to, queue, self.to_quorum)?))
    }

    fn command(&self, queue: &str, more: &[&str]) -> Command {
        let mut command = Command::new(&self.forebay);
        command.args(["move", "--from", &self.from, "--to", &self.to, "--queue", queue]);
        command.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Whether messages may have been counted, also when we take them at the end.
    fn through_quorum(&self) -> bool {
        self.from_quorum || self.to_quorum
    }

    fn clean(&self, queue: &str, mut from: Broker, mut to: Broker) -> Result<(), Failure> {
        from.channel.delete_queue(queue)?;
        to.channel.delete_queue(queue)?;
        Ok(())
    }
}

/// A message in a queue: its properties, as they are on the wire, and its body.
type Stored = (Vec<u8>, Vec<u8>);

/// One of the two, with a queue.
struct Broker {
    channel: Channel,
    _connection: Connection,
}

impl Broker {
    fn open(uri: &str, queue: &str, quorum: bool) -> Result<Broker, Failure> {
        let connection = Connection::open(uri)?;
        let mut channel = connection.channel()?;
        let arguments = match quorum {
            true => TableBuf::new().with("x-queue-type", Value::LongStr(b"quorum")),
            false => TableBuf::new(),
        };
        let durable = DeclareQueue { durable: true, arguments, ..DeclareQueue::default() };
        // Of a case that failed.
        channel.delete_queue(queue)?;
        channel.declare_queue(queue, durable)?;
        Ok(Broker { channel, _connection: connection })
    }

    fn publish(
        &mut self,
        queue: &str,
        properties: Properties<'_>,
        body: &[u8],
    ) -> Result<(), Failure> {
        let publication =
            Publication { routing_key: queue, properties, body, ..Publication::default() };
        self.channel.publish(&publication)?;
        Ok(())
    }

    fn ready(&mut self, queue: &str) -> Result<u32, Failure> {
        let passive = DeclareQueue { passive: true, ..DeclareQueue::default() };
        Ok(self.channel.declare_queue(queue, passive)?.message_count)
    }

    /// Brokers may count a little later than they take.
    fn until_ready(&mut self, queue: &str, count: u32) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        while self.ready(queue)? != count {
            if Instant::now() >= deadline {
                return Err(format!("there are not {count} messages in {queue}").into());
            }
        }
        Ok(())
    }

    /// Takes all messages out of a queue.
    fn drain(&mut self, queue: &str) -> Result<Vec<Stored>, Failure> {
        let mut messages = Vec::new();
        while let Some((message, _)) = self.channel.get(queue, true)? {
            messages.push((message.raw_properties().raw().to_vec(), message.body().to_vec()));
        }
        Ok(messages)
    }
}

/// A field of every type of AMQP, in tables and arrays, too, and names and texts that are odd.
fn headers_of_all_types() -> TableBuf {
    let inner = TableBuf::new().with("n", Value::I8(-1)).with("", Value::Void);
    let mut list = ArrayBuf::new();
    for value in [Value::I32(-1), Value::LongStr(b"x"), Value::Table(inner.as_table())] {
        list.push(value);
    }
    TableBuf::new()
        .with("text", Value::LongStr(b"\xff not UTF-8"))
        .with("bytes", Value::Bytes(b"\0\x01"))
        .with("table", Value::Table(inner.as_table()))
        .with("list", Value::Array(list.as_array()))
        .with("i8", Value::I8(i8::MIN))
        .with("u8", Value::U8(u8::MAX))
        .with("i16", Value::I16(i16::MIN))
        .with("u16", Value::U16(u16::MAX))
        .with("i32", Value::I32(i32::MIN))
        .with("u32", Value::U32(u32::MAX))
        .with("i64", Value::I64(i64::MIN))
        .with("f32", Value::F32(-0.1))
        .with("f64", Value::F64(f64::MIN_POSITIVE))
        .with("decimal", Value::Decimal { scale: 2, value: 5 })
        .with("time", Value::Timestamp(u64::MAX))
        .with("nothing", Value::Void)
        .with("twice", Value::Bool(true))
        .with("twice", Value::Bool(false))
}

fn properties_of_all_kinds(headers: Table<'_>) -> [Properties<'_>; 5] {
    let short = |bytes: &'static [u8]| ShortStr::new(bytes);
    [
        Properties { delivery_mode: Some(2), ..Properties::default() },
        Properties::default(),
        Properties {
            headers: Some(headers),
            message_id: short(b"\xfe\0"),
            ..Properties::default()
        },
        Properties { expiration: short(b"600000"), priority: Some(0), ..Properties::default() },
        Properties {
            content_type: short(b"text/plain"),
            content_encoding: short(b""),
            headers: Some(headers),
            delivery_mode: Some(1),
            priority: Some(9),
            correlation_id: short(b"c"),
            reply_to: short(b"elsewhere"),
            expiration: short(b"86400000"),
            message_id: short(b"m"),
            timestamp: Some(u64::MAX),
            type_name: short(b"t"),
            user_id: short(b"guest"),
            app_id: short(b"a"),
            cluster_id: short(b"old"),
        },
    ]
}

fn encoded(properties: &Properties<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    properties.encode(&mut bytes);
    bytes
}

/// Properties without headers, as they are on the wire, and the headers one by one; in an order of ours if the broker has
/// one of its own.
type Fields = (Vec<u8>, Vec<(Vec<u8>, String)>);

fn fields(properties: &Properties<'_>, in_our_order: bool) -> Fields {
    let headers = properties.headers.iter().flat_map(|headers| headers.iter());
    let mut headers: Vec<_> =
        headers.map(|(name, value)| (name.as_bytes().to_vec(), format!("{value:?}"))).collect();
    if in_our_order {
        headers.sort_by(|one, other| one.0.cmp(&other.0));
    }
    (encoded(&Properties { headers: None, ..*properties }), headers)
}

/// What the message was, and whether it is marked. Fails if there is a mark that says no.
fn without_what_a_move_adds(bytes: &[u8], quorum: bool) -> Result<(Fields, bool), Failure> {
    let properties = RawProperties::validate(bytes)?.parse();
    let (plain, headers) = fields(&properties, quorum);
    let is_mark = |name: &[u8]| name == REPUBLISHED_HEADER.as_bytes();
    let is_count = |name: &[u8]| quorum && name == COUNT_HEADER.as_bytes();
    let (added, headers): (Vec<_>, Vec<_>) =
        headers.into_iter().partition(|(name, _)| is_mark(name) || is_count(name));
    let marks: Vec<_> = added.iter().filter(|(name, _)| is_mark(name)).collect();
    match marks[..] {
        [] => Ok(((plain, headers), false)),
        [(_, value)] if *value == format!("{:?}", Value::Bool(true)) => {
            Ok(((plain, headers), true))
        }
        _ => Err(format!("the mark is {marks:?}").into()),
    }
}

fn said(properties: &[u8]) -> String {
    match RawProperties::validate(properties) {
        Ok(properties) => format!("{:?}", properties.parse()),
        Err(error) => format!("{properties:?}, which is broken: {error}"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// Any number below `bound`; when a kill comes is chance in any case.
fn random_below(bound: u32) -> u32 {
    (RandomState::new().hash_one(0) % u64::from(bound)) as u32
}
