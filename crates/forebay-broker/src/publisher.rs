//! Publishers that outlive their connections: what was taken of each, for when it comes back and asks.
//!
//! A client that announces [`CAPABILITY`] may put a publisher's name into `channel.open`, with the number of
//! the first publish that it will send there; publishes on a channel are taken in order, so one number tells
//! what was taken. `channel.open-ok` answers with what was taken of that publisher on its channels before:
//!
//! ```text
//!   channel.open     reserved-1 = "2 101 8f3a…-"         its second channel, number of the first publish, name
//!   channel.open-ok  reserved-1 = ""                     nothing is known of it
//!                               = upto, (first, last)…   u64s, big-endian: all up to `upto` was taken,
//!                                                        except that of these ranges some were returned
//! ```
//! The answer waits until what it speaks of is durable, so it is as good as a confirm. A channel that the
//! publisher had open before is closed first, and one that was to be open before and comes later is refused: what
//! of them was still on its way is not taken afterwards.
//!
//! Nothing is done for a publish but for one that is returned. What is known of a publisher goes when its client
//! closes channel or connection in order, after [`KEPT_US`], when [`KEPT_MAX`] others ended after it, and with
//! the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_store::BatchNo;
use forebay_wire::ReplyCode;

use crate::channel::{Channel, Mode};
use crate::error::AmqpError;
use crate::input::ConnectionId;
use crate::shard::Shard;

/// Announced by both sides.
pub(crate) const CAPABILITY: &str = "forebay.named_publishers";

/// How long a publisher is remembered after its channel ended.
const KEPT_US: u64 = 10 * 60 * 1_000_000;

/// Publishers that are remembered after their channels ended; at most about 700 bytes each.
const KEPT_MAX: usize = 4096;

/// Ranges of returned publishes, each 16 bytes. Beyond it the oldest two become one, with what is between.
const RETURNED_MAX: usize = 32;

/// Bytes of a name.
const NAME_MAX: usize = 64;

/// Whom a name belongs to, and the name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PublisherKey {
    vhost: u32,
    user: Arc<str>,
    name: Box<[u8]>,
}

/// What was taken of a publisher, by its own numbers.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Taken {
    upto: u64,
    /// Durable with this batch.
    batch: BatchNo,
    /// Ascending and disjoint. In each the first and the last were returned.
    returned: Vec<(u64, u64)>,
}

impl Taken {
    /// The publish after all that was taken is returned.
    fn give_back(&mut self, number: u64) {
        match self.returned.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => self.returned.push((number, number)),
        }
        if self.returned.len() > RETURNED_MAX {
            let (first, _) = self.returned.remove(0);
            self.returned[0].0 = first;
        }
    }

    fn encode(&self) -> Vec<u8> {
        let ranges = self.returned.iter().flat_map(|&(first, last)| [first, last]);
        std::iter::once(self.upto).chain(ranges).flat_map(u64::to_be_bytes).collect()
    }
}

/// A publisher on its present channel.
#[derive(Debug)]
pub(crate) struct Publisher {
    key: Arc<PublisherKey>,
    /// How many channels it has opened, this one included.
    opening: u64,
    /// Its number for the channel's first publish.
    first: u64,
    /// On its channels before; holds until it publishes on this one.
    before: Taken,
    /// Of this channel.
    returned: Taken,
}

impl Publisher {
    /// What was taken of it, the publishes of this channel included.
    fn taken(mut self, mode: &Mode) -> Taken {
        let Mode::Confirm(confirms) = mode else { return self.before };
        let published = confirms.published_count();
        if published == 0 {
            return self.before;
        }
        self.returned.upto = self.first + published - 1;
        self.returned.batch = confirms.last_batch().unwrap_or_default();
        self.returned
    }
}

impl Channel {
    /// The publish that is being numbered goes back to its publisher, or was refused by a full queue: who comes back without an
    /// answer to it must not be told that it was taken.
    pub(crate) fn note_not_taken(&mut self) {
        if let (Some(publisher), Mode::Confirm(confirms)) = (&mut self.publisher, &self.mode) {
            publisher.returned.give_back(publisher.first + confirms.published_count());
        }
    }
}

