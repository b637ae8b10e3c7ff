//! Whoever looks on while a load runs: passes progress on, and disturbs link and broker.

use std::ops::ControlFlow;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::flags::Flags;
use super::session::Screen;
use crate::generator::{Progress, Watch};
use crate::link::{Conditions, LinkProxy, address_of};
use crate::step::StepKind;

/// A broker of our own stands still for so many seconds at most; the flags' check refuses more.
pub(super) const STALL_SECONDS_MAX: f64 = 60.0;

pub(super) struct Onlooker<'a> {
    pub(super) screen: &'a mut dyn Screen,
    pub(super) link: Option<LinkProxy>,
    pub(super) mbit: Option<f64>,
    /// The process that may be made to stand still.
    pub(super) stoppable: Option<u32>,
}

impl Watch for Onlooker<'_> {
    fn progress(&mut self, progress: Progress<'_>) -> ControlFlow<()> {
        self.screen.progress(progress)
    }

    fn step(&mut self, what: StepKind) -> Result<(), String> {
        match what {
            StepKind::Consumers(_) => Ok(()), // the generator does it
            StepKind::RttMs(ms) => match &self.link {
                Some(link) => {
                    link.set(conditions(ms, self.mbit)).map_err(|error| error.to_string())
                }
                None => Err("there is no link to change".into()),
            },
            StepKind::StallSeconds(seconds) => {
                let pid = self.stoppable.and_then(|pid| Pid::from_raw(pid as i32));
                let pid =
                    pid.ok_or("only a broker of our own is made to stand still: leave out --url")?;
                let signal = move |signal| {
                    kill_process(pid, signal)
                        .map_err(|error| format!("cannot stop the broker: {error}"))
                };
                signal(Signal::STOP)?;
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_secs_f64(seconds));
                    // It may have been killed meanwhile.
                    let _ = signal(Signal::CONT);
                });
                Ok(())
            }
        }
    }
}

fn conditions(rtt_ms: f64, mbit: Option<f64>) -> Conditions {
    let bytes_per_s = mbit.map(|mbit| (mbit * 125_000.0).max(1.0) as u64);
    Conditions { rtt_us: (rtt_ms * 1e3) as u64, jitter_us: 0, bytes_per_s }
}

/// The link that the flags ask for, to a URL.
pub(super) fn start_link(flags: &Flags, url: &str) -> Result<LinkProxy, String> {
    let conditions = conditions(flags.rtt.unwrap_or(0.0), flags.mbit);
    LinkProxy::start(address_of(url)?, conditions).map_err(|error| error.to_string())
}
