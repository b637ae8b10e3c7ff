//! Readiness of sockets, and a way to wake the thread that waits for it.
//!
//! Sockets are registered once and edge-triggered: the shard remembers what is readable or writable
//! and clears the memory when a call says "would block". A socket therefore costs one registration
//! in its whole life, whatever traffic it sees. Listeners are level-triggered and can be paused.
//!
//! `rustix` instead of `polling`: registering a descriptor is an unsafe function there, and the house
//! forbids unsafe code. Linux uses epoll; other Unix systems fall back to poll(2), which is slower
//! beyond some hundred connections and otherwise the same.

#[cfg(target_os = "linux")]
pub(crate) use epoll::{Poller, Waker};
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::{Poller, Waker};

/// What happened to one registered descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) key: usize,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer will send nothing more: read until the end is seen.
    pub(crate) hangup: bool,
    /// The socket is broken: nothing can be sent or received any more.
    pub(crate) error: bool,
}

/// The key under which a wake-up is reported.
const WAKE_KEY: usize = usize::MAX;

/// Events taken by one call; more stay in the kernel for the next turn.
#[cfg(target_os = "linux")]
const EVENTS_MAX: usize = 1024;

#[cfg(target_os = "linux")]
mod epoll {
    use super::{EVENTS_MAX, Ready, WAKE_KEY};
    use rustix::buffer::spare_capacity;
    use rustix::event::{self, EventfdFlags, PollFd, PollFlags, Timespec, epoll};
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::io::Errno;
    use std::io;
    use std::sync::Arc;

    /// Below this the millisecond clock of epoll_wait is too coarse for a group commit's gathering
    /// window, and the wait is done by ppoll(2) on the epoll descriptor itself.
    const FINE_TIMEOUT_MAX_US: u64 = 5_000;

    pub(crate) struct Poller {
        epoll: OwnedFd,
        wake: Arc<OwnedFd>,
        events: Vec<epoll::Event>,
    }

    /// Wakes the poller from any thread. Cheap to clone.
    #[derive(Clone)]
    pub(crate) struct Waker(Arc<OwnedFd>);

    impl Waker {
        pub(crate) fn wake(&self) {
            // The only failure is a counter at its 64-bit limit, and then the poller is awake anyway.
            let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
        }
    }

    impl Poller {
        pub(crate) fn new() -> io::Result<Poller> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let wake = event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Edge-triggered: every write is a new edge, so the counter is never read back.
            epoll::add(
                &epoll,
                &wake,
                epoll::EventData::new_u64(WAKE_KEY as u64),
                epoll::EventFlags::IN | epoll::EventFlags::ET,
            )?;
            Ok(Poller { epoll, wake: Arc::new(wake), events: Vec::with_capacity(EVENTS_MAX) })
        }

        pub(crate) fn waker(&self) -> Waker {
            Waker(self.wake.clone())
        }

