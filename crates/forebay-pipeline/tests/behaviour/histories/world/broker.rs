//! The broker: its queue as the source, and what happens to it.

use std::task::{Context, Poll};
use std::time::Duration;

use forebay_pipeline::source::{Later, Leaving, Past, Taken};
use forebay_pipeline::{Finding, Needs, Source, SourceError};

use super::delivery::{At, Delivery, Message, Tag};
use super::{Shared, pause};

impl Shared {
    pub(crate) fn publish(&self, job: usize) {
        let mut world = self.enter();
        world.queue.push_back(job);
        world.wake();
    }

    pub(crate) fn cut(&self) {
        let mut world = self.enter();
        world.note("cut");
        let now = world.now();
        (world.connected, world.cut) = (false, now);
        let lost = world.connection;
        world.connection += 1;
        let open = |delivery: &&Delivery| delivery.connection == lost && !delivery.settled;
        let again: Vec<usize> =
            world.deliveries.iter().filter(open).map(|delivery| delivery.job).collect();
        for job in again.into_iter().rev() {
            world.queue.push_front(job);
            world.given_back.insert(job, true);
        }
    }

    pub(crate) fn connect(&self) {
        let mut world = self.enter();
        world.note("connect");
        world.connected = true;
        world.wake();
    }

    pub(crate) fn set_credit(&self, credit: usize) {
        let mut world = self.enter();
        world.credit = credit;
        world.wake();
    }

    /// Nothing more is published; whether it is an error.
    pub(crate) fn close(&self, broken: bool) {
        let mut world = self.enter();
        world.note("close");
        world.closing = Some(broken);
        world.wake();
    }
}

/// The queue as a source.
pub(crate) struct Queue(pub(crate) Shared);

impl Source for Queue {
    type Value = Message;
    type Receipt = Tag;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Taken<Self>> {
        let mut world = self.0.enter();
        let connection = world.connection;
        let open = |delivery: &Delivery| delivery.connection == connection && !delivery.settled;
        let unsettled = world.count(open);
        if world.queue.is_empty()
            && let Some(broken) = world.closing
        {
            world.note("over");
            world.over = true;
            let broken = if broken { Err(SourceError::new("broken")) } else { Ok(None) };
            return Poll::Ready(broken);
        }
        if !world.connected || unsettled >= world.credit || world.queue.is_empty() {
            world.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let job = world.queue.pop_front().unwrap();
        let (tag, value, now) = (world.deliveries.len(), world.plan.jobs[job].value, world.now());
        let before = world.remembered.get(&job).copied().unwrap_or(0);
        let given_back = world.given_back.get(&job).copied().unwrap_or(false);
        let retries = world.plan.retries.map_or(0, |(retries, _)| retries);
        let attempts = if given_back && before >= retries { 0 } else { before };
        let due = world.due.get(&job).copied().filter(|due| *due > now).unwrap_or(0);
        world.note(format!("deliver {tag} job {job} key {} rests until {due}", value.key));
        world.deliveries.push(Delivery {
            job,
            value,
            connection,
            attempts,
            at: At::Here,
            begun: 0,
            settled: false,
            settles: None,
            rests_until: due,
        });
        let held = world.count(|delivery| !delivery.settled);
        if held > world.held_most {
            let most = world.held_most;
            world.fault(&format!("{held} messages are held, and it said {most}"));
        }
        let world = self.0.clone();
        Poll::Ready(Ok(Some((Message { tag, value }, Tag { world, tag, connection, used: false }))))
    }

    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut world = self.0.enter();
        if world.queue.is_empty() && world.closing.is_some() {
            return Poll::Ready(());
        }
        world.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn needs(&mut self, needs: &Needs) -> Vec<Finding> {
        let mut world = self.0.enter();
        let most = needs.held_messages.saturating_add(needs.put_off_messages);
        world.held_most = world.held_most.max(most);
        Vec::new()
    }

    fn past(message: &Message, receipt: &Tag) -> Past {
        let world = receipt.world.0.lock().unwrap();
        let delivery = &world.deliveries[message.tag];
        let rest = delivery.rests_until.saturating_sub(world.now());
        Past {
            attempts: world.remembered.get(&delivery.job).copied().unwrap_or(0),
            given_back: world.given_back.get(&delivery.job).copied().unwrap_or(false),
            rest: (rest > 0).then(|| Duration::from_millis(rest)),
        }
    }

    fn later(message: &Message, receipt: &Tag, later: Later) -> Option<Leaving> {
        let (tag, shared) = (message.tag, receipt.world.clone());
        let mut world = shared.enter();
        if world.plan.ordered {
            world.fault("it is put off elsewhere, out of order");
        }
        let pause_ms = u64::try_from(later.pause.as_micros().div_ceil(1_000)).unwrap();
        let (shortest, takes, every) = world.plan.ladder.filter(|it| pause_ms >= it.0)?;
        let (now, with_worker) = (world.now(), world.buffered() > world.plan.buffer_max);
        let due = now + pause_ms;
        let (from, to) = match world.deliveries[tag].at {
            At::Here => (world.deliveries[tag].rests_until, world.deliveries[tag].rests_until),
            At::Off { from, to, .. } => (from, to),
            At::Cancelled if world.unsure => (now, now),
            at => {
                world.fault(&format!("{tag} leaves: {at:?}"));
                return None;
            }
        };
        world.note(format!("leaving {tag} {pause_ms} {shortest}"));
        world.deliveries[tag].at = At::Leaving { from, to, with_worker };
        let refused = tag % (every + 1) == every;
        drop(world);
        Some(Box::pin(async move {
            pause(takes).await;
            let mut world = shared.enter();
            let job = world.deliveries[tag].job;
            if refused || world.is_void(tag) {
                world.note(format!("stays {tag}"));
                world.deliveries[tag].at = At::Off { from, to, with_worker };
                return Err(Finding { name: "stays", says: "no".to_owned() });
            }
            world.note(format!("leaves {tag}"));
            world.deliveries[tag].at = At::Left;
            let attempts = world.deliveries[tag].attempts;
            if attempts != later.attempts {
                world.fault(&format!("{} attempts, which were {attempts}", later.attempts));
            }
            let again = shared.clone();
            drop(world);
            tokio::spawn(async move {
                let before = if tag % 2 == 0 { 3 } else { 0 };
                let at = again.enter().start + Duration::from_millis(due.saturating_sub(before));
                tokio::time::sleep_until(at).await;
                let mut world = again.enter();
                world.note(format!("again job {job}"));
                world.remembered.insert(job, later.attempts);
                world.given_back.insert(job, false);
                world.due.insert(job, due);
                world.queue.push_back(job);
                world.wake();
            });
            Ok(())
        }))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut world = self.0.enter();
        world.note("source dropped");
        world.over = true;
    }
}
