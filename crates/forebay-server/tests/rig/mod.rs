//! What the tests over real sockets share: a server on a free port, a directory that goes away.
#![allow(dead_code, reason = "each test file uses its part")]

use forebay_client::blocking::Connection;
use forebay_server::{Config, Data, Server, StartError};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than anything here takes; a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A directory of its own, removed at the end.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-server-test-{}-{number}", std::process::id());
        Dir(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// On a free port, and without patience for the clients that a test leaves behind.
pub(crate) fn in_memory() -> Config {
    Config {
        data: Data::Memory,
        amqp: vec!["127.0.0.1:0".into()],
        http: None,
        drain_timeout: Duration::from_millis(500),
        ..Config::default()
    }
}

pub(crate) fn on_disk(dir: &Dir) -> Config {
    Config { data: Data::Dir(dir.path().to_owned()), ..in_memory() }
}

pub(crate) fn start(config: Config) -> Server {
    Server::start(config).expect("the server starts")
}

pub(crate) fn start_error(config: Config) -> StartError {
    Server::start(config).expect_err("the server must not start")
}

pub(crate) fn address(server: &Server) -> SocketAddr {
    server.addresses().amqp[0]
}

pub(crate) fn connect(server: &Server) -> Connection {
    Connection::open(&format!("amqp://guest:guest@{}/%2f", address(server))).expect("login")
}

pub(crate) fn socket(server: &Server) -> TcpStream {
    let socket = TcpStream::connect(address(server)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Reads one frame: kind, channel, payload.
pub(crate) fn read_frame(socket: &mut impl Read) -> (u8, u16, Vec<u8>) {
    let mut head = [0; 7];
    socket.read_exact(&mut head).expect("a frame's head");
    let size = u32::from_be_bytes(head[3..7].try_into().unwrap()) as usize;
    let mut payload = vec![0; size + 1];
    socket.read_exact(&mut payload).expect("a frame's payload");
    assert_eq!(payload.pop(), Some(206), "frame end");
    (head[0], u16::from_be_bytes([head[1], head[2]]), payload)
}

/// Class and method of a method frame.
pub(crate) fn method_of(frame: &(u8, u16, Vec<u8>)) -> (u16, u16) {
    assert_eq!(frame.0, 1, "a method frame");
    let payload = &frame.2;
    (u16::from_be_bytes([payload[0], payload[1]]), u16::from_be_bytes([payload[2], payload[3]]))
}

/// Asks over HTTP; returns the status line and the body.
pub(crate) fn http(address: SocketAddr, method: &str, path: &str) -> (String, String) {
    request(address, method, path, "")
}

/// A GET of somebody, as `user:password`.
pub(crate) fn http_as(login: &str, address: SocketAddr, path: &str) -> (String, String) {
    let login = forebay_broker::access::base64::encode(login.as_bytes());
    request(address, "GET", path, &format!("Authorization: Basic {login}\r\n"))
}

fn request(address: SocketAddr, method: &str, path: &str, headers: &str) -> (String, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\n");
    let mut answer = String::new();
    // Who is turned away at the door may find the connection reset, before his question or behind the answer.
    let _ = socket.write_all(request.as_bytes());
    let read = socket.read_to_string(&mut answer);
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        panic!("no answer to {method} {path}: {read:?}")
    };
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// Asks again until the answer is yes; for states that another thread reaches by itself.
pub(crate) fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::yield_now();
    }
}
