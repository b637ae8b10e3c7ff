//! Why `forebay serve` does not start: one sentence on standard error, and the right exit code.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use forebay_client::blocking::{Connection, DeclareQueue, Publication};
use forebay_wire::Properties;
use support::broker::{Broker, Ended, Start};
use support::dir::Dir;

const FAILED: Option<i32> = Some(1);
const USAGE: Option<i32> = Some(2);

fn assert_says(ended: &Ended, code: Option<i32>, words: &[&str]) {
    assert_eq!(ended.code, code, "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "no {word:?} in: {}", ended.stderr);
    }
}

/// The same, and that it is a sentence of ours in the last line.
fn assert_sentence(ended: &Ended, code: Option<i32>, words: &[&str]) {
    assert_says(ended, code, words);
    let sentence = ended.sentence();
    for word in words {
        assert!(sentence.contains(word), "no {word:?} in: {sentence}");
    }
}

fn body(number: u32) -> Vec<u8> {
    format!("message {number:05} ").into_bytes().repeat(200)
}

/// Publishes persistent messages and waits for their confirms, one after the other, so that each is
/// in a batch of its own.
fn fill(broker: &Broker, count: u32) {
    let mut channel = broker.connect().channel().unwrap();
    channel.declare_queue("q", DeclareQueue { durable: true, ..DeclareQueue::default() }).unwrap();
    channel.confirm_select(1).unwrap();
    for number in 0..count {
        let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
        let body = body(number);
        channel
            .publish(&Publication {
                routing_key: "q",
                properties,
                body: &body,
                ..Publication::default()
            })
            .unwrap();
    }
    channel.wait_settled().unwrap();
}

fn drain(broker: &Broker) -> Vec<Vec<u8>> {
    let mut channel = Connection::open(&broker.url()).unwrap().channel().unwrap();
    std::iter::from_fn(|| channel.get("q", true).unwrap())
        .map(|(message, _)| message.body().to_vec())
        .collect()
}

