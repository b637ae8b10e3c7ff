//! What happens next: one of the things that can, as chance has it.

use forebay_broker::ConnectionId;
use forebay_store::{Durability, Lane};

use crate::event::{Death, DiskError, Event};
use crate::random::Random;
use crate::world::World;

impl World {
    /// An event that can happen now. Faults are rare against the rest: about one in a hundred.
    pub(crate) fn choose(&self, random: &mut Random) -> Event {
        let swarm = &self.swarm;
        let mut events = Vec::with_capacity(4 * self.clients.len() + 16);
        let mut weights = Vec::with_capacity(events.capacity());
        let mut can = |weight: u32, event: Event| {
            weights.push(100 * weight);
            events.push(event);
        };
        for client in 0..self.clients.len() {
            let Some(link) = &self.links[client] else {
                can(2, Event::Act { client, roll: random.next() });
                continue;
            };
            if !link.vanished {
                can(8, Event::Act { client, roll: random.next() });
                if link.upstream_bytes() > 0 {
                    can(8, Event::Feed { client, bytes: piece(random, link.upstream_bytes()) });
                }
                let outgoing = self.broker.shard.outgoing(ConnectionId(client as u32)).len();
                if (outgoing > 0 || link.closing) && !link.stalled {
                    can(6, Event::Carry { client, bytes: piece(random, outgoing) });
                }
            }
        }
        can(10, Event::Turn);
        let due = self.broker.shard.next_deadline_us().is_some_and(|at| at <= self.now_us);
        can(if due { 6 } else { 0 }, Event::Tick);
        can(1, Event::Wait { us: random.pick(&[100, 1_000, 20_000, 700_000]) });
        for lane in Lane::ALL {
            if self.broker.is_busy(lane) {
                can(if swarm.slow_disk { 1 } else { 8 }, Event::Complete(lane));
            }
        }
        // Hundredths of the weights above.
        let mut may = |weight: u32, event: Event| {
            weights.push(10 * weight);
            events.push(event);
        };
        let client = random.index(self.clients.len());
        may(swarm.reset, Event::Reset { client });
        may(swarm.vanish, Event::Vanish { client });
        may(swarm.stall, Event::Stall { client });
        may(swarm.kill, Event::Die { death: Death::Kill, seed: random.next() });
        may(swarm.power_loss, Event::Die { death: Death::PowerLoss, seed: random.next() });
        let error = match random.pick(&[
            DiskError::Write,
            DiskError::Sync,
            DiskError::Read,
            DiskError::Create,
            DiskError::Allocate,
            DiskError::Name,
            DiskError::Remove,
            DiskError::Names,
        ]) {
            // A failed sync takes what it was to make durable: no promise of the weaker policies.
            DiskError::Sync if swarm.options.durability != Durability::Always => DiskError::Write,
            error => error,
        };
        may(swarm.disk_error, Event::Fail(error));
        let bytes = match random.below(3) {
            0 => None,
            _ => Some(random.below(3 * swarm.options.segment_bytes)),
        };
        may(swarm.disk_full, Event::Room { bytes });
        may(swarm.bit_flip, Event::Flip { seed: random.next() });
        may(swarm.restart, Event::Restart);
        let at = random.weighted(&weights).unwrap_or(0);
        events[at]
    }
}

/// How much of `available` bytes moves: a few, some, or all.
fn piece(random: &mut Random, available: usize) -> usize {
    match random.below(4) {
        0 => 1 + random.index(8),
        1 => 1 + random.index(available.max(1)),
        _ => available.max(1),
    }
}
