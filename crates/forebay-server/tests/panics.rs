//! What a panic says, to whoever reads the log of a process, and to nobody.

use std::io::{Read, Write, pipe};
use std::process::{Child, Command, Stdio, exit};
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use std::{env, thread};

use forebay_server::{Config, logging};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Set for the process that panics.
const PANICS: &str = "FOREBAY_TEST_PANICS";

/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// In one thread, while another goes on to the end of the process.
fn panics() -> ! {
    let log = logging::start(&Config::default()).expect("a log begins");
    let died = thread::Builder::new().name("dies".to_owned()).spawn(|| panic!("by accident"));
    let died = died.expect("there is a thread").join();
    log.end_with("the last line");
    exit(if died.is_err() { 7 } else { 0 })
}

fn process(name: &str, stderr: impl Into<Stdio>) -> Child {
    let this = env::current_exe().expect("it runs");
    let mut command = Command::new(this);
    command.args([name, "--exact", "--nocapture"]).env(PANICS, "1").env("RUST_BACKTRACE", "0");
    command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("it runs again")
}

#[test]
fn a_panic_is_told_in_the_log() {
    if env::var_os(PANICS).is_some() {
        panics();
    }
    let (mut reader, log) = pipe().expect("there is a pipe");
    let mut process = process("a_panic_is_told_in_the_log", log);
    let mut said = String::new();
    reader.read_to_string(&mut said).expect("it is text");
    assert_eq!(process.wait().expect("it ends").code(), Some(7));
    let place = "\nthread 'dies' panicked at crates/forebay-server/tests/panics.rs:";
    assert!(said.contains(place) && said.contains(":\nby accident\n"), "{said}");
    assert!(said.ends_with("\nthe last line\n"), "{said}");
}

#[test]
fn a_panic_waits_for_nobody_who_does_not_read() {
    if env::var_os(PANICS).is_some() {
        panics();
    }
    let (_reader, mut log) = pipe().expect("there is a pipe");
    let flags = fcntl_getfl(&log).expect("it has some");
    fcntl_setfl(&log, flags | OFlags::NONBLOCK).expect("it may be set");
    while log.write(&[b'x'; 4_096]).is_ok() {}
    fcntl_setfl(&log, flags).expect("it may be set");
    let mut process = process("a_panic_waits_for_nobody_who_does_not_read", log);
    let mut out = process.stdout.take().expect("it is piped");
    let (ended, end) = sync_channel(1);
    // Of its output there is an end when it has ended.
    thread::spawn(move || ended.send(out.read_to_end(&mut Vec::new()).is_ok()));
    let in_time = end.recv_timeout(PATIENCE).is_ok();
    // Not to stay behind this test.
    let _ = process.kill();
    let code = process.wait().expect("it ends").code();
    assert_eq!((in_time, code), (true, Some(7)), "it waits");
}
