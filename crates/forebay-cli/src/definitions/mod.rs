//! `forebay definitions`: what is declared at a broker, as RabbitMQ's definitions JSON, out and in again.

mod api;
mod left_out;
mod made_up;
mod one_vhost;
mod settings;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::exit::{Exit, Failure};
use crate::http::HttpUrl;
use crate::output::{FOR_ITS_OWNER, replace};
use crate::standard_output;
use api::Api;

/// Largest file of definitions, in bytes; the server takes no more either.
const FILE_BYTES_MAX: u64 = 16 << 20;

const WAITS: &str = "\
A broker that does not begin to tell its definitions within 30 s, or stops for as long on the way, is given up; so is \
one that takes nothing of an import for 30 s, or does not answer within 600 s when it has it all.";

/// Unknown keys of a document that are named; it may have very many.
const KEYS_NAMED_MAX: usize = 8;

/// What a document may declare: one of these at least is in every export, be it an empty list.
const PARTS: [&str; 10] = [
    "exchanges",
    "queues",
    "bindings",
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "global_parameters",
];

/// Carry exchanges, queues and bindings from one broker to another, in the format of RabbitMQ's
/// definitions. Works with a Forebay and with a RabbitMQ that has its management plugin.
#[derive(clap::Args, Debug)]
#[command(after_help = WAITS)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Write a broker's definitions to a file or standard output. Passwords leave as salted hashes only.
    #[command(after_help = WAITS)]
    Export(Where),
    /// Declare what is in a file, or standard input. Users, virtual hosts with limits, and policies that a Forebay does
    /// not have are printed as lines for its configuration file. Exits with 0 only if nothing is left to do.
    #[command(after_help = WAITS)]
    Import(Where),
}

#[derive(clap::Args, Debug)]
struct Where {
    #[command(flatten)]
    broker: HttpUrl,
    /// One virtual host only
    #[arg(long, value_name = "VHOST")]
    vhost: Option<String>,
    /// The file; standard output or input if absent or `-`
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Where {
    fn path(&self) -> Option<&Path> {
        self.file.as_deref().filter(|path| path.as_os_str() != "-")
    }

    fn api(&self) -> Result<Api, Failure> {
        let endpoint = self.broker.endpoint();
        endpoint.map(Api).map_err(|sentence| Failure(Exit::Usage, sentence))
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Exit {
    let outcome = match &args.command {
        Command::Export(place) => export(place),
        Command::Import(place) => import(place),
    };
    match outcome {
        Ok(exit) => exit,
        Err(failure) => failure.told(),
    }
}

fn export(place: &Where) -> Result<Exit, Failure> {
    if place.path().is_none() {
        standard_output::must_be_open()?;
    }
    let document = place.api()?.export(place.vhost.as_deref())?;
    let mut text = serde_json::to_string_pretty(&document).expect("JSON is plain data");
    text.push('\n');
    match place.path() {
        // It holds hashes of passwords.
        Some(path) => replace(path, text.as_bytes(), FOR_ITS_OWNER)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?,
        None => io::stdout()
            .write_all(text.as_bytes())
            .map_err(|error| format!("cannot write to standard output: {error}"))?,
    }
    Ok(Exit::Done)
}

fn import(place: &Where) -> Result<Exit, Failure> {
    let mut document = read(place.path())?;
    let vhost = place.vhost.as_deref();
    let left_aside = vhost.map(|vhost| one_vhost::keep(&mut document, vhost)).unwrap_or_default();
    let made_up = made_up::take_out(&mut document);
    let api = place.api()?;
    // Of the whole broker: users and virtual hosts are in no part of it.
    let there = api.export(None)?;
    let outcome = api.import(vhost, &document)?;
    let mut left = outcome.refused.len();
    for refused in &outcome.refused {
        say!("{refused}");
    }
    for part in unknown_parts(&document) {
        left += 1;
        say!("`{part}`: no part of definitions is called so, and nothing of it is declared");
    }
    let is_ours = there["product_name"] == "Forebay";
    if !is_ours && outcome.refused.is_empty() {
        let after = api.export(vhost)?;
        for sentence in left_out::left_out(&document, &after, vhost.is_some()) {
            left += 1;
            say!("{sentence}");
        }
    }
    if is_ours {
        let settings = settings::missing(&document, &there);
        left += settings.impossible.len();
        for sentence in &settings.impossible {
            say!("{sentence}");
        }
        if let Some(toml) = settings.toml {
            left += 1;
            say!(
                "the configuration lacks users, virtual hosts, limits or policies of the file: put what is on standard \
                 output in their place there, start the broker again, and import once more"
            );
            // Something is left to do: the exit code tells of a failure in any case.
            if let Err(sentence) = standard_output::print(&toml) {
                say!("forebay: {sentence}");
            }
        }
    }
    if let (Some(vhost), false) = (vhost, left_aside.is_empty()) {
        // As it was asked for: nothing of it is left to do.
        say!("left aside, as it is not of vhost `{vhost}`: {}", counted(&left_aside));
    }
    if !made_up.is_empty() {
        // Nor of this: whoever needs them gets others.
        say!("left aside, as the broker makes up such names (`amq.gen-…`): {}", counted(&made_up));
    }
    match outcome.declared {
        Some(declared) => say!("declared {declared}, {left} left to do"),
        None => say!("imported, {left} left to do"),
    }
    Ok(if left == 0 { Exit::Done } else { Exit::Failed })
}

/// So many entries of each part, in words.
fn counted(entries: &[(&str, usize)]) -> String {
    let counts = entries.iter().map(|(part, count)| format!("{part} {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// Lists with something in them that no broker reads. What else is unknown may be a newer broker's word about itself.
fn unknown_parts(document: &Value) -> impl Iterator<Item = &str> {
    let keys = document.as_object().into_iter().flatten();
    let lists = keys.filter(|(_, value)| value.as_array().is_some_and(|list| !list.is_empty()));
    lists.map(|(key, _)| key.as_str()).filter(|key| !PARTS.contains(key)).take(KEYS_NAMED_MAX)
}

fn read(path: Option<&Path>) -> Result<Value, String> {
    let name = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let mut bytes = Vec::new();
    let read = match path {
        Some(path) => {
            let file = File::open(path).map_err(|error| format!("cannot open {name}: {error}"))?;
            file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)
        }
        None => io::stdin().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes),
    };
    read.map_err(|error| format!("cannot read {name}: {error}"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name} is larger than {FILE_BYTES_MAX} bytes"));
    }
    let document: Value = serde_json::from_slice(&bytes)
        .map_err(|error| format!("{name} is not a file of definitions: {error}"))?;
    let Some(parts) = document.as_object() else {
        return Err(format!("{name} is not a file of definitions: it holds no JSON object"));
    };
    if !PARTS.iter().any(|part| parts.contains_key(*part)) {
        let mut sentence = format!("{name} declares nothing: it has none of {}", PARTS.join(", "));
        if !parts.is_empty() {
            let keys = parts.keys().take(KEYS_NAMED_MAX).map(|key| format!("`{key}`"));
            let keys: Vec<String> = keys.collect();
            sentence += &format!("; what it has is {}", keys.join(", "));
        }
        return Err(sentence);
    }
    Ok(document)
}
