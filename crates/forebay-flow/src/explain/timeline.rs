//! Messages as bars: how long each waited, and how long it was worked on. For terminals and as SVG.
//!
//! ```text
//!   consumer 1, worker 4  ░░░░░░░░░░░░░░░░████████████████
//!   consumer 2, worker 1  ████████████████
//!                         0               500              1000 ms
//! ```

use std::fmt::Write;

use super::text::printable;

/// Bars of one drawing; of more, those that took longest, waiting and working, are drawn.
pub const BARS_MAX: usize = 25;

/// What a message is held back by, beside those before it.
const HELD: &str = "retries, breaker";

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    /// Who worked on it, for people; drawn without control characters.
    pub name: String,
    /// When it could have begun.
    pub came_us: u64,
    /// Of that wait, so long for attempts that failed, pauses, and an open circuit breaker; drawn as its end.
    pub held_us: u64,
    /// When it did; not before it came.
    pub begun_us: u64,
    /// When it was done; not before it began.
    pub done_us: u64,
}

impl Bar {
    fn length_us(&self) -> u64 {
        self.done_us.saturating_sub(self.came_us)
    }

    fn held_from_us(&self) -> u64 {
        self.begun_us.saturating_sub(self.held_us).max(self.came_us)
    }
}

/// Bars under a title, in the order in which work on them began. Times are shown from the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    title: String,
    bars: Vec<Bar>,
    left_out: usize,
    from_us: u64,
    until_us: u64,
}

impl Timeline {
    /// Of `bars`, at most [`BARS_MAX`].
    #[must_use]
    pub fn new(title: impl Into<String>, mut bars: Vec<Bar>) -> Timeline {
        bars.sort_by_key(|bar| std::cmp::Reverse(bar.length_us()));
        let left_out = bars.len().saturating_sub(BARS_MAX);
        bars.truncate(BARS_MAX);
        for bar in &mut bars {
            bar.name = printable(&bar.name);
        }
        bars.sort_by(|a, b| (a.begun_us, &a.name).cmp(&(b.begun_us, &b.name)));
        let from_us = bars.iter().map(|bar| bar.came_us).min().unwrap_or(0);
        let until_us = bars.iter().map(|bar| bar.done_us).max().unwrap_or(0);
        Timeline {
            title: title.into(),
            bars,
            left_out,
            from_us,
            until_us: until_us.max(from_us + 1),
        }
    }

    /// The same of more that are not drawn because they took less.
    #[must_use]
    pub fn and_others(mut self, others: usize) -> Timeline {
        self.left_out = self.left_out.saturating_add(others);
        self
    }

    /// For a terminal: a line a bar, `columns` long at most, at least 40.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let names = self.names();
        let width = columns.max(40).saturating_sub(names + 4).max(10);
        let span_us = self.until_us - self.from_us;
        // What took any time has a column.
        let column = |at_us: u64| {
            ((at_us.saturating_sub(self.from_us)) as u128 * width as u128 / u128::from(span_us))
                as usize
        };
        let mut text = format!("  {}\n", self.title);
        for bar in &self.bars {
            let begun = column(bar.begun_us).min(width - 1);
            let came = column(bar.came_us).min(begun);
            let done = column(bar.done_us).clamp(begun + 1, width);
            let held = column(bar.held_from_us()).clamp(came, begun);
            let (waited, held) = ("░".repeat(held - came), "▒".repeat(begun - held));
            let (before, worked) = (" ".repeat(came), "█".repeat(done - begun));
            let _ = writeln!(text, "  {:<names$}  {before}{waited}{held}{worked}", bar.name);
        }
        let _ = writeln!(text, "  {:<names$}  {}", "", self.scale(width));
        let held = if self.is_held() { format!("▒ {HELD}  ") } else { String::new() };
        let _ = writeln!(text, "  {:<names$}  ░ waiting  {held}█ working{}", "", self.rest());
        text
    }

    /// The ticks below the bars of a terminal.
    fn scale(&self, width: usize) -> String {
        let span_us = self.until_us - self.from_us;
        let mut scale = String::new();
        for tick_us in ticks(span_us, (width / 12).max(1) as u64) {
            let at = (u128::from(tick_us) * width as u128 / u128::from(span_us)) as usize;
            let label = milliseconds(tick_us);
            let used = scale.chars().count();
            if at >= used + usize::from(used > 0) && at + label.len() <= width {
                let _ = write!(scale, "{}{label}", " ".repeat(at - used));
            }
        }
        scale + " ms"
    }

    fn is_held(&self) -> bool {
        self.bars.iter().any(|bar| bar.held_us > 0)
    }

    fn names(&self) -> usize {
        self.bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0)
    }

    fn rest(&self) -> String {
        match self.left_out {
            0 => String::new(),
            others => format!("  (and {others} that took less)"),
        }
    }
}

