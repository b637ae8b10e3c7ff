//! The picture as lines of text, for a terminal or a file.

use std::collections::VecDeque;

use forebay::pipeline::explain::printable;

use super::picture::{GateRow, Picture, QueueRow};
use super::words;
use crate::figures::{duration, megabytes, thousands};

/// Points of a sparkline.
const SPARKLINE_POINTS: usize = 30;
/// Bars of a sparkline, lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Queues that are shown even if the window is low.
const QUEUES_MIN: usize = 3;
/// A window that nobody can look into is taken for this.
const COLUMNS_MIN: usize = 40;

/// What there is to draw on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) columns: usize,
    /// `None`: as many lines as it takes.
    pub(super) lines: Option<usize>,
}

/// The rates of the last half minute.
#[derive(Debug, Default)]
pub(super) struct History {
    published: VecDeque<f64>,
    delivered: VecDeque<f64>,
}

impl History {
    /// Takes in what happened since the last time.
    pub(super) fn note(&mut self, picture: &Picture) {
        for (points, rate) in [
            (&mut self.published, picture.published_per_s),
            (&mut self.delivered, picture.delivered_per_s),
        ] {
            if points.len() == SPARKLINE_POINTS {
                points.pop_front();
            }
            points.push_back(rate);
        }
    }
}

/// Everything, a line each, none wider than the window.
pub(super) fn lines(picture: &Picture, history: &History, broker: &str, size: Size) -> Vec<String> {
    let mut lines = vec![
        format!(
            "Forebay {} at {broker}, up {}; {} connections, {} consumers",
            picture.version,
            uptime(picture.uptime_s),
            thousands(picture.connections),
            thousands(picture.consumers)
        ),
        String::new(),
        rate("published", picture.published_per_s, &history.published),
        rate("delivered", picture.delivered_per_s, &history.delivered),
        format!(
            "  {:<13}{:>11}/s   acknowledged {}/s",
            "confirmed",
            whole(picture.confirmed_per_s),
            whole(picture.acknowledged_per_s)
        ),
        format!("  {:<13}{}", "to disk", disk(picture)),
        format!(
            "  {:<13}{} of messages; at {} publishers wait",
            "memory",
            megabytes(picture.memory_bytes),
            megabytes(picture.memory_max_bytes)
        ),
    ];
    if let Some(alarm) = &picture.alarm {
        lines.push(format!("  ALARM: {alarm}; publishers were told to stop (connection.blocked)"));
    }
    lines.push(String::new());
    lines.extend(waits(&picture.waits));
    lines.push(String::new());
    let room = size.lines.map_or(usize::MAX, |lines_max| lines_max.saturating_sub(lines.len()));
    lines.extend(queues(picture, room));
    let columns = size.columns.max(COLUMNS_MIN);
    for line in &mut lines {
        // Names are the clients', and a terminal would do what stands in them.
        *line = printable(line);
        if let Some((end, _)) = line.char_indices().nth(columns) {
            line.truncate(end);
        }
    }
    lines.truncate(size.lines.unwrap_or(usize::MAX));
    lines
}

fn rate(name: &str, per_s: f64, points: &VecDeque<f64>) -> String {
    let top = points.iter().copied().fold(1.0, f64::max);
    let bar = |point: &f64| BARS[((point / top * 7.0).round() as usize).min(7)];
    let drawn: String = points.iter().map(bar).collect();
    format!("  {name:<13}{:>11}/s   {drawn}", whole(per_s))
}

fn disk(picture: &Picture) -> String {
    let waited = match (picture.sync_p50_us, picture.sync_p99_us) {
        (Some(p50_us), Some(p99_us)) => {
            format!("p50 {}, p99 {} from publish to sync; ", duration(p50_us), duration(p99_us))
        }
        _ => "nobody waited for a sync; ".to_owned(),
    };
    let commits = whole(picture.commits_per_s);
    format!("{waited}{commits} syncs/s of {}", duration(picture.commit_us))
}

fn waits(gates: &[GateRow]) -> Vec<String> {
    if gates.is_empty() {
        return vec!["NOBODY WAITS".to_owned()];
    }
    let mut lines = vec![
        "WHO WAITS FOR WHOM            seconds a second: 1.00 is one of them, all the time"
            .to_owned(),
    ];
    for gate in gates {
        match &gate.edges[..] {
            [only] if gate.waiters == 1 => {
                let words = words::one(&gate.gate, &gate.waits_for, &only.waiter);
                lines.push(format!("  {:>7.2} s/s  {words}", gate.s_per_s));
            }
            edges => {
                let words = words::many(&gate.gate, &gate.waits_for, gate.waiters.max(1));
                lines.push(format!("  {:>7.2} s/s  {words}", gate.s_per_s));
                for edge in edges {
                    let name = words::name(&edge.waiter);
                    lines.push(format!("               {:.2} s/s  {name}", edge.s_per_s));
                }
            }
        }
    }
    lines
}

