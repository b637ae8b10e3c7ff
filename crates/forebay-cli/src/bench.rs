//! `forebay bench`: load for any AMQP 0-9-1 broker, and what came of it. The matter is in `forebay-bench`.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use forebay_bench::Progress;
use forebay_bench::bench::{self, BenchError, Ended, Flags, Record, Screen};
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::{Exit, URL_FLAG, with_cure};
use crate::output::{can_be_written, write_text};
use crate::stop_signal::StopSignal;

/// Load a broker and see how it does: any AMQP 0-9-1 broker, or one of our own.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Name the workloads
    List,
    /// Run a workload by its name, or what flags say; without --url on a broker of our own
    #[command(visible_alias = "load")]
    Run(Box<Flags>),
    /// Draw the report of one or several files of `run --json`
    Report {
        /// What `run --json` wrote: a workload each
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Write the report to this file: charts and tables, to be opened in a browser
        #[arg(long, value_name = "FILE")]
        html: PathBuf,
    },
    /// Set two files of `run --json` side by side: B over A
    Compare {
        /// What `run --json` wrote
        a: PathBuf,
        /// What it wrote another time, or on another broker
        b: PathBuf,
    },
}

/// Runs a sub-command of `bench`.
pub(crate) fn run(args: Args) -> Exit {
    match args.command {
        Command::List => print(&bench::list()),
        Command::Run(flags) => measure(&flags),
        Command::Report { files, html } => report(&files, &html),
        Command::Compare { a, b } => compare(&a, &b),
    }
}

/// Exit code 2: a file is no record; 1: the report cannot be written.
fn report(files: &[PathBuf], html: &Path) -> Exit {
    if let Err(error) = can_be_written(html) {
        return Exit::Failed.because(format!("cannot write {error}"));
    }
    let records: Result<Vec<Record>, String> =
        files.iter().map(|path| Record::read(path)).collect();
    match records {
        Ok(records) => match write_text(html, &bench::page(&records)) {
            Ok(()) => Exit::Done,
            Err(error) => Exit::Failed.because(format!("cannot write {error}")),
        },
        Err(error) => Exit::Usage.because(error),
    }
}

/// Exit code 2: a file is no record, or the two have nothing in common.
fn compare(a: &Path, b: &Path) -> Exit {
    let records = Record::read(a).and_then(|a| Ok((a, Record::read(b)?)));
    match records.and_then(|(a, b)| bench::compare(&a, &b)) {
        Ok(text) => print(&text),
        Err(error) => Exit::Usage.because(error),
    }
}

/// Exit code 0: all runs have figures; 1: one has not; 2: the flags make no sense.
fn measure(flags: &Flags) -> Exit {
    let stop = match StopSignal::listen() {
        Ok(stop) => stop,
        Err(error) => return Exit::Failed.because(format!("cannot watch for signals: {error}")),
    };
    // What took an hour is not to be lost to a slip in a path.
    let paths = [&flags.json, &flags.html, &flags.svg, &flags.csv];
    if let Err(error) = paths.into_iter().flatten().try_for_each(|path| can_be_written(path)) {
        return Exit::Usage.because(format!("cannot write {error}"));
    }
    let mut terminal = Terminal::new(stop);
    let measured = bench::run(flags, &mut terminal);
    terminal.bar.finish_and_clear();
    let Ended { record, early } = match measured {
        Ok(ended) => ended,
        Err(error @ BenchError::Usage(_)) => return Exit::Usage.because(error),
        Err(error) => return Exit::Failed.because(cured(error)),
    };
    if record.is_empty() {
        let why = early.map_or("nothing was measured".to_owned(), cured);
        return Exit::Failed.because(why);
    }
    let printed = print(&bench::table(&record));
    if let Err(error) = write(flags, &record) {
        return Exit::Failed.because(error);
    }
    match (printed, early) {
        (Exit::Done, Some(early)) => {
            Exit::Failed.because(format!("{early}; what was measured until then is above"))
        }
        (Exit::Done, None) if !record.complete() => {
            Exit::Failed.because("some runs failed; the table says which")
        }
        (exit, _) => exit,
    }
}

/// Why nothing was measured, and what to do about it.
fn cured(error: BenchError) -> String {
    let why = with_cure(error, URL_FLAG);
    // The first that is asked of a broker, and by many refused to those who have their own names.
    match why.contains("access to queue 'forebay-bench-") {
        true => format!(
            "{why}; `--queue NAME` calls the queues of a load as this user may, `--predeclared` takes those that are there"
        ),
        false => why,
    }
}

/// All that can be written; what cannot is told by the first of it.
fn write(flags: &Flags, record: &Record) -> Result<(), String> {
    type Drawn = fn(&Record) -> Option<String>;
    let files: [(&Option<PathBuf>, Drawn); 4] = [
        (&flags.json, |record| Some(record.json())),
        (&flags.html, |record| Some(record.html())),
        (&flags.svg, Record::svg),
        (&flags.csv, |record| Some(record.csv())),
    ];
    let mut all = Ok(());
    for (path, drawn) in files {
        let Some(path) = path else { continue };
        let written = match drawn(record) {
            Some(text) => write_text(path, &text).map_err(|error| format!("cannot write {error}")),
            None => Err("--svg: this workload has no timelines; `hoarding` has".to_owned()),
        };
        all = all.and(written);
    }
    all
}

fn print(text: &str) -> Exit {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Exit::Done,
        Err(error) => Exit::Failed.because(format!("cannot write the result: {error}")),
    }
}

/// What goes on, on standard error: lines, and a bar where that is a terminal.
struct Terminal {
    bar: ProgressBar,
    title: String,
    stop: StopSignal,
}

impl Terminal {
    fn new(stop: StopSignal) -> Terminal {
        let style = ProgressStyle::with_template("  {bar:24} {elapsed:>4} {msg}");
        // Without a terminal the bar stays invisible by itself.
        let bar = ProgressBar::new(1000).with_style(style.expect("the template is constant"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Terminal { bar, title: String::new(), stop }
    }
}

impl Screen for Terminal {
    fn say(&mut self, line: &str) {
        self.bar.suspend(|| say!("{line}"));
    }

    fn begin(&mut self, title: &str, share: f64) {
        self.title = format!("{title} ({:.0} % of all)", share * 100.0);
    }

    fn progress(&mut self, progress: Progress<'_>) -> ControlFlow<()> {
        self.bar.set_position((progress.share * 1000.0) as u64);
        let rates = progress.last.map_or_else(String::new, |sample| {
            let p99_ms = sample.end_to_end.p99_us as f64 / 1e3;
            format!(
                ": {:.0}/s in, {:.0}/s out, p99 {p99_ms:.1} ms",
                sample.published, sample.consumed
            )
        });
        self.bar.set_message(format!("{}, {}{rates}", self.title, progress.doing));
        if self.stop.came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