/// Multiples of 1, 2 or 5 times a power of ten, from 0 to `span_us`, about `most` of them.
fn ticks(span_us: u64, most: u64) -> impl Iterator<Item = u64> {
    let step_us = (0..18)
        .flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)))
        .find(|step_us| span_us / step_us <= most)
        .unwrap_or(span_us.max(1));
    (0..=span_us / step_us).map(move |number| number * step_us)
}

fn milliseconds(us: u64) -> String {
    if us.is_multiple_of(1_000) { (us / 1_000).to_string() } else { (us as f64 / 1e3).to_string() }
}

const NAMES_PX: u64 = 170;
const BARS_PX: u64 = 700;
const ROW_PX: u64 = 14;
const TITLE_PX: u64 = 34;
const SCALE_PX: u64 = 30;
const LEGEND_PX: u64 = 28;

/// Timelines below each other, with one scale, as a picture that stands alone: for light and dark grounds, and for eyes
/// that tell colours apart badly.
#[must_use]
pub fn svg(timelines: &[Timeline]) -> String {
    let rows: u64 = timelines.iter().map(|each| each.bars.len() as u64).sum();
    let height = rows * ROW_PX + timelines.len() as u64 * (TITLE_PX + SCALE_PX) + LEGEND_PX;
    let width = NAMES_PX + BARS_PX + 30;
    let span_us = timelines.iter().map(|each| each.until_us - each.from_us).max().unwrap_or(1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"timeline\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n<style>\n\
         .timeline text {{ font: 11px system-ui, sans-serif; fill: #333 }}\n\
         .timeline .title {{ font-size: 13px; font-weight: 600 }}\n\
         .timeline .waited {{ fill: #e69f00; fill-opacity: .55 }}\n.timeline .held {{ fill: #cc79a7 }}\n\
         .timeline .worked {{ fill: #0072b2 }}\n\
         .timeline line {{ stroke: #888; stroke-opacity: .35 }}\n\
         @media (prefers-color-scheme: dark) {{ .timeline text {{ fill: #ddd }} .timeline .worked {{ fill: #56b4e9 }} }}\n\
         </style>\n"
    );
    let mut top = 0;
    for timeline in timelines {
        timeline.draw(&mut svg, &mut top, span_us);
    }
    let baseline = top + 18;
    let mut legend = vec![("waited", "waiting"), ("worked", "working")];
    if timelines.iter().any(Timeline::is_held) {
        legend.push(("held", HELD));
    }
    for (index, (class, word)) in legend.iter().enumerate() {
        let left = NAMES_PX + index as u64 * 90;
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{left}\" y=\"{}\" width=\"14\" height=\"10\"/>\
             <text x=\"{}\" y=\"{baseline}\">{word}</text>",
            baseline - 9,
            left + 20
        );
    }
    svg.push_str("</svg>\n");
    svg
}

