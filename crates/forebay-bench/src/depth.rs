//! How many messages lie in the queues: passive declares on a connection of their own, all of them in one
//! write, once a second.

use forebay_client::machine::{ChannelError, Machine};
use forebay_wire::{Method, ShortStr, queue};

use crate::plan::Plan;

/// Sums up what the broker says about each queue.
#[derive(Debug)]
pub(crate) struct Depth {
    pub(crate) channel: u16,
    queues: Vec<String>,
    /// Questions without an answer.
    open: usize,
    sum: u64,
    last: Option<u64>,
}

impl Depth {
    pub(crate) fn new(plan: &Plan) -> Depth {
        let queues = (0..plan.queues).map(|number| plan.queue(number)).collect();
        Depth { channel: 0, queues, open: 0, sum: 0, last: None }
    }

    /// Asks, unless the last answers are still under way.
    pub(crate) fn ask(&mut self, machine: &mut Machine) -> Result<(), ChannelError> {
        if self.open > 0 {
            return Ok(());
        }
        self.sum = 0;
        for name in &self.queues {
            let queue = ShortStr::truncated(name);
            let declare = queue::Declare { queue, passive: true, ..Default::default() };
            machine.send(self.channel, &declare)?;
            self.open += 1;
        }
        Ok(())
    }

    /// Takes an answer.
    pub(crate) fn answered(&mut self, method: &Method<'_>) {
        if let Method::QueueDeclareOk(declared) = method
            && self.open > 0
        {
            self.sum += u64::from(declared.message_count);
            self.open -= 1;
            if self.open == 0 {
                self.last = Some(self.sum);
            }
        }
    }

    /// What was answered last, all queues together; once.
    pub(crate) fn take(&mut self) -> Option<u64> {
        self.last.take()
    }
}
