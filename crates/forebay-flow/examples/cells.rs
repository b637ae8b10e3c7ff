//! Prints the simulation of docs/decisions/0015-publisher-window.md, which shows some of its rows: each cell with the best fixed window, the
//! knee, and every algorithm.
//!
//! ```text
//! cargo run --release -p forebay-flow --example cells            costs of a broker of 60 000 msg/s
//! cargo run --release -p forebay-flow --example cells measured   costs of ours, messages of 200 bytes
//! ```

#[path = "../tests/model/mod.rs"]
mod model;

use forebay_flow::{
    Aimd, Amount, BrokerKind, Fixed, Gradient2, Pfw, PfwOptions, VISIT_BYTES, Vegas, Window,
};
use model::{Cell, Costs, Outcome, run};

const GRID: [u32; 17] =
    [1, 2, 3, 5, 8, 13, 20, 25, 50, 100, 200, 300, 500, 1_000, 2_000, 4_000, 8_000];

fn cells() -> Vec<(&'static str, Cell)> {
    let cell = |flows, rate_per_s, rtt_us, fsync_us| Cell {
        flows,
        rate_per_s,
        rtt_us: vec![(0, rtt_us)],
        fsync_us: vec![(0, fsync_us)],
        end_us: 15_000_000,
        warm_us: 5_000_000,
        ..Cell::default()
    };
    vec![
        ("20 x 1000/s", cell(20, 1_000.0, 200, 1_000)),
        ("20 x 2000/s", cell(20, 2_000.0, 200, 1_000)),
        ("1000 x 100/s", cell(1_000, 100.0, 200, 1_000)),
        ("20 x 5000/s", cell(20, 5_000.0, 200, 1_000)),
        ("1, RTT 0.1 ms", cell(1, f64::INFINITY, 100, 1_000)),
        ("1, RTT 10 ms", cell(1, f64::INFINITY, 10_000, 1_000)),
        ("1, RTT 33 ms", cell(1, f64::INFINITY, 33_000, 1_000)),
        ("1, RTT 100 ms", cell(1, f64::INFINITY, 100_000, 1_000)),
        ("20, RTT 10 ms", cell(20, f64::INFINITY, 10_000, 1_000)),
        ("20, RTT 100 ms", cell(20, f64::INFINITY, 100_000, 1_000)),
        ("20, fsync 0.05 ms", cell(20, 5_000.0, 200, 50)),
        ("20, fsync 8 ms", cell(20, 5_000.0, 200, 8_000)),
        ("20, fsync 30 ms", cell(20, 5_000.0, 200, 30_000)),
        ("1, fsync 30 ms", cell(1, f64::INFINITY, 100, 30_000)),
    ]
}

/// What `forebay-costs` found. Ten times as many messages a second, so fewer seconds.
fn measured_cells() -> Vec<(&'static str, Cell)> {
    let cell = |flows, rtt_us, fsync_us| Cell {
        flows,
        rtt_us: vec![(0, rtt_us)],
        fsync_us: vec![(0, fsync_us)],
        costs: Costs { visit_us: 9.7, message_us: 1.2, commit_message_us: 0.1 },
        end_us: 5_000_000,
        warm_us: 2_500_000,
        ..Cell::default()
    };
    vec![
        ("1, RTT 0.1 ms", cell(1, 100, 100)),
        ("1, RTT 10 ms", cell(1, 10_000, 100)),
        ("20, RTT 0.1 ms", cell(20, 100, 100)),
        ("20, RTT 10 ms", cell(20, 10_000, 100)),
        ("20, fsync 8 ms", cell(20, 100, 8_000)),
        ("1000, RTT 0.1 ms", cell(1_000, 100, 100)),
    ]
}

fn print(outcome: &Outcome) {
    print!(" {:5.1}/{:<6.1}|", outcome.per_s() / 1e3, outcome.latency_ms(0.99));
}

fn main() {
    let any = Amount::new(20_000, u64::MAX);
    println!(
        "thousand messages a second / p99 in ms; pfw: share of the best, and p99 over the knee's"
    );
    println!(
        "{:18}| best fixed   | knee             | aimd 50 ms   | vegas        | gradient2    | pfw",
        ""
    );
    let measured = std::env::args().nth(1).is_some_and(|costs| costs == "measured");
    for (name, cell) in if measured { measured_cells() } else { cells() } {
        let fixed: Vec<(u32, Outcome)> = GRID
            .iter()
            .map(|&w| (w, run(&cell, |_| Box::new(Fixed::new(Amount::new(w, u64::MAX))))))
            .collect();
        let best = fixed.iter().map(|(_, o)| o.per_s()).fold(0.0, f64::max);
        let (at, knee) = fixed
            .iter()
            .filter(|(_, o)| o.per_s() >= 0.95 * best)
            .min_by(|a, b| a.1.latency_ms(0.99).total_cmp(&b.1.latency_ms(0.99)))
            .expect("the best itself");
        print!("{name:18}| {:5.1}        | {at:4}", best / 1e3);
        print(knee);
        let windows: [&dyn Fn(u64) -> Box<dyn Window>; 4] = [
            &|_| Box::new(Aimd::new(50_000, any)),
            &|_| Box::new(Vegas::new(any)),
            &|_| Box::new(Gradient2::new(any)),
            &|seed| {
                let mut pfw = Pfw::new(PfwOptions { seed, ..PfwOptions::default() });
                if measured {
                    pfw.broker(BrokerKind::FairVisits { bytes: VISIT_BYTES as u64 });
                }
                Box::new(pfw)
            },
        ];
        for window in windows {
            print(&run(&cell, window));
        }
        let pfw = run(&cell, windows[3]);
        println!(
            " {:.0} % {:.2}x  cold {:.0} %  cv {:.2} jain {:.2} W {}",
            100.0 * pfw.per_s() / best,
            pfw.latency_ms(0.99) / knee.latency_ms(0.99),
            100.0 * pfw.per_s_between(0, 5_000_000) / pfw.per_s(),
            pfw.variation(),
            pfw.fairness(),
            pfw.window_messages
        );
    }
}