fn segments(dir: &Dir) -> Vec<PathBuf> {
    let mut segments: Vec<PathBuf> = fs::read_dir(dir.join("data"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| name_of(path).starts_with("log-"))
        .collect();
    segments.sort();
    segments
}

fn name_of(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn an_address_of_another_machine_is_told_to_be_one() {
    let dir = Dir::new("starting");
    // Of documentation: nobody has it.
    let refused = Start::in_memory(dir.path()).flag("--amqp", "192.0.2.1:5672").refused();
    let words =
        ["cannot listen on 192.0.2.1:5672", "no interface of this machine has that address"];
    assert_sentence(&refused, FAILED, &words);
}

#[test]
fn a_data_directory_in_use_is_not_shared() {
    let dir = Dir::new("starting");
    let start = Start::on_disk(dir.path());
    let first = start.ready();
    fill(&first, 10);
    let cure = "in use by another process (its LOCK file is held); stop that broker, or give another --data-dir";
    assert_sentence(&start.refused(), FAILED, &[cure]);
    // The first one did not notice.
    assert_eq!(drain(&first).len(), 10);
    assert_eq!(first.stop().code, Some(0));
    // Nor does a lock outlive its holder, however it ended.
    start.ready().kill();
    assert_eq!(start.ready().stop().code, Some(0));
}

#[test]
fn a_data_directory_that_cannot_be_written_is_named() {
    let dir = Dir::new("starting");
    let file = dir.join("file");
    fs::write(&file, b"no directory").unwrap();
    for path in [file.clone(), file.join("below"), PathBuf::from("/proc/forebay-data")] {
        let path = path.to_str().unwrap();
        let start = Start::bare(dir.path()).flag("--data-dir", path);
        assert_sentence(&start.refused(), FAILED, &[path]);
    }
    let start = Start::bare(dir.path()).flag("--data-dir", file.to_str().unwrap());
    assert_sentence(&start.refused(), FAILED, &["file: it is a file, not a directory"]);
    assert_eq!(fs::read(&file).unwrap(), b"no directory");
}

#[test]
fn a_store_of_a_newer_format_is_left_alone() {
    let dir = Dir::new("starting");
    let start = Start::on_disk(dir.path());
    let broker = start.ready();
    fill(&broker, 10);
    assert_eq!(broker.stop().code, Some(0));
    for segment in segments(&dir) {
        let mut bytes = fs::read(&segment).unwrap();
        // The header's checksum covers its first 60 bytes; what is XORed to it stays the same.
        let before = crc32c(&bytes[..60]);
        bytes[8..12].copy_from_slice(&7u32.to_le_bytes());
        let change = before ^ crc32c(&bytes[..60]);
        let stored = u32::from_le_bytes(bytes[60..64].try_into().unwrap());
        bytes[60..64].copy_from_slice(&(stored ^ change).to_le_bytes());
        fs::write(&segment, bytes).unwrap();
    }
    let before: Vec<Vec<u8>> = segments(&dir).iter().map(|path| fs::read(path).unwrap()).collect();
    assert_sentence(&start.refused(), FAILED, &["format 7", "newer"]);
    let after: Vec<Vec<u8>> = segments(&dir).iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(before == after, "it was written to");
}

#[test]
fn a_damaged_store_is_named_by_file_and_offset_and_salvage_gives_the_rest() {
    let dir = Dir::new("starting");
    let start = Start::on_disk(dir.path());
    let broker = start.ready();
    fill(&broker, 100);
    broker.kill();
    let wanted = body(50);
    let (segment, at) = segments(&dir)
        .into_iter()
        .find_map(|path| {
            let bytes = fs::read(&path).unwrap();
            let at = bytes.windows(14).position(|window| window == &wanted[..14])?;
            Some((path, at))
        })
        .expect("message 50 is in the log");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[at + 100] ^= 0x20;
    fs::write(&segment, &bytes).unwrap();

    let refused = start.refused();
    assert_sentence(&refused, FAILED, &["damaged", name_of(&segment), "at byte"]);
    let offset: usize = refused
        .sentence()
        .split("at byte ")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next())
        .and_then(|digits| digits.parse().ok())
        .expect("an offset");
    assert!(offset <= at + 100 && at < offset + 16 * 1024, "{offset} is not near {at}");
    // It is refused again, not repaired behind the operator's back.
    assert_sentence(&start.refused(), FAILED, &["damaged", name_of(&segment)]);

    let salvaged = start.clone().switch("--salvage").ready();
    let found = drain(&salvaged);
    let ended = salvaged.stop();
    assert_eq!(ended.code, Some(0));
    let said = ended.stderr;
    let line = said.lines().find(|line| line.contains("ERROR")).expect("what is lost");
    let fields = format!("file={} offset={offset}", name_of(&segment));
    let sentence =
        "salvaged without a part of the store: a record does not match its checksum (batch ";
    assert!(line.contains(sentence) && line.ends_with(&fields), "{line}");
    let lost = "): 1 of its 1 records cannot be read, each one message at most ";
    assert!(line.contains(lost), "{line}");
    let expected: Vec<Vec<u8>> = (0..100).filter(|number| *number != 50).map(body).collect();
    assert!(found == expected, "{} of 99 sound messages came back", found.len());
    // What was accepted is accepted.
    assert_eq!(start.ready().stop().code, Some(0));
}

#[test]
fn a_torn_tail_is_no_damage() {
    let dir = Dir::new("starting");
    let start = Start::on_disk(dir.path());
    let broker = start.ready();
    fill(&broker, 20);
    broker.kill();
    // The last batch, half written: what a power cut leaves.
    let segment = segments(&dir).pop().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    bytes.truncate(used.next_multiple_of(4096));
    bytes.extend(vec![0xAB; 1000]);
    fs::write(&segment, &bytes).unwrap();
    let broker = start.ready();
    assert_eq!(drain(&broker).len(), 20);
    assert_eq!(broker.stop().code, Some(0));
}

#[test]
fn an_empty_data_directory_is_refused_and_nothing_is_made_here() {
    let dir = Dir::new("starting");
    let start = Start::bare(dir.path()).variable("FOREBAY_DATA_DIR", "");
    assert_sentence(&start.refused(), USAGE, &["FOREBAY_DATA_DIR: it is empty: unset it"]);
    assert!(!Path::new("LOCK").exists(), "the store began in the current directory");
}

#[test]
fn a_taken_port_is_named() {
    let dir = Dir::new("starting");
    let first = Start::in_memory(dir.path()).ready();
    let taken = first.amqp.to_string();
    let start = Start::silent(dir.path()).switch("--in-memory").flag("--http", "off");
    let cure = |key: &str| format!("stop it, or choose another with --{key} HOST:PORT");
    let refused = start.clone().flag("--amqp", &taken).refused();
    assert_sentence(&refused, FAILED, &[&taken, &cure("amqp")]);
    // The same port for HTTP.
    let start = Start::silent(dir.path()).switch("--in-memory").flag("--amqp", "127.0.0.1:0");
    assert_sentence(&start.flag("--http", &taken).refused(), FAILED, &[&taken, &cure("http")]);
    assert_eq!(first.stop().code, Some(0));
}

#[test]
fn usage_and_configuration_errors_are_told_from_failures() {
    let dir = Dir::new("starting");
    let bare = || Start::in_memory(dir.path());
    assert_says(&bare().switch("--no-such-flag").refused(), USAGE, &["--no-such-flag"]);
    assert_says(&bare().flag("--memory-budget", "much").refused(), USAGE, &["much"]);
    assert_says(&bare().flag("--data-dir", "x").refused(), USAGE, &["--data-dir", "--in-memory"]);
    let missing = dir.join("missing.toml");
    let missing = missing.to_str().unwrap();
    assert_sentence(&bare().flag("--config", missing).refused(), USAGE, &[missing]);
    assert_sentence(&bare().flag("--amqps", "127.0.0.1:0").refused(), USAGE, &["amqps"]);
    assert_sentence(&bare().flag("--durability", "maybe").refused(), USAGE, &["maybe"]);
    assert_sentence(&bare().flag("--memory-budget", "1KB").refused(), USAGE, &["memory"]);
    assert_sentence(&bare().line("no_such_key = 1").refused(), USAGE, &["no_such_key"]);
    assert_sentence(&bare().line("heartbeat_s = \"often\"").refused(), USAGE, &["heartbeat_s"]);
    assert_sentence(&bare().line("this is not TOML").refused(), USAGE, &[".toml"]);
    assert_sentence(&bare().line("frame_max = 1").refused(), USAGE, &["frame_max"]);
    let address = Start::silent(dir.path()).switch("--in-memory").flag("--http", "off");
    let nowhere = address.flag("--amqp", "no.such.host.invalid:1").refused();
    assert_says(&nowhere, nowhere.code, &["no.such.host.invalid"]);
    assert!(matches!(nowhere.code, Some(1 | 2)), "{nowhere:?}");
}

/// CRC-32C (Castagnoli), a bit at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
