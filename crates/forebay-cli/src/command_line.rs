//! Our command line: what clap makes of it, and what it does not know.

use clap::builder::{Resettable, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error, Parser};

/// Variables that name a broker. An empty one is one that is not set, as scripts leave it.
const URLS: [&str; 2] = ["FOREBAY_URL", "FOREBAY_HTTP_URL"];

/// Reads it, or says what is wrong with it and exits.
pub(crate) fn parse<P: Parser>() -> P {
    read().unwrap_or_else(|error| error.exit())
}

fn read<P: Parser>() -> Result<P, Error> {
    let words: Vec<_> = std::env::args_os().collect();
    let needs_dashes =
        words.get(1).is_some_and(|word| word == "pipe") && !words.iter().any(|word| word == "--");
    let mut command = P::command();
    command.build();
    let matches = with_whole_usage(without_empty(command)).try_get_matches_from(words);
    let read = matches.and_then(|mut matches| P::from_arg_matches_mut(&mut matches));
    read.map_err(|mut error| {
        if needs_dashes && error.kind() == ErrorKind::UnknownArgument {
            let tip = StyledStr::from("put '--' before the program and its arguments");
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
        }
        error
    })
}

fn without_empty(command: Command) -> Command {
    let is_empty = |name: &str| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let empty: Vec<&str> = URLS.into_iter().filter(|name| is_empty(name)).collect();
    let command = command.mut_args(|arg| {
        let is_ours = arg.get_env().is_some_and(|env| empty.iter().any(|name| env == *name));
        if is_ours { arg.env(Resettable::Reset) } else { arg }
    });
    command.mut_subcommands(without_empty)
}

/// The usage that an error shows is the one of `--help`: clap's own names what was given, a URL from the environment too, as if it
/// were required.
fn with_whole_usage(mut command: Command) -> Command {
    let usage = command.render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage).to_owned();
    command.override_usage(usage).mut_subcommands(with_whole_usage)
}