fn queues(picture: &Picture, room: usize) -> Vec<String> {
    let all = picture.queues.len() as u64 + picture.queues_left_out;
    if all == 0 {
        return vec!["NO QUEUES".to_owned()];
    }
    let mut lines = vec![format!(
        "QUEUES {:<22}{:>10}{:>10}{:>12}{:>10}{:>10}",
        format!("({}), fullest first", thousands(all)),
        "in/s",
        "out/s",
        "ready",
        "unacked",
        "consumers"
    )];
    // A line of its own for those that do not fit, and the heading.
    let shown = room.saturating_sub(2).max(QUEUES_MIN).min(picture.queues.len());
    lines.extend(picture.queues[..shown].iter().map(queue));
    let rest = all - shown as u64;
    if rest > 0 {
        lines.push(format!("  and {} more", thousands(rest)));
    }
    lines
}

fn queue(row: &QueueRow) -> String {
    let mut name =
        if row.vhost == "/" { row.name.clone() } else { format!("{} in {}", row.name, row.vhost) };
    if let Some((end, _)) = name.char_indices().nth(26) {
        name.truncate(end);
        name.push('…');
    }
    let mut line = format!(
        "  {name:<27}{:>10}{:>10}{:>12}{:>10}{:>10}",
        whole(row.in_per_s),
        whole(row.out_per_s),
        thousands(row.ready),
        thousands(row.unacked),
        thousands(row.consumers)
    );
    // To absorb is what a queue does unless it is told otherwise.
    if row.flow == "balance" {
        line.push_str(match &*row.flow_state {
            "holding" => "  balance, held",
            _ => "  balance, open",
        });
    }
    if row.on_disk_only > 0 {
        line.push_str(&format!("  {} only on disk", thousands(row.on_disk_only)));
    }
    line
}

fn whole(per_s: f64) -> String {
    thousands(per_s.round() as u64)
}

