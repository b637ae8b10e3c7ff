//! A thread for the disk that panics: in a program that unwinds, nobody is left waiting for it.

mod rig;

use forebay_client::blocking::{DeclareQueue, Publication};
use forebay_server::Server;
use forebay_store::{Disk, MemDisk};
use forebay_wire::Properties;
use rig::*;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

/// Panics at the next sync once it is told to.
#[derive(Default)]
struct Fragile {
    disk: MemDisk,
    breaks: AtomicBool,
}

impl Disk for Fragile {
    fn lock(&self) -> io::Result<()> {
        self.disk.lock()
    }
    fn unlock(&self) {
        self.disk.unlock();
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn len(&self, name: &str) -> io::Result<u64> {
        self.disk.len(name)
    }
    fn create(&self, name: &str) -> io::Result<()> {
        self.disk.create(name)
    }
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.write_at(name, offset, bytes)
    }
    fn allocate(&self, name: &str, bytes: u64) -> io::Result<()> {
        self.disk.allocate(name, bytes)
    }
    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.disk.read_at(name, offset, buffer)
    }
    fn sync_data(&self, name: &str) -> io::Result<()> {
        assert!(!self.breaks.load(Ordering::SeqCst), "as the test wants it");
        self.disk.sync_data(name)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
}

#[test]
fn a_lane_that_dies_ends_the_server_and_says_so() {
    let dir = Dir::new();
    let disk = Arc::new(Fragile::default());
    let server = Server::start_on(disk.clone(), on_disk(&dir)).unwrap();
    // One that hangs shall not hang the test: it is never dropped.
    let server: &'static Server = Box::leak(Box::new(server));
    let mut channel = connect(server).channel().unwrap();
    let durable = DeclareQueue { durable: true, ..DeclareQueue::default() };
    channel.declare_queue("q", durable).unwrap();
    channel.confirm_select(10).unwrap();
    disk.breaks.store(true, Ordering::SeqCst);
    let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
    let message =
        Publication { routing_key: "q", properties, body: b"m", ..Publication::default() };
    channel.publish(&message).unwrap();
    channel.flush().unwrap();
    let (ended, end) = sync_channel(1);
    std::thread::spawn(move || ended.send(server.wait()));
    let failed = end.recv_timeout(PATIENCE).expect("it ends").unwrap_err();
    assert!(failed.to_string().contains("a disk thread died"), "{failed}");
    // Whoever waits for a confirm is told by the end of his connection.
    assert!(channel.wait_settled().is_err());
}
