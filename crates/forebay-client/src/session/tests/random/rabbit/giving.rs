//! What the broker does by itself: it answers publishes, delivers, and takes away.

use std::collections::VecDeque;

use forebay_wire::{
    Properties, RawProperties, ShortStr, basic, channel, connection, write_body_frame,
    write_header_frame, write_method, write_properties_frame,
};

use super::super::dice::Random;
use super::{Chan, Conn, FRAME_BYTES_MAX, Pending, Rabbit, Said, Unacked};

impl Rabbit {
    /// Stops a connection that has published.
    pub(in super::super) fn block(&mut self, conn: &mut Conn) {
        let alarm = self.alarms.contains(&conn.host);
        if alarm && conn.open && conn.published && !conn.blocked && !conn.closing {
            conn.blocked = true;
            conn.tell(0, &connection::Blocked { reason: ShortStr::truncated("low on memory") });
        }
    }

    /// One of its hosts has no memory, or has some again.
    pub(in super::super) fn set_alarm<'c>(
        &mut self,
        host: usize,
        alarm: bool,
        conns: impl Iterator<Item = &'c mut Conn>,
    ) {
        match alarm {
            true => self.alarms.insert(host),
            false => self.alarms.remove(&host),
        };
        for conn in conns.filter(|conn| conn.host == host) {
            match alarm {
                true => self.block(conn),
                false => self.unblock(conn),
            }
        }
    }

    pub(in super::super) fn unblock(&mut self, conn: &mut Conn) {
        if std::mem::replace(&mut conn.blocked, false) {
            conn.tell(0, &connection::Unblocked::default());
        }
    }

    /// Answers some publish of a channel, or all up to it that have the same fate. False: there is none.
    pub(in super::super) fn confirm(&mut self, conn: &mut Conn, random: &mut Random) -> bool {
        let owing = |(_, chan): &(&u16, &Chan)| !chan.closing && !chan.pending.is_empty();
        let numbers: Vec<u16> = conn.channels.iter().filter(owing).map(|(&n, _)| n).collect();
        if numbers.is_empty() || conn.closing || conn.over {
            return false;
        }
        let number = numbers[random.below(numbers.len())];
        let chan = conn.channels.get_mut(&number).expect("it owes something");
        let at = random.below(chan.pending.len());
        let Pending { acked, sequence, .. } = chan.pending[at];
        let multiple = random.in_percent(50) && chan.pending[..at].iter().all(|p| p.acked == acked);
        let first = if multiple { 0 } else { at };
        for pending in chan.pending.drain(first..=at) {
            self.arrivals.get_mut(&pending.name).expect("it arrived")[pending.at].answered = true;
        }
        let delivery_tag = sequence;
        if acked {
            conn.tell(number, &basic::Ack { delivery_tag, multiple });
        } else {
            conn.tell(number, &basic::Nack { delivery_tag, multiple, requeue: false });
        }
        true
    }

    /// Answers some request, or loses it. False: there is none.
    pub(in super::super) fn reply(&mut self, conn: &mut Conn, random: &mut Random) -> bool {
        if conn.closing || conn.over {
            return false;
        }
        let asked = conn.channels.iter_mut().find(|(_, chan)| !chan.requests.is_empty());
        let Some((&number, chan)) = asked else { return false };
        let (id, request) = chan.requests.swap_remove(random.below(chan.requests.len()));
        if random.in_percent(90) {
            let deliver = basic::Deliver { delivery_tag: 1, ..Default::default() };
            let body = [b"re ", &request[..]].concat();
            let correlation_id = Some(ShortStr::truncated(&id));
            let properties = Properties { correlation_id, ..Default::default() };
            let out = &mut conn.output;
            write_method(out, number, &deliver);
            write_properties_frame(out, number, 60, body.len() as u64, &properties);
            for part in body.chunks(FRAME_BYTES_MAX as usize - 8) {
                write_body_frame(out, number, part);
            }
        }
        true
    }

    /// Gives some consumer a message. False: nobody can have one.
    pub(in super::super) fn deliver(&mut self, conn: &mut Conn, random: &mut Random) -> bool {
        if conn.closing || conn.over {
            return false;
        }
        let mut able = Vec::new();
        for (&number, chan) in conn.channels.iter().filter(|(_, chan)| !chan.closing) {
            for (at, consumer) in chan.consumers.iter().enumerate() {
                let holds = |unacked: &&Unacked| unacked.consumer == consumer.tag;
                let held = chan.unacked.values().filter(holds).count();
                let room = consumer.prefetch == 0 || held < consumer.prefetch;
                if room && self.ready(&consumer.queue) > 0 {
                    able.push((number, at));
                }
            }
        }
        if able.is_empty() {
            return false;
        }
        let (number, at) = able[random.below(able.len())];
        let chan = conn.channels.get_mut(&number).expect("it has a consumer");
        let (queue, tag) = (chan.consumers[at].queue.clone(), chan.consumers[at].tag.clone());
        let stored =
            self.queues.get_mut(&queue).and_then(VecDeque::pop_front).expect("it is ready");
        chan.tag += 1;
        self.delivery += 1;
        self.redeliveries += u64::from(stored.redelivered);
        let deliver = basic::Deliver {
            consumer_tag: ShortStr::truncated(&tag),
            delivery_tag: chan.tag,
            redelivered: stored.redelivered,
            exchange: ShortStr::default(),
            routing_key: ShortStr::truncated(&queue),
        };
        let mut body = stored.body.clone();
        body.extend_from_slice(format!("#{}", self.delivery).as_bytes());
        let out = &mut conn.output;
        write_method(out, number, &deliver);
        let properties = RawProperties::trusted(&stored.properties);
        write_header_frame(out, number, 60, body.len() as u64, properties);
        for part in body.chunks(FRAME_BYTES_MAX as usize - 8) {
            write_body_frame(out, number, part);
        }
        let unacked = Unacked { consumer: tag, queue, delivery: self.delivery, stored };
        chan.unacked.insert(chan.tag, unacked);
        true
    }

    pub(super) fn requeue(&mut self, unacked: Unacked) {
        let Unacked { queue, mut stored, delivery, .. } = unacked;
        stored.redelivered = true;
        let acked = self.said.get(&delivery) == Some(&Said::Ack);
        self.rungs.comes_back(delivery, &stored.body, acked);
        match self.queues.get_mut(&queue) {
            Some(queue) => {
                let at = queue.partition_point(|other| other.position < stored.position);
                queue.insert(at, stored);
            }
            None => self.rungs.gone(&stored.body),
        }
    }

    /// Its consumers are told; what they hold can still be acknowledged, and goes nowhere.
    pub(in super::super) fn delete(&mut self, queue: &str, conn: Option<&mut Conn>) {
        for stored in self.queues.remove(queue).unwrap_or_default() {
            self.rungs.gone(&stored.body);
        }
        let Some(conn) = conn else { return };
        let mut told = Vec::new();
        for (&number, chan) in &mut conn.channels {
            for consumer in chan.consumers.extract_if(.., |consumer| consumer.queue == queue) {
                self.ended.insert(consumer.tag.split('-').next().unwrap().to_owned());
                told.push((number, consumer.tag));
            }
        }
        for (number, tag) in told {
            let consumer_tag = ShortStr::truncated(&tag);
            conn.tell(number, &basic::Cancel { consumer_tag, no_wait: true });
        }
    }

    pub(in super::super) fn close_channel(
        &mut self,
        conn: &mut Conn,
        number: u16,
        code: u16,
        text: &str,
    ) {
        self.channels_closed += 1;
        for consumer in &conn.channels[&number].consumers {
            self.ended.insert(consumer.tag.split('-').next().unwrap().to_owned());
        }
        self.forget_channel(conn, number);
        conn.channels.insert(number, Chan { closing: true, ..Chan::default() });
        let reply_text = ShortStr::truncated(text);
        conn.tell(number, &channel::Close { reply_code: code, reply_text, ..Default::default() });
    }

    pub(super) fn forget_channel(&mut self, conn: &mut Conn, number: u16) {
        let chan = conn.channels.remove(&number).expect("it was open");
        for (_, unacked) in chan.unacked {
            self.requeue(unacked);
        }
    }

    pub(in super::super) fn close(&mut self, conn: &mut Conn, code: u16) {
        if conn.open && !conn.closing && !conn.over {
            let reply_text = ShortStr::truncated("GONE");
            conn.tell(0, &connection::Close { reply_code: code, reply_text, ..Default::default() });
            conn.closing = true;
            conn.blocked = false;
        }
    }

    /// The connection is gone, as far as the broker knows.
    pub(in super::super) fn end(&mut self, conn: &mut Conn) {
        conn.over = true;
        for number in conn.channels.keys().copied().collect::<Vec<_>>() {
            self.forget_channel(conn, number);
        }
    }
}
