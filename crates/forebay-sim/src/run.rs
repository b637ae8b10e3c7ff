//! One run: a seed, or a list of events, to its end.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_store::MemDisk;

use crate::broker::Broker;
use crate::client::Client;
use crate::event::{Death, End, Event};
use crate::model::Model;
use crate::random::Random;
use crate::swarm::Swarm;
use crate::trace::Trace;
use crate::violation::{Violation, violation};
use crate::world::{Statistics, Step, Stop, World};

/// How a run went.
#[derive(Debug)]
pub struct Report {
    /// What was broken, if anything.
    pub violation: Option<Violation>,
    /// What happened.
    pub statistics: Statistics,
    /// Equal for equal runs.
    pub trace_hash: u64,
    /// Everything that happened before the end: with the seed's swarm, the whole run.
    pub events: Vec<Event>,
}

/// Where a run's events come from.
enum Source<'a> {
    Chance(Random),
    List(&'a [Event]),
}

/// Runs a seed to its end.
pub fn run(seed: u64, swarm: &Swarm, verbose: bool) -> Report {
    drive(seed, swarm, Source::Chance(Random::new(seed)), verbose)
}

/// Runs a list of events; those that cannot happen do nothing.
pub fn replay(seed: u64, swarm: &Swarm, events: &[Event], verbose: bool) -> Report {
    drive(seed, swarm, Source::List(events), verbose)
}

fn drive(seed: u64, swarm: &Swarm, source: Source<'_>, verbose: bool) -> Report {
    let mut events = Vec::new();
    // An assertion that does not hold is a violation like any other: told with its seed, and shrunk.
    let ran = catch_unwind(AssertUnwindSafe(|| match World::new(seed, swarm, verbose) {
        Ok(mut world) => (world.live(source, &mut events), Some(world)),
        Err(stop) => (Err(stop), None),
    }));
    let (result, world) = ran.unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().map(String::as_str);
        let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        (violation("it never panics", what).map_err(Stop::Violated), None)
    });
    let mut statistics = world.as_ref().map(|world| world.statistics.clone()).unwrap_or_default();
    let violation = match result {
        Ok(()) => None,
        Err(Stop::Violated(violation)) => Some(violation),
        Err(Stop::Detected(_)) => {
            statistics.detected += 1;
            None
        }
    };
    let trace_hash = world.map_or(0, |world| world.trace.hash());
    Report { violation, statistics, trace_hash, events }
}

impl World {
    fn new(seed: u64, swarm: &Swarm, verbose: bool) -> Step<World> {
        let disk = Arc::new(MemDisk::new());
        let broker = Broker::start(&disk, &swarm.options, swarm.config(seed), swarm.in_memory)
            .map_err(|error| Stop::Detected(error.to_string()))?;
        // The first start is like all others.
        disk.kill();
        disk.set_lying(swarm.lying_disk);
        disk.set_random(Random::new(seed ^ 0x5A17).next());
        // Most keep what a failed sync left behind for readers, until the power goes.
        disk.set_shows_lost(!seed.is_multiple_of(3));
        // Some file systems give no room but for what is written.
        disk.set_allocates(!seed.is_multiple_of(4));
        let clients: Vec<Client> =
            swarm.clients.iter().enumerate().map(|(at, jobs)| Client::new(at, jobs)).collect();
        let mut world = World {
            seed,
            now_us: 0,
            lived_us: 0,
            links: (0..=clients.len()).map(|_| None).collect(),
            swarm: swarm.clone(),
            disk,
            broker,
            model: Model::new(swarm),
            clients,
            starts: 0,
            stopping: false,
            fault_pending: false,
            flipped: false,
            trickled_bytes: 0,
            turns: 0,
            held_in_vain_us: BTreeMap::new(),
            statistics: Statistics::default(),
            trace: Trace::new(verbose),
        };
        world.trace.note(&format!("{swarm:?}"));
        world.start(Death::Kill, &mut Random::new(seed), End::Stopped)?;
        Ok(world)
    }

    fn live(&mut self, mut source: Source<'_>, events: &mut Vec<Event>) -> Step {
        loop {
            let event = match &mut source {
                Source::Chance(_) if events.len() >= self.swarm.events as usize => break,
                Source::Chance(random) => self.choose(random),
                Source::List(list) => match list.get(events.len()) {
                    Some(event) => *event,
                    None => break,
                },
            };
            events.push(event);
            self.apply(event)?;
        }
        self.finish()
    }
}
