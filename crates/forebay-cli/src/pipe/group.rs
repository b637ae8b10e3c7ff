//! Programs at work, each with all that it has started: none outlives us when we end at once.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// The leaders of those that live.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups(Arc<Mutex<HashSet<Pid>>>);

/// A program and all that it has started. Dropped, they are killed: nobody waits for them any more, and their message is for
/// another one.
#[derive(Debug)]
pub(crate) struct Group {
    groups: Groups,
    leader: Option<Pid>,
}

impl Groups {
    /// Starts a program in a group of its own: a Ctrl-C at the terminal is for us, who let it finish.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(&self, command: &mut Command) -> io::Result<(Child, Group)> {
        // Locked until it is known: nothing begins unseen beside `kill_and`.
        let mut live = self.live();
        let child = command.process_group(0).spawn()?;
        let leader = child.id().and_then(|id| Pid::from_raw(id as i32));
        live.extend(leader);
        Ok((child, Group { groups: self.clone(), leader }))
    }

    /// Kills all that live, and calls `exit`.
    pub(crate) fn kill_and(&self, exit: impl FnOnce()) {
        // Locked until we are gone: none begins, and that these have ended is not taken for a failure with their messages.
        let live = self.live();
        live.iter().copied().for_each(kill);
        exit();
    }

    fn live(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    /// It came to its end by itself; what it may have left in the background is its own concern.
    pub(crate) fn ended(mut self) {
        if let Some(leader) = self.leader.take() {
            self.groups.live().remove(&leader);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.leader.take() {
            kill(leader);
            self.groups.live().remove(&leader);
        }
    }
}

fn kill(leader: Pid) {
    // They may be gone.
    let _ = kill_process_group(leader, Signal::KILL);
}
