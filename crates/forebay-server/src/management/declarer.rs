//! A small AMQP client inside the process, which declares things and collects refusals.
//!
//! Up to [`WINDOW`] declarations are on their way, so that many share a sync of the disk. A refusal closes
//! the channel or the connection: what was on its way behind it is sent again on a new one.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::{
    Method, PROTOCOL_HEADER, ShortStr, TableBuf, Value, WireMethod, channel, connection,
    read_frame, write_method,
};

use crate::in_process::{self, InProcessStream};
use crate::mailbox::{Mail, Mailbox};

/// The one channel.
pub(super) const CHANNEL: u16 = 1;
/// Declarations without an answer.
const WINDOW: usize = 64;
/// How long the broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// One declaration.
#[derive(Debug)]
pub(super) struct Item {
    /// For people.
    pub(super) what: String,
    /// The method's frame.
    pub(super) frame: Vec<u8>,
}

/// A declaration that was not made.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) what: String,
    pub(super) reason: String,
}

pub(super) struct Declarer<'a> {
    mailbox: Arc<Mailbox>,
    user: &'a str,
    password: &'a str,
    declared: u64,
    refused: Vec<Refused>,
}

/// What the broker says.
enum Answer {
    Done,
    ChannelClosed(String),
    ConnectionClosed(String),
}

impl<'a> Declarer<'a> {
    pub(super) fn new(mailbox: Arc<Mailbox>, user: &'a str, password: &'a str) -> Declarer<'a> {
        Declarer { mailbox, user, password, declared: 0, refused: Vec::new() }
    }

    /// How many were declared, or were there and are the same; and those that were not.
    pub(super) fn finish(self) -> (u64, Vec<Refused>) {
        (self.declared, self.refused)
    }

    /// Declares all of them in one virtual host, in order.
    pub(super) fn declare(&mut self, vhost: &str, items: Vec<Item>) {
        let mut waiting = VecDeque::from(items);
        while !waiting.is_empty() {
            let session = Session::open(&self.mailbox, self.user, self.password, vhost);
            let outcome = session.and_then(|mut session| self.through(&mut session, &mut waiting));
            if let Err(reason) = outcome {
                // Nothing can be declared here.
                for item in waiting.drain(..) {
                    self.refused.push(Refused { what: item.what, reason: reason.clone() });
                }
            }
        }
    }

    /// Until all are answered, or the broker closes the connection.
    fn through(
        &mut self,
        session: &mut Session,
        waiting: &mut VecDeque<Item>,
    ) -> Result<(), String> {
        let mut on_their_way: VecDeque<Item> = VecDeque::new();
        loop {
            while on_their_way.len() < WINDOW
                && let Some(item) = waiting.pop_front()
            {
                if item.frame.len() > session.frame_max_bytes {
                    // Sent, it would end the connection, and there is no telling which it was.
                    let most = session.frame_max_bytes;
                    let reason = format!("it has more bytes than a frame may have ({most})");
                    self.refused.push(Refused { what: item.what, reason });
                    continue;
                }
                let sent = session.send(&item.frame);
                on_their_way.push_back(item);
                if let Err(reason) = sent {
                    waiting.extend(on_their_way.drain(..));
                    return Err(reason);
                }
            }
            if on_their_way.is_empty() {
                return Ok(());
            }
            let answer = session.answer();
            let (reason, closed) = match answer {
                Ok(Answer::Done) => {
                    on_their_way.pop_front();
                    self.declared += 1;
                    continue;
                }
                Ok(Answer::ChannelClosed(reason)) => (reason, false),
                Ok(Answer::ConnectionClosed(reason)) => (reason, true),
                Err(reason) => {
                    waiting.extend(on_their_way.drain(..));
                    return Err(reason);
                }
            };
            if let Some(item) = on_their_way.pop_front() {
                self.refused.push(Refused { what: item.what, reason });
            }
            while let Some(item) = on_their_way.pop_back() {
                waiting.push_front(item);
            }
            if closed {
                return Ok(());
            }
            session.open_channel()?;
        }
    }
}

/// A connection with one channel.
struct Session {
    stream: InProcessStream,
    received: Vec<u8>,
    used: usize,
    /// As agreed on.
    frame_max_bytes: usize,
}