        /// Registers a socket for its whole life; closing it removes it.
        pub(crate) fn add_socket(&mut self, socket: impl AsFd, key: usize) -> io::Result<()> {
            let interest = epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET;
            Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(key as u64), interest)?)
        }

        /// Nothing to do: closing the last descriptor takes it out of the set.
        pub(crate) fn remove_socket(&mut self, _key: usize) {}

        /// Nothing to do: the next edge is reported by itself.
        pub(crate) fn drained(&mut self, _key: usize) {}

        /// Nothing to do: the next edge is reported by itself.
        pub(crate) fn blocked(&mut self, _key: usize) {}

        pub(crate) fn add_listener(&mut self, listener: impl AsFd, key: usize) -> io::Result<()> {
            let data = epoll::EventData::new_u64(key as u64);
            Ok(epoll::add(&self.epoll, listener, data, epoll::EventFlags::IN)?)
        }

        pub(crate) fn remove_listener(
            &mut self,
            listener: impl AsFd,
            _key: usize,
        ) -> io::Result<()> {
            Ok(epoll::delete(&self.epoll, listener)?)
        }

        /// Waits for readiness, a wake-up, or the timeout (`None`: for ever).
        pub(crate) fn wait(&mut self, timeout_us: Option<u64>) -> io::Result<()> {
            self.events.clear();
            let timeout = timeout_us.map(|us| Timespec {
                tv_sec: (us / 1_000_000) as i64,
                tv_nsec: ((us % 1_000_000) * 1000) as _,
            });
            let mut timeout = timeout.as_ref();
            const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
            if timeout_us.is_some_and(|us| us > 0 && us < FINE_TIMEOUT_MAX_US) {
                let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
                match event::poll(&mut fds, timeout) {
                    Ok(0) | Err(Errno::INTR) => return Ok(()),
                    Ok(_) => timeout = Some(&NOW),
                    Err(error) => return Err(error.into()),
                }
            }
            match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout) {
                Ok(_) | Err(Errno::INTR) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }

        pub(crate) fn events_len(&self) -> usize {
            self.events.len()
        }

        /// The event at `index`; `None` for a mere wake-up.
        pub(crate) fn event(&self, index: usize) -> Option<Ready> {
            let event = self.events[index];
            let (flags, key) = (event.flags, event.data.u64() as usize);
            if key == WAKE_KEY {
                return None;
            }
            let hangup = flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP);
            Some(Ready {
                key,
                readable: hangup || flags.contains(epoll::EventFlags::IN),
                writable: flags.contains(epoll::EventFlags::OUT),
                hangup,
                error: flags.contains(epoll::EventFlags::ERR),
            })
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod portable {
    use super::{Ready, WAKE_KEY};
    use rustix::event::{self, PollFd, PollFlags, Timespec};
    use rustix::fd::{AsFd, OwnedFd};
    use rustix::io::Errno;
    use std::collections::BTreeMap;
    use std::io::{self, Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// A descriptor and what the shard does not know of it yet.
    struct Watched {
        fd: OwnedFd,
        read: bool,
        write: bool,
        listener: bool,
    }

    pub(crate) struct Poller {
        watched: BTreeMap<usize, Watched>,
        wake_read: UnixStream,
        wake_write: Arc<UnixStream>,
        events: Vec<Ready>,
    }

    /// Wakes the poller from any thread. Cheap to clone.
    #[derive(Clone)]
    pub(crate) struct Waker(Arc<UnixStream>);

    impl Waker {
        pub(crate) fn wake(&self) {
            // A full pipe means that a wake-up is already on its way.
            let _ = (&*self.0).write(&[1]);
        }
    }

    impl Poller {
        pub(crate) fn new() -> io::Result<Poller> {
            let (wake_read, wake_write) = UnixStream::pair()?;
            wake_read.set_nonblocking(true)?;
            wake_write.set_nonblocking(true)?;
            let wake_write = Arc::new(wake_write);
            Ok(Poller { watched: BTreeMap::new(), wake_read, wake_write, events: Vec::new() })
        }

        pub(crate) fn waker(&self) -> Waker {
            Waker(self.wake_write.clone())
        }

        pub(crate) fn add_socket(&mut self, socket: impl AsFd, key: usize) -> io::Result<()> {
            let fd = socket.as_fd().try_clone_to_owned()?;
            self.watched.insert(key, Watched { fd, read: true, write: true, listener: false });
            Ok(())
        }

        pub(crate) fn remove_socket(&mut self, key: usize) {
            self.watched.remove(&key);
        }

        /// A read would block: report the next arrival.
        pub(crate) fn drained(&mut self, key: usize) {
            if let Some(watched) = self.watched.get_mut(&key) {
                watched.read = true;
            }
        }

        /// A write would block: report when there is room.
        pub(crate) fn blocked(&mut self, key: usize) {
            if let Some(watched) = self.watched.get_mut(&key) {
                watched.write = true;
            }
        }

        pub(crate) fn add_listener(&mut self, listener: impl AsFd, key: usize) -> io::Result<()> {
            let fd = listener.as_fd().try_clone_to_owned()?;
            self.watched.insert(key, Watched { fd, read: true, write: false, listener: true });
            Ok(())
        }

        pub(crate) fn remove_listener(
            &mut self,
            _listener: impl AsFd,
            key: usize,
        ) -> io::Result<()> {
            self.watched.remove(&key);
            Ok(())
        }

        pub(crate) fn wait(&mut self, timeout_us: Option<u64>) -> io::Result<()> {
            self.events.clear();
            let timeout = timeout_us.map(|us| Timespec {
                tv_sec: (us / 1_000_000) as _,
                tv_nsec: ((us % 1_000_000) * 1000) as _,
            });
            let mut keys = vec![WAKE_KEY];
            let mut fds = vec![PollFd::new(&self.wake_read, PollFlags::IN)];
            for (key, watched) in &self.watched {
                let mut interest = PollFlags::empty();
                interest.set(PollFlags::IN, watched.read);
                interest.set(PollFlags::OUT, watched.write);
                if !interest.is_empty() {
                    keys.push(*key);
                    fds.push(PollFd::new(&watched.fd, interest));
                }
            }
            match event::poll(&mut fds, timeout.as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            for (key, fd) in keys.iter().zip(&fds) {
                let got = fd.revents();
                if got.is_empty() || *key == WAKE_KEY {
                    continue;
                }
                let hangup = got.contains(PollFlags::HUP);
                self.events.push(Ready {
                    key: *key,
                    readable: hangup || got.contains(PollFlags::IN),
                    writable: got.contains(PollFlags::OUT),
                    hangup,
                    error: got.intersects(PollFlags::ERR | PollFlags::NVAL),
                });
            }
            let woken = !fds[0].revents().is_empty();
            drop(fds);
            if woken {
                let mut sink = [0; 64];
                while matches!((&self.wake_read).read(&mut sink), Ok(n) if n == sink.len()) {}
            }
            for ready in &self.events {
                if let Some(watched) = self.watched.get_mut(&ready.key)
                    && !watched.listener
                {
                    watched.read &= !ready.readable;
                    watched.write &= !ready.writable;
                }
            }
            Ok(())
        }

        pub(crate) fn events_len(&self) -> usize {
            self.events.len()
        }

        pub(crate) fn event(&self, index: usize) -> Option<Ready> {
            Some(self.events[index])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Poller;

    #[test]
    fn a_wake_up_ends_the_wait() {
        let mut poller = Poller::new().unwrap();
        let waker = poller.waker();
        let thread = std::thread::spawn(move || waker.wake());
        poller.wait(None).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn a_timeout_below_a_millisecond_is_kept() {
        let mut poller = Poller::new().unwrap();
        let start = std::time::Instant::now();
        poller.wait(Some(300)).unwrap();
        assert!(start.elapsed() >= std::time::Duration::from_micros(300));
    }
}
