//! Readiness of many sockets, level-triggered, by epoll.
//!
//! `rustix` and not `polling`: registering a socket is unsafe there, and this workspace forbids unsafe.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

/// Events taken by one wait; more stay in the kernel for the next one.
const EVENTS_MAX: usize = 1024;

pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

/// What happened to the socket registered as `key`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    pub(crate) key: usize,
    /// Errors and ends are found by reading.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poller { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Watches a socket for reading until it is closed.
    pub(crate) fn add(&self, socket: impl AsFd, key: usize) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key as u64);
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
    }

    /// Watches a socket for writing as well, or no longer.
    pub(crate) fn watch_writing(
        &self,
        socket: impl AsFd,
        key: usize,
        writing: bool,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key as u64);
        let out = if writing { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        Ok(epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN | out)?)
    }

    /// Waits up to `wait_us` microseconds for something to be ready.
    pub(crate) fn wait(&mut self, wait_us: u64) -> io::Result<()> {
        self.events.clear();
        let timeout = Timespec {
            tv_sec: (wait_us / 1_000_000) as i64,
            tv_nsec: ((wait_us % 1_000_000) * 1000) as i64,
        };
        if wait_us > 0 {
            // epoll_wait counts milliseconds, ppoll on its descriptor nanoseconds.
            let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&now)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// How many are ready.
    pub(crate) fn ready_count(&self) -> usize {
        self.events.len()
    }

    /// One of them.
    pub(crate) fn ready(&self, at: usize) -> Ready {
        let event = self.events[at];
        let flags = event.flags;
        let bad = epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        Ready {
            key: event.data.u64() as usize,
            readable: flags.intersects(epoll::EventFlags::IN | bad),
            writable: flags.contains(epoll::EventFlags::OUT),
        }
    }
}