impl Session {
    fn open(
        mailbox: &Arc<Mailbox>,
        user: &str,
        password: &str,
        vhost: &str,
    ) -> Result<Session, String> {
        let (mut stream, end) = in_process::pair(mailbox.clone());
        mailbox.post(Mail::Connect(end));
        let broken = |error: std::io::Error| format!("the broker cannot be asked: {error}");
        stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
        let mut session =
            Session { stream, received: Vec::new(), used: 0, frame_max_bytes: usize::MAX };
        session.send(&PROTOCOL_HEADER)?;
        session.expect("connection.start")?;
        let response = format!("\0{user}\0{password}");
        let capabilities = TableBuf::new().with("authentication_failure_close", Value::Bool(true));
        let properties = TableBuf::new()
            .with("capabilities", Value::Table(capabilities.as_table()))
            .with("connection_name", Value::LongStr(b"import of definitions"));
        session.method(
            0,
            &connection::StartOk {
                client_properties: properties.as_table(),
                mechanism: short("PLAIN"),
                response: response.as_bytes(),
                locale: short("en_US"),
            },
        )?;
        let tune = session.expect_tune()?;
        let (channel_max, frame_max) = (tune.channel_max, tune.frame_max);
        session.frame_max_bytes = frame_max as usize;
        session.method(0, &connection::TuneOk { channel_max, frame_max, heartbeat: 0 })?;
        let open = connection::Open { virtual_host: short(vhost), ..Default::default() };
        session.method(0, &open)?;
        session.expect("connection.open-ok")?;
        session.open_channel()?;
        Ok(session)
    }

    fn open_channel(&mut self) -> Result<(), String> {
        self.method(CHANNEL, &channel::Open::default())?;
        self.expect("channel.open-ok")
    }

    fn method(&mut self, channel: u16, method: &impl WireMethod) -> Result<(), String> {
        let mut bytes = Vec::new();
        write_method(&mut bytes, channel, method);
        self.send(&bytes)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let broken = |error| format!("the broker does not take declarations: {error}");
        self.stream.write_all(bytes).map_err(broken)
    }

    /// The answer to a declaration; closes are agreed to.
    fn answer(&mut self) -> Result<Answer, String> {
        match self.next()? {
            Said::ChannelClose(reason) => {
                self.method(CHANNEL, &channel::CloseOk::default())?;
                Ok(Answer::ChannelClosed(reason))
            }
            Said::ConnectionClose(reason) => {
                // It may be gone already.
                let _ = self.method(0, &connection::CloseOk::default());
                Ok(Answer::ConnectionClosed(reason))
            }
            Said::Tune(_) | Said::Other(_) => Ok(Answer::Done),
        }
    }

    fn expect(&mut self, name: &str) -> Result<(), String> {
        match self.next()? {
            Said::Other(said) if said == name => Ok(()),
            said => Err(said.instead_of(name)),
        }
    }

    fn expect_tune(&mut self) -> Result<connection::Tune, String> {
        match self.next()? {
            Said::Tune(tune) => Ok(tune),
            said => Err(said.instead_of("connection.tune")),
        }
    }

    /// The next method.
    fn next(&mut self) -> Result<Said, String> {
        loop {
            let frame = read_frame(&self.received[self.used..], 0).map_err(|e| e.to_string())?;
            if let Some(frame) = frame {
                let size_bytes = frame.size_bytes();
                let said = match Method::parse(frame.payload).map_err(|e| e.to_string())? {
                    Method::ChannelClose(close) => Said::ChannelClose(close.reply_text.to_string()),
                    Method::ConnectionClose(close) => {
                        Said::ConnectionClose(close.reply_text.to_string())
                    }
                    Method::ConnectionTune(tune) => Said::Tune(tune),
                    method => Said::Other(method.name()),
                };
                self.used += size_bytes;
                return Ok(said);
            }
            self.received.drain(..self.used);
            self.used = 0;
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err("the broker hung up".to_owned()),
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) => return Err(format!("the broker does not answer: {error}")),
            }
        }
    }
}

enum Said {
    ChannelClose(String),
    ConnectionClose(String),
    Tune(connection::Tune),
    Other(&'static str),
}

impl Said {
    /// Why this does not do.
    fn instead_of(self, name: &str) -> String {
        let said = match self {
            Said::ChannelClose(reason) | Said::ConnectionClose(reason) => return reason,
            Said::Tune(_) => "connection.tune",
            Said::Other(said) => said,
        };
        format!("the broker said {said} instead of {name}")
    }
}

fn short(text: &str) -> ShortStr<'_> {
    ShortStr::truncated(text)
}
