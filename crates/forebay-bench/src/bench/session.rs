//! One `forebay bench run`: which runs there are, in which order, and what came of each.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;

use super::flags::Flags;
use super::grid::{self, Setting};
use super::inquiry;
use super::onlooker::{Onlooker, start_link};
use super::points::Points;
use super::record::{Outcome, Record, Run};
use super::scale::{Scale, capacity_plan, scaled_by, scaled_to};
use super::target::Target;
use super::workload::{Phase, Workload};
use crate::generator::{self, LoadError, Progress};
use crate::link::url_through;
use crate::occasion::Occasion;
use crate::plan::Plan;
use crate::process;
use crate::rabbitmq::RabbitMq;
use crate::report::Report;
use crate::search::{RUNS_MAX, Search};
use crate::setting::Window;
use crate::spread::Random;
use crate::stamp::Mark;
use crate::topology;

/// File systems that lie in memory (`statfs(2)`): tmpfs and ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// Of a session: what is above is a slip of the hand.
const DAYS_MAX: f64 = 31.0;

const BOTTLENECK: &str = "    the generator's one core was busy: the broker can do more than this";

/// Why there is no record, or no more of it, as a sentence.
#[derive(Debug)]
pub enum BenchError {
    /// What was asked for makes no sense.
    Usage(String),
    /// It could not be measured.
    Failed(String),
    /// The screen asked for the end.
    Stopped,
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BenchError::Usage(sentence) | BenchError::Failed(sentence) => f.write_str(sentence),
            BenchError::Stopped => f.write_str("stopped before the end"),
        }
    }
}

impl std::error::Error for BenchError {}

/// Whoever tells people how it goes.
pub trait Screen {
    /// A line that stays.
    fn say(&mut self, line: &str);

    /// Another run begins, `share` of the session being over.
    fn begin(&mut self, title: &str, share: f64);

