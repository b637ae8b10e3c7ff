//! The real shell, its threads and real files, over a disk that records each call: after every one of
//! them a power loss must leave what a client had been told was safe.

mod rig;

use forebay_client::blocking::{DeclareQueue, Publication};
use forebay_server::Server;
use forebay_store::fault_disk::RecordingDisk;
use forebay_store::{Disk, FileDisk, MemDisk, Options, open};
use forebay_wire::Properties;
use rig::{Dir, connect, on_disk};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Ways to lose power tried after each call, or as many as `FOREBAY_TORN` says.
const TORN_MOST: usize = 12;
const MESSAGES: usize = 24;

fn body(number: usize) -> Vec<u8> {
    let mut body = format!("<{number}>").into_bytes();
    body.resize(number * 397 % 6000 + 8, b'x');
    body
}

/// The numbers of the messages that a start would find; their bodies must be whole.
fn recovered(disk: MemDisk, context: &str) -> BTreeSet<usize> {
    let (_, recovered) = open(Arc::new(disk), Options::default())
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    let mut found = BTreeSet::new();
    for (_, _, payload) in recovered.queues.iter().flat_map(|queue| &queue.messages) {
        let number =
            (0..MESSAGES).find(|number| recovered.payloads[*payload].ends_with(&body(*number)));
        assert!(found.insert(number.expect("a body that was published")), "{context}: twice");
    }
    found
}

#[test]
fn what_was_confirmed_over_a_socket_outlives_every_loss_of_power() {
    let dir = Dir::new();
    let files = Arc::new(FileDisk::new(dir.path()).expect("a directory"));
    let disk = Arc::new(RecordingDisk::new(files).expect("it is empty"));
    let server = Server::start_on(disk.clone(), on_disk(&dir)).expect("the server starts");
    let connection = connect(&server);
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue { durable: true, ..DeclareQueue::default() }).unwrap();
    channel.confirm_select(MESSAGES as u64).unwrap();
    // Before which call at the earliest each message was asked for, and after which it was safe.
    let mut asked = Vec::new();
    let mut safe = Vec::new();
    for number in 0..MESSAGES {
        asked.push(disk.calls());
        let persistent = Properties { delivery_mode: Some(2), ..Properties::default() };
        channel
            .publish(&Publication {
                routing_key: "q",
                properties: persistent,
                body: &body(number),
                ..Default::default()
            })
            .unwrap();
        // One by one, and some together.
        if number < 8 || number + 1 == MESSAGES {
            channel.wait_settled().unwrap();
            safe.resize(asked.len(), disk.calls());
        }
    }
    drop(channel);
    drop(connection);
    server.stop().expect("a clean stop");

    let torn_most = std::env::var("FOREBAY_TORN")
        .map_or(TORN_MOST, |most| most.parse().expect("FOREBAY_TORN is a number"));
    assert!(disk.calls() > 20, "{} calls", disk.calls());
    for (calls, moment) in disk.prefixes().enumerate() {
        let must: BTreeSet<_> = (0..MESSAGES).filter(|number| safe[*number] <= calls).collect();
        let may: BTreeSet<_> = (0..MESSAGES).filter(|number| asked[*number] < calls).collect();
        let check = |disk: MemDisk, context: &str| {
            let found = recovered(disk, context);
            assert!(must.is_subset(&found), "{context}: {must:?} were safe, found {found:?}");
            assert!(found.is_subset(&may), "{context}: {may:?} were published, found {found:?}");
        };
        check(moment.fork(), &format!("killed after call {calls}"));
        for (way, torn) in moment.torn(torn_most).enumerate() {
            check(torn, &format!("power lost after call {calls}, in way {way}"));
        }
    }
    assert_eq!(disk.list().unwrap().iter().filter(|name| name.ends_with(".seg")).count(), 1);
}