fn uptime(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::super::look::Waiter;
    use super::super::picture::EdgeRow;
    use super::*;

    fn connection(id: u64) -> Waiter {
        Waiter::Connection { id, address: format!("10.0.0.{id}:4000"), user: "shop".into() }
    }

    fn gate(
        gate: &str,
        waits_for: &str,
        s_per_s: f64,
        waiters: usize,
        edges: Vec<Waiter>,
    ) -> GateRow {
        let share = s_per_s / waiters.max(1) as f64;
        let edges = edges.into_iter().map(|waiter| EdgeRow { waiter, s_per_s: share }).collect();
        let (gate, waits_for) = (gate.to_owned(), waits_for.to_owned());
        GateRow { gate, waits_for, s_per_s, waiting: 0, waiters, edges }
    }

    fn picture() -> Picture {
        let orders = Waiter::Queue { vhost: "/".into(), name: "orders".into() };
        let queue = |name: &str, ready| QueueRow {
            vhost: "/".into(),
            name: name.into(),
            in_per_s: 1200.4,
            out_per_s: 800.0,
            ready,
            unacked: 250,
            on_disk_only: 0,
            consumers: 4,
            flow: "absorb".into(),
            flow_state: "absorbing".into(),
            standing_wait_us: 0,
        };
        Picture {
            version: "0.1.0".into(),
            uptime_s: 7380,
            alarm: None,
            connections: 1003,
            consumers: 4,
            published_per_s: 1200.4,
            confirmed_per_s: 1100.0,
            delivered_per_s: 800.0,
            acknowledged_per_s: 799.6,
            ready: 12_000,
            unacked: 250,
            memory_bytes: 12_300_000,
            memory_max_bytes: 256_000_000,
            commits_per_s: 410.0,
            commit_us: 1900,
            sync_p50_us: Some(2047),
            sync_p99_us: Some(6143),
            queues: vec![
                queue("orders", 12_000),
                queue("a.queue.with.a.name.that.does.not.end", 3),
            ],
            queues_left_out: 0,
            waits: vec![
                gate("batch", "disk", 8.2, 10, vec![connection(1), connection(2), connection(3)]),
                gate("credit", "consumers", 0.98, 1, vec![orders]),
                gate("memory", "memory", 0.82, 1, vec![connection(7)]),
            ],
        }
    }

    const WIDE: Size = Size { columns: 100, lines: None };

    fn shown(picture: &Picture, size: Size) -> String {
        let mut history = History::default();
        history.note(picture);
        lines(picture, &history, "127.0.0.1:15672", size).join("\n")
    }

    #[test]
    fn it_says_in_plain_words_who_waits_for_whom() {
        let text = shown(&picture(), WIDE);
        let expected = "\
Forebay 0.1.0 at 127.0.0.1:15672, up 2 h 3 min; 1,003 connections, 4 consumers

  published          1,200/s   █
  delivered            800/s   █
  confirmed          1,100/s   acknowledged 800/s
  to disk      p50 2.0 ms, p99 6.1 ms from publish to sync; 410 syncs/s of 1.9 ms
  memory       12.3 MB of messages; at 256.0 MB publishers wait

WHO WAITS FOR WHOM            seconds a second: 1.00 is one of them, all the time
     8.20 s/s  10 publishers wait for the disk: the log cannot be written faster
               0.82 s/s  connection 10.0.0.1:4000 (shop)
               0.82 s/s  connection 10.0.0.2:4000 (shop)
               0.82 s/s  connection 10.0.0.3:4000 (shop)
     0.98 s/s  messages of queue orders wait for consumers to acknowledge what they hold
     0.82 s/s  the publisher on connection 10.0.0.7:4000 (shop) waits for memory: the budget is full

QUEUES (2), fullest first          in/s     out/s       ready   unacked consumers
  orders                          1,200       800      12,000       250         4
  a.queue.with.a.name.that.d…     1,200       800           3       250         4";
        assert_eq!(text, expected, "\n{text}\n");
    }

    #[test]
    fn a_broker_at_rest_says_so() {
        let mut picture = picture();
        picture.waits.clear();
        picture.queues.clear();
        (picture.sync_p50_us, picture.sync_p99_us) = (None, None);
        let text = shown(&picture, WIDE);
        for line in ["NOBODY WAITS", "NO QUEUES", "nobody waited for a sync"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("ALARM"));
    }

    #[test]
    fn a_queue_that_balances_says_whether_it_holds_its_publishers() {
        let mut picture = picture();
        picture.queues[0].flow = "balance".into();
        assert!(shown(&picture, WIDE).contains("         4  balance, open\n"));
        picture.queues[0].flow_state = "holding".into();
        let text = shown(&picture, WIDE);
        assert!(text.contains("         4  balance, held\n"), "{text}");
        assert_eq!(text.matches("balance").count(), 1, "the other one absorbs");
    }

    #[test]
    fn an_alarm_stands_out() {
        let mut picture = picture();
        picture.alarm = Some("low on disk".into());
        assert!(shown(&picture, WIDE).contains("\n  ALARM: low on disk; publishers were told"));
    }

    #[test]
    fn it_keeps_within_its_window_and_counts_what_does_not_fit() {
        let mut picture = picture();
        let row = picture.queues[0].clone();
        picture.queues = vec![row; 50];
        picture.queues_left_out = 1950;
        for (columns, rows) in [(60, 24), (80, 30), (1, 10), (200, 2)] {
            let text = shown(&picture, Size { columns, lines: Some(rows) });
            assert!(text.lines().count() <= rows);
            assert!(text.lines().all(|line| line.chars().count() <= columns.max(COLUMNS_MIN)));
        }
        let text = shown(&picture, Size { columns: 80, lines: Some(30) });
        assert!(text.contains("QUEUES (2,000)"), "{text}");
        let shown = text.lines().filter(|line| line.starts_with("  orders ")).count();
        assert!(
            text.ends_with(&format!("  and {} more", thousands(2000 - shown as u64))),
            "{text}"
        );
    }

    #[test]
    fn a_terminal_does_nothing_that_stands_in_a_name() {
        let mut picture = picture();
        let name = "\u{1b}[2J\u{9b}5m\r\n\u{7f}";
        picture.queues[0].name = name.into();
        picture.queues[0].vhost = name.into();
        let waiter = Waiter::Queue { vhost: name.into(), name: name.into() };
        picture.waits = vec![gate("no_consumer", "consumers", 1.0, 1, vec![waiter])];
        let lines = lines(&picture, &History::default(), "here", WIDE);
        assert!(!lines.iter().any(|line| line.contains(char::is_control)), "{lines:?}");
        let queue = "queue \u{FFFD}[2J\u{FFFD}5m\u{FFFD}\u{FFFD}\u{FFFD} in \u{FFFD}[2J";
        assert!(lines.iter().any(|line| line.contains(queue)), "{lines:?}");
        assert_eq!(serde_json::to_value(&picture).unwrap()["queues"][0]["name"], name);
    }
}