    /// It goes on; `Break` ends the session.
    fn progress(&mut self, progress: Progress<'_>) -> ControlFlow<()>;
}

/// What was measured, and why it was not all.
#[derive(Debug)]
pub struct Ended {
    /// As far as it went.
    pub record: Record,
    /// Why it went no further; `None`: it is all there.
    pub early: Option<BenchError>,
}

/// Measures everything that the flags ask for.
///
/// # Errors
/// Flags that make no sense. A broker that cannot be reached, and whatever else ends it early, is told beside what was
/// measured until then; a run that fails is part of the record.
pub fn run(flags: &Flags, screen: &mut dyn Screen) -> Result<Ended, BenchError> {
    flags.check().map_err(BenchError::Usage)?;
    if let Some(experiment) = flags.experiment() {
        return inquiry::ask(experiment, flags, screen);
    }
    let workload = flags.workload().map_err(BenchError::Usage)?;
    let flags = &flags.with_link_of(workload);
    let plan = flags.plan(workload);
    let usage = |error: &dyn fmt::Display| BenchError::Usage(error.to_string());
    plan.check().map_err(|error| usage(&error))?;
    if plan.publishers == 0 && !plan.predeclared {
        return Err(BenchError::Usage(
            "without producers nothing would come into the queues, which are new; --predeclared takes what is in queues \
             that are there"
                .into(),
        ));
    }
    // A link has two more of each, within this process.
    let sockets = if flags.link() { 3 } else { 1 };
    process::may_open((plan.publishers + plan.consumers) * sockets).map_err(BenchError::Usage)?;
    if flags.judge > 0 && !Setting::of(&plan).tunes_itself() {
        return Err(BenchError::Usage(
            "--judge compares what tunes itself with the best of --grid: leave --confirm, --qos and --multi-ack-every out"
                .into(),
        ));
    }
    check_scale(flags, workload, &plan)?;
    check_peers(flags)?;
    // Whatever the rate will be, a grid that cannot be read is found now.
    let some_rate = match flags.scale {
        Some(Scale::Share(_)) => scaled_to(&plan, 1.0),
        _ => plan.clone(),
    };
    let settings = grid::settings(&flags.grid, &some_rate).map_err(BenchError::Usage)?;
    check_length(flags, &plan, settings.len())?;
    let (name, about) =
        workload.map_or(("free", "as the flags say"), |known| (known.name, known.about));
    let mut record = Record::new(Occasion::now("forebay", String::new()), name, about);
    record.searched = flags.knee;
    let mut session = Session { flags, workload, plan, screen, done: 0, of: 1 };
    let early = session.everywhere(&mut record).err();
    if let Some(error @ BenchError::Usage(_)) = early {
        return Err(error);
    }
    let names = record.runs.iter().map(|run| run.broker.clone()).collect();
    record.occasion.broker = joined(names);
    Ok(Ended { record, early })
}

/// Refuses what nobody would wait for.
fn check_length(flags: &Flags, plan: &Plan, settings: usize) -> Result<(), BenchError> {
    let runs = match flags.knee {
        true => RUNS_MAX,
        false => settings * flags.repeat() + 3 * flags.judge,
    };
    let runs = runs * flags.url.len().max(1);
    let days = runs as f64 * (plan.warm_up + plan.seconds) / 86_400.0;
    if days > DAYS_MAX {
        return Err(BenchError::Usage(format!(
            "{runs} runs of {} s take {days:.0} days, and {DAYS_MAX} are the most: take fewer or shorter ones",
            plan.warm_up + plan.seconds
        )));
    }
    Ok(())
}

/// Some workloads say which share of the capacity they are, and some are measures of what goes.
fn check_scale(
    flags: &Flags,
    workload: Option<&'static Workload>,
    plan: &Plan,
) -> Result<(), BenchError> {
    let fitted = workload.is_some_and(|known| known.share_of_capacity.is_some());
    let wrong = match flags.scale {
        Some(Scale::Auto) if !fitted => {
            "--scale auto is for stress-1 to stress-5, which say what share of the capacity they are; say it: --scale 80%"
        }
        Some(Scale::Share(_)) if !fitted && workload.is_some() => {
            "--scale N% is for stress-1 to stress-5 and for loads without a name: this workload says itself how fast it goes"
        }
        Some(Scale::Times(_)) if plan.target_per_s().is_none() => {
            "--scale X takes a rate X times, and this load has none: it is as fast as it goes"
        }
        _ => return Ok(()),
    };
    Err(BenchError::Usage(wrong.to_owned()))
}

pub(super) fn check_peers(flags: &Flags) -> Result<(), BenchError> {
    if flags.peers && !RabbitMq::is_installed() {
        return Err(BenchError::Usage(
            "--peers: there is no RabbitMQ to start here (Debian's package rabbitmq-server has one)".into(),
        ));
    }
    Ok(())
}

/// RabbitMQ, if it was asked for.
pub(super) fn peers(flags: &Flags, screen: &mut dyn Screen) -> Result<Vec<Target>, BenchError> {
    if !flags.peers {
        return Ok(Vec::new());
    }
    let parent = flags.dir.clone().unwrap_or_else(std::env::temp_dir);
    screen.say("starting RabbitMQ");
    Target::rabbitmq(&parent).map_err(BenchError::Failed)
}

/// Names of brokers, each once.
pub(super) fn joined(mut names: Vec<String>) -> String {
    names.dedup();
    names.join(", ")
}

pub(super) fn targets(flags: &Flags, screen: &mut dyn Screen) -> Result<Vec<Target>, BenchError> {
    if !flags.url.is_empty() {
        return Target::at_each(&flags.url).map_err(BenchError::Usage);
    }
    let parent = flags.dir.clone().unwrap_or_else(std::env::temp_dir);
    let parent = std::path::absolute(&parent)
        .map_err(|error| BenchError::Usage(format!("--dir: {error}")))?;
    if is_in_memory(&parent) {
        screen.say(&format!(
            "{} lies in memory: what is written there is on no disk. --dir DIR names another place",
            parent.display()
        ));
    }
    Ok(vec![Target::serve(flags.forebay.clone(), parent).map_err(BenchError::Failed)?])
}

fn is_in_memory(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|found| IN_MEMORY.contains(&(found.f_type as u32)))
}

