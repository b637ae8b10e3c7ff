//! An experiment on every broker, as often as was asked for.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use forebay_client::blocking::Connection;

use super::flags::{Flags, own_name};
use super::onlooker::start_link;
use super::record::Record;
use super::session::{BenchError, Ended, Screen, check_peers, failed, introduce, joined, peers};
use super::session::{targets, whose};
use super::target::Target;
use crate::experiment::{Experiment, Findings, Found, Place};
use crate::generator::Progress;
use crate::link::url_through;
use crate::occasion::Occasion;
use crate::plan::Plan;
use crate::stamp::Mark;

/// How long an experiment may take to hear that nobody waits for it.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// The screen is asked so often whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// Asks all brokers that the flags name.
pub(super) fn ask(
    experiment: &'static Experiment,
    flags: &Flags,
    screen: &mut dyn Screen,
) -> Result<Ended, BenchError> {
    flags.check_experiment(experiment).map_err(BenchError::Usage)?;
    check_peers(flags)?;
    let occasion = Occasion::now("forebay", String::new());
    let mut record = Record::new(occasion, experiment.name, experiment.about);
    record.asked = Some(flags.asked());
    let early = match experiment.alone {
        true => nowhere(experiment, flags, screen, &mut record),
        false => everywhere(experiment, flags, screen, &mut record),
    };
    record.occasion.broker =
        joined(record.found.iter().map(|found| found.broker.clone()).collect());
    Ok(Ended { record, early: early.err() })
}

fn nowhere(
    experiment: &'static Experiment,
    flags: &Flags,
    screen: &mut dyn Screen,
    record: &mut Record,
) -> Result<(), BenchError> {
    record.found.push(Found { broker: "without a broker".to_owned(), answers: Vec::new() });
    repeated(experiment, flags, &flags.nowhere(), screen, record)
}

fn everywhere(
    experiment: &'static Experiment,
    flags: &Flags,
    screen: &mut dyn Screen,
    record: &mut Record,
) -> Result<(), BenchError> {
    for target in targets(flags, screen)? {
        answer(experiment, flags, &target, screen, record)?;
    }
    for target in peers(flags, screen)? {
        answer(experiment, flags, &target, screen, record)?;
    }
    Ok(())
}

/// What one broker has to say.
fn answer(
    experiment: &'static Experiment,
    flags: &Flags,
    target: &Target,
    screen: &mut dyn Screen,
    record: &mut Record,
) -> Result<(), BenchError> {
    let queue_prefix = own_name(Mark::fresh());
    let plan = target.plan(&Plan { queues: 1, queue_prefix, ..Plan::default() });
    let broker = introduce(&plan, target).map_err(failed)?;
    screen.say(&format!("{broker}{}", whose(target)));
    let link = match flags.link() {
        true => Some(start_link(flags, &target.url).map_err(BenchError::Failed)?),
        false => None,
    };
    let url = match &link {
        Some(link) => url_through(&target.url, &link.address().to_string()),
        None => target.url.clone(),
    };
    record.found.push(Found { broker, answers: Vec::new() });
    repeated(experiment, flags, &flags.place(target, url), screen, record)
}

/// An answer, or why there is none, for each time that was asked for: added to the last of `record.found`.
fn repeated(
    experiment: &'static Experiment,
    flags: &Flags,
    place: &Place,
    screen: &mut dyn Screen,
    record: &mut Record,
) -> Result<(), BenchError> {
    for repetition in 0..flags.repeat() {
        let share = repetition as f64 / flags.repeat() as f64;
        screen.begin(experiment.name, share);
        let answer = once(experiment, place, share, screen);
        if !matches!(answer, Ok(Ok(_))) {
            clean_up(experiment, place);
        }
        if let Some(found) = record.found.last_mut() {
            found.answers.push(answer?);
        }
    }
    Ok(())
}

/// On a thread of its own, which hardly anybody waits for when the screen asks for the end.
fn once(
    experiment: &'static Experiment,
    place: &Place,
    share: f64,
    screen: &mut dyn Screen,
) -> Result<Result<Findings, String>, BenchError> {
    let (tell, told) = sync_channel(1);
    let there = place.clone();
    // Nobody may be there to hear it.
    std::thread::spawn(move || drop(tell.send(experiment.run(&there))));
    loop {
        match told.recv_timeout(LOOK) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Err("it ended without an answer".into()));
            }
        }
        let progress = Progress { doing: "measuring", share, last: None };
        if screen.progress(progress).is_break() {
            // Until it hears of that it may declare again what is deleted then.
            place.stop();
            let _ = told.recv_timeout(STOP_PATIENCE);
            return Err(BenchError::Stopped);
        }
    }
}

/// What an experiment that did not come to its end may have left. The broker may be gone, and they with it.
fn clean_up(experiment: &Experiment, place: &Place) {
    if place.url.is_empty() || experiment.queues.is_empty() {
        return;
    }
    let Ok(connection) = Connection::open(&place.url) else { return };
    for queue in experiment.queues {
        if let Ok(mut channel) = connection.channel() {
            let _ = channel.delete_queue(&place.queue(queue));
        }
    }
    let _ = connection.close();
}
