//! The network between a client and the broker: bytes on their way, and what the model is told when
//! they arrive.

use std::collections::VecDeque;

use crate::command::Command;
use crate::names::{ALTERNATE, MISSING};

/// Bytes that a client may have on the way; it waits with more.
pub(crate) const UPSTREAM_MAX_BYTES: usize = 64 * 1024;

/// How long a handshake may take (the broker's default).
const HANDSHAKE_US: u64 = 10_000_000;

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// To the broker.
    upstream: Vec<u8>,
    /// How many bytes of the connection were given to the broker before `upstream`.
    fed: u64,
    /// Of those, how many the broker holds back behind a publish.
    held: usize,
    /// Commands that the broker has not carried out, by the position of their end.
    commands: VecDeque<(u64, Command)>,
    /// How many bytes of `Shard::outgoing` the checker has seen.
    pub(crate) observed: usize,
    /// Content that the checker is in the middle of, by channel.
    pub(crate) assembling: Option<Assembling>,
    /// The client does not read.
    pub(crate) stalled: bool,
    /// The client is gone and the broker does not know.
    pub(crate) vanished: bool,
    /// The broker wants it closed, once everything is written.
    pub(crate) closing: bool,
    /// The broker wants it closed at once.
    pub(crate) cut: bool,
    pub(crate) frame_max: u32,
    pub(crate) heard_us: u64,
    /// When the broker must be done with the handshake; `None`: it is.
    pub(crate) handshake_until_us: Option<u64>,
}

/// A message that is not complete.
#[derive(Debug)]
pub(crate) struct Assembling {
    pub(crate) channel: u16,
    /// The payload of its method frame.
    pub(crate) method: Vec<u8>,
    /// Size of the body, once the header has come.
    pub(crate) body_bytes: Option<u64>,
    pub(crate) properties: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Link {
    pub(crate) fn new(frame_max: u32, now_us: u64) -> Link {
        Link {
            upstream: Vec::new(),
            fed: 0,
            held: 0,
            commands: VecDeque::new(),
            observed: 0,
            assembling: None,
            stalled: false,
            vanished: false,
            closing: false,
            cut: false,
            frame_max,
            heard_us: now_us,
            handshake_until_us: Some(now_us + HANDSHAKE_US),
        }
    }

    /// A client says something.
    pub(crate) fn say(&mut self, command: Command) {
        command.encode(self.frame_max, &mut self.upstream);
        self.commands.push_back((self.fed + self.upstream.len() as u64, command));
    }

    /// Bytes on their way to the broker, or held by it.
    pub(crate) fn upstream_bytes(&self) -> usize {
        self.upstream.len() + self.held
    }

    /// Whether the broker holds bytes back.
    pub(crate) fn is_held(&self) -> bool {
        self.held > 0
    }

    /// Takes at most `bytes`. A command that may answer a `basic.get` is a piece by itself: the answer must be
    /// seen before the model takes the next command. So is one that counts messages, as what publishes to a full queue hand out is to be seen
    /// before, and one that rejects: whether there was room for the letters is asked then.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        use crate::command::ChannelCommand::{
            Cancel, Close, DeclareQueue, DeleteQueue, Get, Nack, Purge,
        };
        let answers = |command: &Command| {
            matches!(
                command,
                Command::Channel(
                    _,
                    Get { .. }
                        | Purge(_)
                        | DeclareQueue { .. }
                        | DeleteQueue { .. }
                        | Cancel(_)
                        | Close
                        | Nack { requeue: false, .. }
                )
            )
        };
        let mut end = self.whole_if_refused(bytes.min(self.upstream.len()));
        let first = self.commands.iter().position(|(_, command)| answers(command));
        if let Some(first) = first {
            // To the end of the one before it, or to its own.
            let (at, _) = self.commands[first.saturating_sub(1)];
            end = end.min((at - self.fed) as usize);
        }
        self.fed += end as u64;
        let rest = self.upstream.split_off(end);
        std::mem::replace(&mut self.upstream, rest)
    }

    /// Where a piece ends that would end at `end`. A publish is refused before its body has come, and the model knows of it when it
    /// has: so such a one goes in one piece.
    fn whole_if_refused(&self, end: usize) -> usize {
        use crate::command::ChannelCommand::Publish;
        let upto = self.fed + end as u64;
        match self.commands.iter().find(|(at, _)| *at > upto) {
            Some((at, Command::Channel(_, Publish(message))))
                if [MISSING, ALTERNATE].contains(&message.exchange) =>
            {
                (at - self.fed) as usize
            }
            _ => end,
        }
    }

    /// The broker was given what was taken and holds `held` bytes of it: what it has carried out.
    pub(crate) fn carried_out(&mut self, held: usize) -> Vec<Command> {
        self.held = held;
        let upto = self.fed - held as u64;
        let mut commands = Vec::new();
        while let Some((_, command)) = self.commands.pop_front_if(|(at, _)| *at <= upto) {
            commands.push(command);
        }
        commands
    }
}