impl Timeline {
    /// From `top` on, which it moves to its end.
    fn draw(&self, svg: &mut String, top: &mut u64, span_us: u64) {
        let x = |at_us: u64| {
            let us = at_us.saturating_sub(self.from_us) as f64;
            NAMES_PX as f64 + us / span_us as f64 * BARS_PX as f64
        };
        let first = *top + TITLE_PX;
        let bottom = first + self.bars.len() as u64 * ROW_PX;
        let title = escaped(&(self.title.clone() + &self.rest()));
        let _ = writeln!(svg, "<text class=\"title\" x=\"8\" y=\"{}\">{title}</text>", *top + 22);
        for tick_us in ticks(span_us, 10) {
            let at = x(self.from_us + tick_us);
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{}\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{} ms</text>",
                first - 2,
                bottom + 4,
                bottom + 18,
                milliseconds(tick_us)
            );
        }
        for (bar, row) in self.bars.iter().zip(0..) {
            let y = first + row * ROW_PX;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                NAMES_PX - 8,
                y + 10,
                escaped(&bar.name)
            );
            for (class, from_us, until_us, least) in [
                ("waited", bar.came_us, bar.held_from_us(), 0.0),
                ("held", bar.held_from_us(), bar.begun_us, 0.0),
                ("worked", bar.begun_us, bar.done_us, 1.0),
            ] {
                let (left, length) = (x(from_us), (x(until_us) - x(from_us)).max(least));
                if length > 0.0 {
                    let _ = writeln!(
                        svg,
                        "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{}\" width=\"{length:.1}\" height=\"{}\"/>",
                        y + 1,
                        ROW_PX - 3
                    );
                }
            }
        }
        *top = bottom + SCALE_PX;
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, came_ms: u64, begun_ms: u64, done_ms: u64) -> Bar {
        let [came_us, begun_us, done_us] =
            [came_ms, begun_ms, done_ms].map(|ms| ms * 1_000 + 7_000);
        Bar { name: name.into(), came_us, held_us: 0, begun_us, done_us }
    }

    #[test]
    fn waiting_and_working_are_told_apart() {
        let bars =
            vec![bar("one", 0, 500, 1_000), bar("other", 0, 0, 500), bar("late", 900, 900, 901)];
        let expected = "  jobs
  other  ███████████████
  one    ░░░░░░░░░░░░░░░████████████████
  late                              █
         0              500 ms
         ░ waiting  █ working
";
        assert_eq!(Timeline::new("jobs", bars).text(40), expected);
    }

    #[test]
    fn what_held_a_message_back_is_told_apart_from_waiting() {
        let held = Bar { held_us: 250_000, ..bar("tried", 0, 500, 1_000) };
        let all = Bar { held_us: 600_000, ..bar("long", 0, 500, 1_000) };
        let jobs = Timeline::new("jobs", vec![held, all]);
        let text = jobs.text(40);
        assert!(text.contains("  tried  ░░░░░░░▒▒▒▒▒▒▒▒████████████████\n"), "{text}");
        assert!(text.contains("  long   ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒████████████████\n"), "{text}");
        assert!(text.ends_with("░ waiting  ▒ retries, breaker  █ working\n"), "{text}");
        let picture = svg(&[jobs]);
        assert_eq!(picture.matches("class=\"held\"").count(), 3, "two, and what it means");
    }

    #[test]
    fn of_many_those_that_waited_longest_are_drawn() {
        let bars = (0..100).map(|ms| bar(&format!("job {ms}"), 0, ms, ms + 1)).collect();
        let text = Timeline::new("jobs", bars).text(100);
        assert!(text.contains("job 99") && text.contains("job 75") && !text.contains("job 74"));
        assert!(text.ends_with("(and 75 that took less)\n"), "{text}");
    }

    #[test]
    fn nothing_and_no_time_are_drawn_too() {
        assert!(Timeline::new("none", Vec::new()).text(80).contains("none"));
        let moment = Timeline::new("moment", vec![bar("one", 5, 5, 5)]);
        assert!(moment.text(80).contains("one  █"), "{}", moment.text(80));
        assert!(svg(&[moment]).contains("worked"));
    }

    #[test]
    fn neither_terminal_nor_picture_gets_control_characters_of_a_name() {
        let odd = Timeline::new("jobs", vec![bar("a\u{1b}[2J\nb\u{0}", 0, 1, 2)]);
        let text = odd.text(80);
        assert!(text.contains("  a\u{FFFD}[2J\u{FFFD}b\u{FFFD}  "), "{text:?}");
        assert_eq!(text.lines().count(), 4, "{text:?}");
        assert!(!text.contains(|other: char| other != '\n' && other.is_control()), "{text:?}");
        assert!(svg(&[odd]).contains(">a\u{FFFD}[2J\u{FFFD}b\u{FFFD}</text>"));
    }

    #[test]
    fn the_picture_is_to_scale_and_names_cannot_break_it() {
        let bars = vec![bar("a <b> & c", 0, 500, 1_000), bar("b", 0, 0, 500)];
        let picture = svg(&[Timeline::new("x < y", bars), Timeline::new("empty", Vec::new())]);
        assert!(picture.contains("x &lt; y") && picture.contains("a &lt;b&gt; &amp; c"));
        let half = format!("width=\"{:.1}\"", BARS_PX as f64 / 2.0);
        assert_eq!(picture.matches(&half).count(), 3, "{picture}");
        assert_eq!(picture.matches("class=\"waited\" x=\"170.0\"").count(), 1);
    }
}