/// Where a publisher is.
#[derive(Debug, Clone, Copy)]
enum Place {
    At {
        connection: ConnectionId,
        channel: u16,
        opening: u64,
    },
    /// Among those that ended, by this number.
    Ended(u64),
}

#[derive(Debug)]
struct Ended {
    key: Arc<PublisherKey>,
    opening: u64,
    at_us: u64,
    taken: Taken,
}

/// All publishers with a name.
#[derive(Debug, Default)]
pub(crate) struct Publishers {
    places: BTreeMap<Arc<PublisherKey>, Place>,
    /// In the order of their ends.
    ended: BTreeMap<u64, Ended>,
    next_end: u64,
}

impl Publishers {
    /// Its channel is over.
    fn end(&mut self, ended: Ended) {
        let now_us = ended.at_us;
        self.places.insert(ended.key.clone(), Place::Ended(self.next_end));
        self.ended.insert(self.next_end, ended);
        self.next_end += 1;
        self.forget_old(now_us);
    }

    /// Its last channel, whether open or not: the how manieth it was.
    fn last_opening(&self, key: &PublisherKey) -> u64 {
        match self.places.get(key) {
            Some(Place::At { opening, .. }) => *opening,
            Some(Place::Ended(number)) => self.ended[number].opening,
            None => 0,
        }
    }

    /// What is known of a publisher that has no channel.
    fn take(&mut self, key: &PublisherKey, now_us: u64) -> Option<Taken> {
        self.forget_old(now_us);
        let Some(Place::Ended(number)) = self.places.get(key) else { return None };
        let ended = self.ended.remove(number).expect("a place of an ended publisher is among them");
        self.places.remove(key);
        Some(ended.taken)
    }

    fn forget_old(&mut self, now_us: u64) {
        while let Some(oldest) = self.ended.first_entry()
            && (now_us >= oldest.get().at_us + KEPT_US || self.ended.len() > KEPT_MAX)
        {
            let (_, ended) = self.ended.pop_first().expect("it was looked at above");
            self.places.remove(&ended.key);
        }
    }
}

impl Shard {
    /// A channel was opened with these words; the answer for `channel.open-ok`. 502 if they make no sense.
    pub(crate) fn name_publisher(
        &mut self,
        id: ConnectionId,
        number: u16,
        words: &[u8],
    ) -> Result<Vec<u8>, AmqpError> {
        let now_us = self.now_us;
        let Some(connection) = self.connection(id) else { return Ok(Vec::new()) };
        if words.is_empty() || !connection.capabilities.named_publishers {
            return Ok(Vec::new());
        }
        let Words { opening, first, name } = parse(words).ok_or_else(unreadable)?;
        let Some(login) = &connection.login else { return Ok(Vec::new()) };
        let (vhost, user) = (connection.vhost, login.user.clone());
        let key = Arc::new(PublisherKey { vhost, user, name: name.into() });
        self.publishers.forget_old(now_us);
        if opening <= self.publishers.last_opening(&key) {
            return Err(moved());
        }
        if let Some(Place::At { connection, channel, .. }) =
            self.publishers.places.get(&key).copied()
        {
            self.channel_error(connection, channel, moved(), 0, 0);
        }
        let known = self.publishers.take(&key, now_us);
        let answer = known.as_ref().map(Taken::encode).unwrap_or_default();
        let before = known.unwrap_or_default();
        if before.batch > 0 {
            self.raise_barrier(id, before.batch);
        }
        let returned = Taken::default();
        let publisher = Publisher { key: key.clone(), opening, first, before, returned };
        if let Some(channel) = self.connection(id).and_then(|c| c.channel(number)) {
            channel.publisher = Some(Box::new(publisher));
            let place = Place::At { connection: id, channel: number, opening };
            self.publishers.places.insert(key, place);
        }
        Ok(answer)
    }

    /// Its channel is over, and it may come back.
    pub(crate) fn keep_publisher(&mut self, publisher: Publisher, mode: &Mode) {
        let (key, opening) = (publisher.key.clone(), publisher.opening);
        let taken = publisher.taken(mode);
        self.publishers.end(Ended { key, opening, at_us: self.now_us, taken });
    }