/// What a broker calls itself, with its type of queues and, of several, with where it is.
pub(super) fn introduce(plan: &Plan, target: &Target) -> Result<String, LoadError> {
    let mut name = topology::set_up(plan)?;
    topology::tear_down(plan)?;
    if let Some(kind) = &target.queue_type {
        name = format!("{name} {kind}");
    }
    Ok(match &target.place {
        Some(place) => format!("{name} at {place}"),
        None => name,
    })
}

struct Session<'a> {
    flags: &'a Flags,
    workload: Option<&'static Workload>,
    plan: Plan,
    screen: &'a mut dyn Screen,
    /// Runs that are over, of how many there will be as far as is known.
    done: usize,
    of: usize,
}

/// A broker, and the load that it gets.
struct At<'a> {
    target: &'a Target,
    plan: &'a Plan,
    capacity_per_s: Option<f64>,
}

impl Session<'_> {
    /// All brokers, one after the other.
    fn everywhere(&mut self, record: &mut Record) -> Result<(), BenchError> {
        let mut targets = targets(self.flags, self.screen)?;
        self.of = targets.len();
        for target in &mut targets {
            self.measure(target, record)?;
        }
        drop(targets);
        // Only now, so that no broker takes CPU from another.
        for target in &mut peers(self.flags, self.screen)? {
            self.measure(target, record)?;
        }
        Ok(())
    }

    /// Everything on one broker.
    fn measure(&mut self, target: &mut Target, record: &mut Record) -> Result<(), BenchError> {
        let plan = target.plan(&self.plan);
        target.label = introduce(&plan, target).map_err(failed)?;
        self.screen.say(&format!("{}{}", target.label, whose(target)));
        let (plan, capacity_per_s) = self.scaled(target, plan, record)?;
        if let Some(target_per_s) = plan.target_per_s() {
            let rate = plan.mean_rate().unwrap_or(0.0);
            self.screen.say(&format!(
                "  load: {} x {}/s = {}/s",
                publishers(plan.publishers),
                few(rate),
                few(target_per_s)
            ));
        }
        let at = At { target, plan: &plan, capacity_per_s };
        if self.flags.knee {
            return self.search(&at, record);
        }
        let mut settings = grid::settings(&self.flags.grid, &plan).map_err(BenchError::Usage)?;
        let (own, judge) = (Setting::of(&plan), self.flags.judge);
        if judge > 0 {
            // It has no part in the choice.
            settings.retain(|setting| *setting != own);
            record.judged_from = Some(self.flags.repeat());
        }
        self.of = self.done + settings.len() * self.flags.repeat() + 3 * judge;
        let mut random = Random::new(self.flags.seed);
        for repetition in 0..self.flags.repeat() {
            random.shuffle(&mut settings);
            for &setting in &settings {
                self.one(&at, setting, repetition, record)?;
            }
        }
        if judge == 0 {
            return Ok(());
        }
        let here = |points: &Points<'_>| points.broker == target.label;
        let rivals =
            Points::of(record).iter().rfind(|points| here(points)).and_then(Points::rivals);
        let Some((best, knee)) = rivals else { return Ok(()) };
        let mut turn = vec![best, knee];
        turn.dedup();
        turn.push(own);
        for round in 0..judge {
            random.shuffle(&mut turn);
            for &setting in &turn {
                self.one(&at, setting, self.flags.repeat() + round, record)?;
            }
        }
        Ok(())
    }

    /// Windows until the knee is found.
    fn search(&mut self, at: &At<'_>, record: &mut Record) -> Result<(), BenchError> {
        let own = Setting::of(at.plan);
        let tuned = own.window == Window::Auto;
        let mut search = Search::new(self.flags.repeat(), tuned, self.flags.seed);
        let mut repetitions = BTreeMap::new();
        let before = self.done;
        let (runs, seconds) = (search.runs_expected(), at.plan.warm_up + at.plan.seconds);
        self.screen.say(&format!(
            "  looking for the knee: about {runs} runs of {seconds:.0} s, {RUNS_MAX} at most"
        ));
        record.unfinished.push(at.target.label.clone());
        while let Some(window) = search.next() {
            self.of = before + search.runs_expected();
            let repetition = repetitions.entry(window).and_modify(|count| *count += 1).or_insert(0);
            let carried = self.one(at, Setting { window, ..own }, *repetition, record)?;
            search.learn(window, carried.unwrap_or(0.0));
        }
        record.unfinished.pop();
        Ok(())
    }

    /// The plan with the rate that it will have on this broker, and the capacity if that was asked for.
    fn scaled(
        &mut self,
        target: &Target,
        plan: Plan,
        record: &mut Record,
    ) -> Result<(Plan, Option<f64>), BenchError> {
        let share = match self.flags.scale(self.workload) {
            Scale::Times(times) => return Ok((scaled_by(&plan, times), None)),
            Scale::Share(share) => Some(share),
            Scale::Auto => self.workload.and_then(|workload| workload.share_of_capacity),
        };
        match share {
            None => Ok((plan, None)),
            Some(share) => {
                let load = capacity_plan(&plan);
                let report = self.phases(target, &[Phase { name: "capacity", plan: load }])?;
                let mut blocked = 0;
                let capacity_per_s = match &report[..] {
                    [(_, Outcome::Report(report))] => {
                        blocked = report.blocked;
                        if report.generator_was_the_bottleneck() {
                            self.screen.say(BOTTLENECK);
                            record.capacity_of_generator.push(target.label.clone());
                        }
                        report.source_per_s()
                    }
                    [(_, Outcome::Failed(why))] => return Err(BenchError::Failed(why.clone())),
                    _ => 0.0,
                };
                if capacity_per_s <= 0.0 {
                    return Err(BenchError::Failed(format!(
                        "the broker carried nothing while its capacity was measured; connection.blocked came {blocked} times"
                    )));
                }
                self.screen.say(&format!(
                    "  capacity {capacity_per_s:.0}/s (same shape, as fast as it goes); load {:.0} % of it",
                    share * 100.0
                ));
                Ok((scaled_to(&plan, share * capacity_per_s), Some(capacity_per_s)))
            }
        }
    }

    /// One setting once. What its last phase carried a second; `None`: it failed.
    fn one(
        &mut self,
        at: &At<'_>,
        setting: Setting,
        repetition: usize,
        record: &mut Record,
    ) -> Result<Option<f64>, BenchError> {
        let Setting { window, prefetch, ack_every } = setting;
        let ack = match ack_every {
            0 => "auto".to_owned(),
            every => every.to_string(),
        };
        let title = format!("window {window}, prefetch {prefetch}, ack {ack}");
        self.screen.begin(&title, self.done as f64 / self.of.max(1) as f64);
        let plan = setting.apply(at.plan);
        let phases = match self.workload {
            Some(workload) => workload.phases(&plan),
            None => vec![Phase { name: "", plan }],
        };
        let outcomes = self.phases(at.target, &phases)?;
        for (phase, outcome) in &outcomes {
            let comma = if phase.is_empty() { "" } else { ", " };
            let told = match outcome {
                Outcome::Report(report) => report.to_string(),
                Outcome::Failed(why) => format!("FAILED: {why}"),
            };
            self.screen.say(&format!("  {title}{comma}{phase}: {told}"));
            if outcome.report().is_some_and(Report::generator_was_the_bottleneck) {
                self.screen.say(BOTTLENECK);
            }
        }
        let last = outcomes.last().and_then(|(_, outcome)| outcome.report());
        let carried = last.map(Report::rate_per_s);
        for (phase, outcome) in outcomes {
            record.runs.push(Run {
                broker: at.target.label.clone(),
                phase: phase.to_owned(),
                setting,
                repetition,
                capacity_per_s: at.capacity_per_s,
                outcome,
            });
        }
        self.done += 1;
        Ok(carried)
    }

    /// Phases on the same queues, which are new for the first and deleted after the last.
    fn phases(
        &mut self,
        target: &Target,
        phases: &[Phase],
    ) -> Result<Vec<(&'static str, Outcome)>, BenchError> {
        let mark = Mark::fresh();
        let phases: Vec<Phase> = phases.iter().map(|phase| phase.of_run(mark)).collect();
        let Some(first) = phases.first() else { return Ok(Vec::new()) };
        if let Err(error) = topology::set_up(&first.plan) {
            return Ok(vec![(first.name, Outcome::Failed(error.to_string()))]);
        }
        let (mut outcomes, mut lying) = (Vec::new(), 0);
        for (number, phase) in phases.iter().enumerate() {
            match self.load(target, &Plan { lying, ..phase.plan.clone() }) {
                // Another phase needs all that this one was to publish.
                Ok(report)
                    if number + 1 < phases.len() && report.published < phase.plan.messages =>
                {
                    let (published, asked) = (report.published, phase.plan.messages);
                    let why = format!(
                        "it took {published} of {asked} messages in {:.0} s",
                        report.seconds
                    );
                    outcomes.push((phase.name, Outcome::Failed(why)));
                    break;
                }
                Ok(mut report) => {
                    lying = report.lying();
                    report.broker.clone_from(&target.label);
                    outcomes.push((phase.name, Outcome::Report(report)));
                }
                Err(error) => {
                    // A signal from the terminal ends a broker of our own, too, perhaps before we are told of it.
                    let progress = Progress { doing: "stopping", share: 1.0, last: None };
                    if matches!(error, LoadError::Stopped)
                        || self.screen.progress(progress).is_break()
                    {
                        self.clean_up(&first.plan);
                        return Err(BenchError::Stopped);
                    }
                    outcomes.push((phase.name, Outcome::Failed(error.to_string())));
                    break;
                }
            }
        }
        self.clean_up(&first.plan);
        Ok(outcomes)
    }

    fn clean_up(&mut self, plan: &Plan) {
        if let Err(error) = topology::tear_down(plan) {
            let (queue, more) = (plan.queue(0), plan.queues - 1);
            let others = if more > 0 { format!(" and {more} more") } else { String::new() };
            self.screen.say(&format!("  queue {queue}{others} could not be deleted: {error}"));
        }
    }

    /// One run of the generator, through the link if there is one.
    fn load(&mut self, target: &Target, plan: &Plan) -> Result<Report, LoadError> {
        let link = match self.flags.link() {
            true => Some(start_link(self.flags, &plan.url).map_err(LoadError::Broker)?),
            false => None,
        };
        let url = match &link {
            Some(link) => url_through(&plan.url, &link.address().to_string()),
            None => plan.url.clone(),
        };
        let stoppable = if target.own { target.pid } else { None };
        let mut watch = Onlooker { screen: self.screen, link, mbit: self.flags.mbit, stoppable };
        generator::load(&Plan { url, ..plan.clone() }, &mut watch)
    }
}

fn publishers(number: usize) -> String {
    let plural = if number == 1 { "publisher" } else { "publishers" };
    format!("{number} {plural}")
}

/// A rate, with digits behind the point where it would be 0 without.
fn few(per_s: f64) -> String {
    let digits = if per_s < 100.0 { 1 } else { 0 };
    format!("{per_s:.digits$}")
}

pub(super) fn failed(error: LoadError) -> BenchError {
    BenchError::Failed(error.to_string())
}

pub(super) fn whose(target: &Target) -> String {
    match (target.own, target.pid) {
        (true, Some(pid)) => format!(" of our own (process {pid}), stopped afterwards"),
        (false, Some(pid)) => {
            let name = process::name(pid).unwrap_or_default();
            format!(" on this machine (process {pid}, {name})")
        }
        _ => ", whose CPU and memory are not known here".to_owned(),
    }
}
