//! One connection, what it is for, and how it gets ready for that.

use forebay_client::machine::ChannelError;
use forebay_wire::{Method, ShortStr, basic};

use crate::consumer::Consumer;
use crate::depth::Depth;
use crate::peer::Peer;
use crate::publisher::{Answers, Publisher};

/// Direct reply-to.
const REPLY_QUEUE: &str = "amq.rabbitmq.reply-to";

/// What a connection is for.
#[derive(Debug)]
pub(crate) enum Role {
    Publisher(Box<Publisher>),
    Consumer(Box<Consumer>),
    Depth(Depth),
}

impl Role {
    /// Its connection's name, which management pages show.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Role::Publisher(_) => "forebay-load publisher",
            Role::Consumer(_) => "forebay-load consumer",
            Role::Depth(_) => "forebay-load depth",
        }
    }

    /// Whether this answer is the last one to what [`Actor::opened`] asked.
    pub(crate) fn is_last_reply(&self, method: &Method<'_>) -> bool {
        match (self, method) {
            (Role::Publisher(publisher), Method::ConfirmSelectOk(_)) => {
                publisher.answers == Answers::Confirms
            }
            (Role::Publisher(publisher), Method::ChannelOpenOk(_)) => {
                publisher.answers == Answers::None
            }
            (Role::Publisher(publisher), Method::BasicConsumeOk(_)) => {
                publisher.answers == Answers::Replies
            }
            (Role::Consumer(_), Method::BasicConsumeOk(_)) => true,
            (Role::Depth(_), Method::ChannelOpenOk(_)) => true,
            _ => false,
        }
    }
}

/// One connection and what it is for.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) peer: Peer,
    pub(crate) role: Role,
    pub(crate) ready: bool,
    /// In the runnable queue.
    pub(crate) queued: bool,
    /// In the heap of due times.
    pub(crate) paced: bool,
}

impl Actor {
    pub(crate) fn new(peer: Peer, role: Role) -> Actor {
        Actor { peer, role, ready: false, queued: false, paced: false }
    }

    /// The connection is open: ask for everything the role needs, in one go.
    pub(crate) fn opened(&mut self, now_us: u64) -> Result<(), ChannelError> {
        let machine = &mut self.peer.machine;
        let channel = machine.open_channel()?;
        match &mut self.role {
            Role::Publisher(publisher) => {
                publisher.channel = channel;
                match publisher.answers {
                    Answers::None => {}
                    Answers::Confirms => machine.select_confirms(channel)?,
                    Answers::Replies => {
                        let queue = ShortStr::truncated(REPLY_QUEUE);
                        let replies = basic::Consume { queue, no_ack: true, ..Default::default() };
                        machine.send(channel, &replies)?;
                    }
                }
            }
            Role::Consumer(consumer) => consumer.begin(machine, channel, now_us)?,
            Role::Depth(depth) => depth.channel = channel,
        }
        Ok(())
    }
}