    /// Its client is done with the channel, or with the connection.
    pub(crate) fn drop_publisher(&mut self, id: ConnectionId, number: u16) {
        if let Some(channel) = self.connection(id).and_then(|c| c.channel(number))
            && let Some(publisher) = channel.publisher.take()
        {
            self.publishers.places.remove(&publisher.key);
        }
    }
}

/// 502: nobody can be read out of `channel.open`.
fn unreadable() -> AmqpError {
    let reason = "channel.open names no publisher: two numbers from 1 and at most 64 bytes are due, with \
                  blanks between";
    AmqpError::new(ReplyCode::SyntaxError, reason)
}

/// 405: this channel is not the publisher's last one.
fn moved() -> AmqpError {
    let reason = "the publisher of this channel goes on at another one";
    AmqpError::new(ReplyCode::ResourceLocked, reason)
}

/// What `channel.open` says.
#[derive(Debug, PartialEq, Eq)]
struct Words<'a> {
    opening: u64,
    first: u64,
    name: &'a [u8],
}

fn parse(words: &[u8]) -> Option<Words<'_>> {
    let mut parts = words.splitn(3, |&byte| byte == b' ');
    let mut number = || -> Option<u64> {
        let number = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        // No channel lives long enough to count beyond u64 from there.
        (1..1 << 63).contains(&number).then_some(number)
    };
    let (opening, first) = (number()?, number()?);
    let name = parts.next()?;
    (1..=NAME_MAX).contains(&name.len()).then_some(Words { opening, first, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Arc<PublisherKey> {
        Arc::new(PublisherKey { vhost: 0, user: "guest".into(), name: name.as_bytes().into() })
    }

    fn ended(name: &str, taken: Taken, at_us: u64) -> Ended {
        Ended { key: key(name), opening: 1, at_us, taken }
    }

    fn upto(upto: u64) -> Taken {
        Taken { upto, ..Taken::default() }
    }

    #[test]
    fn what_ended_is_known_for_ten_minutes_and_told_once() {
        let mut publishers = Publishers::default();
        publishers.end(ended("a", upto(7), 0));
        publishers.end(ended("b", upto(8), 5));
        assert_eq!(publishers.take(&key("a"), KEPT_US - 1), Some(upto(7)));
        assert_eq!(publishers.take(&key("a"), KEPT_US - 1), None);
        assert_eq!(publishers.take(&key("b"), KEPT_US + 5), None);
        assert!(publishers.places.is_empty() && publishers.ended.is_empty());
    }

    #[test]
    fn of_too_many_the_oldest_are_forgotten() {
        let mut publishers = Publishers::default();
        for number in 0..=KEPT_MAX as u64 {
            publishers.end(ended(&number.to_string(), upto(number), 0));
        }
        assert_eq!(publishers.take(&key("0"), 0), None);
        assert_eq!(publishers.take(&key("1"), 0), Some(upto(1)));
        assert_eq!((publishers.places.len(), publishers.ended.len()), (KEPT_MAX - 1, KEPT_MAX - 1));
    }

    #[test]
    fn every_returned_publish_is_in_a_range_however_many_there_are() {
        let mut taken = Taken::default();
        let returned: Vec<u64> = (1..=1000).filter(|n| n % 7 == 0 || n % 10 < 3).collect();
        for &number in &returned {
            taken.give_back(number);
        }
        let within =
            |n: u64| taken.returned.iter().any(|&(first, last)| (first..=last).contains(&n));
        assert_eq!(taken.returned.len(), RETURNED_MAX);
        assert!(returned.iter().all(|&number| within(number)));
        assert!(taken.returned.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
        assert!(!within(994 + 2), "the newest ranges are exact");
    }

    #[test]
    fn words_that_make_no_sense_are_refused() {
        let words = Words { opening: 2, first: 17, name: b"a b" };
        assert_eq!(parse(b"2 17 a b"), Some(words));
        let long = format!("1 1 {}", "x".repeat(NAME_MAX + 1));
        let wrong = ["1 1", "1 1 ", "1 a", "0 1 a", "1 0 a", "1 -1 a", "9223372036854775808 1 a"];
        for words in wrong.into_iter().chain([long.as_str()]) {
            assert_eq!(parse(words.as_bytes()), None, "{words}");
        }
    }
}
