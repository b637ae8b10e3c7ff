//! What a message costs in a pipeline that does nothing with it: one thread, an iterator as the source, no broker.

use std::time::Instant;

use forebay_pipeline::explain::Marks;
use forebay_pipeline::{Item, Pipeline, source};

use super::{Case, Demand, Findings, Place, block_on_here, told};
use crate::process::own_thread_cpu_seconds;
use crate::spread::median;

/// Of each measurement, unless `--messages` says something else.
const MESSAGES: u64 = 500_000;
/// In turns, so that what disturbs one disturbs the others.
const ROUNDS: usize = 7;
const WORKERS: [usize; 2] = [1, 25];
const KEYS: u64 = 1_000;
const EXPLAINED_EVERY: u64 = 100;
/// Microseconds of the processor, and messages a second, on one core.
const COST_US_MAX: f64 = 1.0;
const RATE_PER_S_MIN: f64 = 500_000.0;

/// What the pipeline is asked to do beside handing messages to a handler.
#[derive(Clone, Copy)]
enum Beside {
    Nothing,
    Ordering,
    Explaining,
}

/// One measurement, of a message each.
struct Cost {
    elapsed_us: f64,
    cpu_us: f64,
}

pub(super) fn run(place: &Place) -> Result<Findings, String> {
    let messages = place.messages.unwrap_or(MESSAGES).max(1);
    let kinds = [
        (Beside::Nothing, String::new()),
        (Beside::Ordering, format!(", ordered by {KEYS} keys")),
        (Beside::Explaining, format!(", one in {EXPLAINED_EVERY} explained")),
    ];
    let mut measured = Vec::new();
    for workers in WORKERS {
        for (beside, what) in &kinds {
            let several = if workers == 1 { "" } else { "s" };
            measured.push((
                workers,
                *beside,
                format!("{workers} worker{several}{what}"),
                Vec::new(),
            ));
        }
    }
    for _ in 0..ROUNDS {
        for (workers, beside, _, costs) in &mut measured {
            costs.push(cost(messages, *workers, *beside)?);
        }
    }
    let mut findings = Findings::default();
    for (_, _, name, costs) in measured {
        let cpu_us: Vec<f64> = costs.iter().map(|cost| cost.cpu_us).collect();
        let per_s: Vec<f64> = costs.iter().map(|cost| 1e6 / cost.elapsed_us).collect();
        let of = |values: &[f64]| median(values).unwrap_or(f64::NAN);
        let demand =
            Demand::at_most(&format!("CPU of a message, {name}"), of(&cpu_us), COST_US_MAX, "µs");
        findings.demands.push(demand);
        let demand = Demand::at_least(
            &format!("messages through one core, {name}"),
            of(&per_s),
            RATE_PER_S_MIN,
            "/s",
        );
        findings.demands.push(demand);
        let case = Case::new(name).with_spread("CPU a message", &cpu_us, "µs");
        findings.cases.push(case.with("messages", of(&per_s), "/s"));
    }
    Ok(findings)
}

fn cost(messages: u64, workers: usize, beside: Beside) -> Result<Cost, String> {
    block_on_here(async {
        let pipeline =
            Pipeline::from(source::iter(0..messages)).process(workers, async |_: Item<u64>| {});
        let pipeline = match beside {
            Beside::Nothing => pipeline,
            Beside::Ordering => pipeline.ordered_by(|number| number % KEYS),
            Beside::Explaining => pipeline.explain(EXPLAINED_EVERY, |_| Marks::new()),
        };
        let (began, cpu_s) = (Instant::now(), own_thread_cpu_seconds());
        let report = pipeline.run().await.map_err(told)?;
        if report.acked != messages {
            return Err(format!("{} of {messages} messages were done", report.acked));
        }
        let each = |seconds: f64| seconds * 1e6 / messages as f64;
        Ok(Cost {
            elapsed_us: each(began.elapsed().as_secs_f64()),
            cpu_us: each(own_thread_cpu_seconds() - cpu_s),
        })
    })
}
