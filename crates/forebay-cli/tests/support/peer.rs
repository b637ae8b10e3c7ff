//! A peer that speaks raw bytes, so that it can say what no client library would.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use forebay_wire::{
    Method, PROTOCOL_HEADER, ShortStr, TableBuf, Value, WireMethod, channel, connection,
    write_method,
};

use super::PATIENCE;

/// One end of a TCP connection.
#[derive(Debug)]
pub struct Peer {
    socket: TcpStream,
}

/// How a broker ends a connection or a channel.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// `connection.close` with its code and text.
    Connection(u16, String),
    /// `channel.close` with its code and text.
    Channel(u16, String),
    /// The end of the stream, or a reset.
    End,
}

/// A frame as it came.
#[derive(Debug)]
pub struct RawFrame {
    /// 1 method, 2 header, 3 body, 8 heartbeat.
    pub kind: u8,
    /// Its channel.
    pub channel: u16,
    /// Without head and end.
    pub payload: Vec<u8>,
}

impl Peer {
    /// Connects and says nothing.
    pub fn connect(address: SocketAddr) -> Peer {
        let socket = TcpStream::connect(address).expect("the listener accepts");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        socket.set_write_timeout(Some(PATIENCE)).expect("a timeout can be set");
        socket.set_nodelay(true).expect("no delay can be set");
        Peer { socket }
    }

    /// Connects and logs in, with the heartbeat interval it wishes (0: none) and channel 1 open.
    pub fn open(address: SocketAddr, heartbeat_s: u16) -> Peer {
        let mut peer = Peer::start(address);
        peer.login("guest", "guest", true);
        peer.expect("connection.tune");
        peer.method(
            0,
            &connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: heartbeat_s },
        );
        peer.vhost("/");
        peer.expect("connection.open-ok");
        peer.method(1, &channel::Open::default());
        peer.expect("channel.open-ok");
        peer
    }

    /// Connects and has `connection.start`.
    pub fn start(address: SocketAddr) -> Peer {
        let mut peer = Peer::connect(address);
        peer.send(&PROTOCOL_HEADER);
        peer.expect("connection.start");
        peer
    }

    /// Sends `connection.start-ok`, with or without the wish to be told of a refusal.
    pub fn login(&mut self, user: &str, password: &str, tell_me: bool) {
        let capabilities =
            TableBuf::new().with("authentication_failure_close", Value::Bool(tell_me));
        let client_properties =
            TableBuf::new().with("capabilities", Value::Table(capabilities.as_table()));
        let response = format!("\0{user}\0{password}");
        self.method(
            0,
            &connection::StartOk {
                client_properties: client_properties.as_table(),
                mechanism: short("PLAIN"),
                response: response.as_bytes(),
                locale: short("en_US"),
            },
        );
    }

    /// Sends `connection.open`.
    pub fn vhost(&mut self, name: &str) {
        let open = connection::Open { virtual_host: short(name), ..connection::Open::default() };
        self.method(0, &open);
    }

    /// Sends bytes. That the peer has hung up is found when reading.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.try_send(bytes);
    }

    /// Sends bytes.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// Sends a method.
    pub fn method(&mut self, channel: u16, method: &impl WireMethod) {
        let mut bytes = Vec::new();
        write_method(&mut bytes, channel, method);
        self.send(&bytes);
    }

    /// Sends a frame with any payload.
    pub fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        self.send(&frame(kind, channel, payload));
    }

    /// The next frame; `None` is the end of the stream.
    pub fn read_frame(&mut self) -> Option<RawFrame> {
        let mut head = [0; 7];
        if !self.fill(&mut head) {
            return None;
        }
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let mut payload = vec![0; size + 1];
        if !self.fill(&mut payload) {
            return None;
        }
        assert_eq!(payload.pop(), Some(206), "the broker ends its frames");
        Some(RawFrame { kind: head[0], channel: u16::from_be_bytes([head[1], head[2]]), payload })
    }

    fn fill(&mut self, buffer: &mut [u8]) -> bool {
        match self.socket.read_exact(buffer) {
            Ok(()) => true,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                panic!("the broker neither answers nor closes")
            }
            Err(_) => false,
        }
    }

    /// Reads up to the method of this name.
    pub fn expect(&mut self, name: &str) {
        while let Some(frame) = self.read_frame() {
            if frame.kind == 1 {
                let method = Method::parse(&frame.payload).expect("the broker speaks AMQP");
                if method.name() == name {
                    return;
                }
                assert!(!method.name().ends_with(".close"), "{method:?} instead of {name}");
            }
        }
        panic!("the broker hung up instead of {name}");
    }

    /// Reads up to the broker's refusal, agrees with it, and for a connection waits for the end.
    pub fn verdict(&mut self) -> Answer {
        while let Some(frame) = self.read_frame() {
            if frame.kind != 1 {
                continue;
            }
            match Method::parse(&frame.payload).expect("the broker speaks AMQP") {
                Method::ConnectionClose(close) => {
                    let answer = Answer::Connection(close.reply_code, close.reply_text.to_string());
                    self.method(0, &connection::CloseOk::default());
                    assert!(self.read_frame().is_none(), "after {answer:?} there is more");
                    return answer;
                }
                Method::ChannelClose(close) => {
                    let answer = Answer::Channel(close.reply_code, close.reply_text.to_string());
                    self.method(frame.channel, &channel::CloseOk::default());
                    return answer;
                }
                _ => {}
            }
        }
        Answer::End
    }

    /// All that comes until the end of the stream.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                panic!("the broker does not close")
            }
            // A reset is an end, too.
            _ => rest,
        }
    }
}

impl Answer {
    /// Asserts a reply code, and that the text has its name in front.
    pub fn is_connection_error(&self, code: u16, name: &str) {
        match self {
            Answer::Connection(got, text) if *got == code && text.starts_with(name) => {}
            other => panic!("expected {code} {name} on the connection, got {other:?}"),
        }
    }

    /// The same for a channel.
    pub fn is_channel_error(&self, code: u16, name: &str) {
        match self {
            Answer::Channel(got, text) if *got == code && text.starts_with(name) => {}
            other => panic!("expected {code} {name} on the channel, got {other:?}"),
        }
    }
}

/// A frame with any payload.
pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(channel.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes.push(206);
    bytes
}

/// A method as payload.
pub fn payload(method: &impl WireMethod) -> Vec<u8> {
    let mut bytes = Vec::new();
    method.encode(&mut bytes);
    bytes
}

/// A short string.
pub fn short(text: &str) -> ShortStr<'_> {
    ShortStr::new(text.as_bytes()).expect("at most 255 bytes")
}
