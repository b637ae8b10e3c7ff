//! The proxy: one thread, which waits with poll on all sockets and performs what two directions say.
//!
//! ```text
//!  orders ─► turn of both directions ─► write what has arrived ─► wait ─► accept, read
//!    ▲                                                                       │
//!    └───────────────────────────────────────────────────────────────────────┘
//! ```

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use slab::Slab;
use socket2::{Domain, SockRef, Socket, Type};

use super::conditions::{Conditions, ConditionsError};
use super::direction::{Direction, Key};

/// Bytes taken by one read.
const READ_BYTES: usize = 64 << 10;
/// Kernel buffers of our sockets in bytes, as small as they do no harm: what they hold is not on the link.
const KERNEL_BUFFER_BYTES: usize = 64 << 10;
/// Connections at a time; further ones wait until one has gone.
const CONNECTIONS_MAX: usize = 4096;
/// Orders that wait for the thread; whoever gives one more waits with it.
const ORDERS_MAX: usize = 16;

/// A loopback TCP proxy that behaves like a link. Ends when it is dropped, with all its connections.
#[derive(Debug)]
pub struct LinkProxy {
    address: SocketAddr,
    orders: SyncSender<(Order, SyncSender<usize>)>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Order {
    Set(Conditions),
    Stall(Duration),
    Cut,
    Refuse(bool),
    Count,
    End,
}

impl LinkProxy {
    /// Listens on a free port of 127.0.0.1 and passes connections on to `target`.
    ///
    /// # Errors
    /// The target has no address, the conditions are impossible (`InvalidInput`), or the system has no
    /// socket or thread for it.
    pub fn start(target: impl ToSocketAddrs, conditions: Conditions) -> io::Result<LinkProxy> {
        LinkProxy::start_at(("127.0.0.1", 0), target, conditions)
    }

    /// The same, listening at an address of choice.
    ///
    /// # Errors
    /// As [`LinkProxy::start`], or the address is taken.
    pub fn start_at(
        listen: impl ToSocketAddrs,
        target: impl ToSocketAddrs,
        conditions: Conditions,
    ) -> io::Result<LinkProxy> {
        conditions.check().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        let target = target.to_socket_addrs()?.next();
        let target = target.ok_or_else(|| io::Error::other("the target has no address"))?;
        let listener = TcpListener::bind(listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (orders, waiting) = sync_channel(ORDERS_MAX);
        let turner = Turner {
            listener,
            target,
            wake: wake.try_clone()?,
            orders: waiting,
            began: Instant::now(),
            up: Direction::new(0, conditions, 0x9e37_79b9_7f4a_7c15),
            down: Direction::new(0, conditions, 0xd1b5_4a32_d192_ed03),
            connections: Slab::new(),
            refusing: false,
            buffer: vec![0; READ_BYTES],
        };
        let thread =
            std::thread::Builder::new().name("link".to_owned()).spawn(move || turner.run())?;
        Ok(LinkProxy { address, orders, wake, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the link for what is sent from now on.
    ///
    /// # Errors
    /// There can be no such link; it stays as it was.
    pub fn set(&self, conditions: Conditions) -> Result<(), ConditionsError> {
        conditions.check()?;
        self.order(Order::Set(conditions));
        Ok(())
    }

    /// Nothing passes for this long, from now on; connections stay.
    pub fn stall(&self, time: Duration) {
        self.order(Order::Stall(time));
    }

    /// Resets all connections, on both sides; what is on the way is lost. Returns how many there were.
    pub fn cut(&self) -> usize {
        self.order(Order::Cut)
    }

    /// While `true`, new connections are reset at once.
    pub fn refuse(&self, refuse: bool) {
        self.order(Order::Refuse(refuse));
    }

    /// Connections at present.
    pub fn connections(&self) -> usize {
        self.order(Order::Count)
    }

    /// Returns when the thread has done it.
    fn order(&self, order: Order) -> usize {
        let (done, answer) = sync_channel(1);
        let sent = self.orders.send((order, done));
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).expect("an eventfd takes a 1");
        sent.ok()
            .and_then(|()| answer.recv().ok())
            .expect("the link's thread runs until it is told")
    }
}

impl Drop for LinkProxy {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && !thread.is_finished()
        {
            self.order(Order::End);
            // If it panicked it has said so.
            let _ = thread.join();
        }
    }
}

/// A client and its broker. `up` is from the client to the broker.
struct Passage {
    client: TcpStream,
    broker: TcpStream,
    /// The broker's side is not yet known to be connected.
    connecting: bool,
    up: Half,
    down: Half,
}

/// One direction of a passage.
struct Half {
    key: Key,
    /// Its sender may still send.
    open: bool,
    /// Its receiver was told of the end.
    over: bool,
    /// Its receiver's socket took all it could.
    full: bool,
}

impl Half {
    fn new(key: Key) -> Half {
        Half { key, open: true, over: false, full: false }
    }
}

struct Turner {
    listener: TcpListener,
    target: SocketAddr,
    wake: OwnedFd,
    orders: Receiver<(Order, SyncSender<usize>)>,
    began: Instant,
    up: Direction,
    down: Direction,
    connections: Slab<Passage>,
    refusing: bool,
    buffer: Vec<u8>,
}

impl Turner {
    fn run(mut self) {
        loop {
            while let Ok((order, done)) = self.orders.try_recv() {
                let end = matches!(order, Order::End);
                // Whoever asked may have gone meanwhile.
                let _ = done.send(self.perform(order));
                if end {
                    return;
                }
            }
            let now_us = self.now_us();
            self.up.turn(now_us);
            self.down.turn(now_us);
            let keys: Vec<Key> = self.connections.iter().map(|(key, _)| key).collect();
            for key in keys {
                self.serve(key, now_us, Self::write);
            }
            self.wait_and_read();
        }
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn perform(&mut self, order: Order) -> usize {
        let count = self.connections.len();
        let now_us = self.now_us();
        match order {
            Order::Set(conditions) => {
                self.up.set(now_us, conditions);
                self.down.set(now_us, conditions);
            }
            Order::Stall(time) => {
                let until_us = now_us.saturating_add(time.as_micros() as u64);
                self.up.stall(until_us);
                self.down.stall(until_us);
            }
            Order::Cut | Order::End => {
                for key in self.connections.iter().map(|(key, _)| key).collect::<Vec<_>>() {
                    self.reset(key);
                }
            }
            Order::Refuse(refuse) => self.refusing = refuse,
            Order::Count => {}
        }
        count
    }

    /// Does something for a connection, and ends it if that fails or nothing is left to do.
    fn serve(&mut self, key: Key, now_us: u64, work: fn(&mut Self, Key, u64) -> io::Result<()>) {
        // A side that was reset: the other one shall see the same.
        if work(self, key, now_us).is_err() {
            self.reset(key);
        } else if self.connections[key].up.over && self.connections[key].down.over {
            self.forget(key);
        }
    }

    fn write(&mut self, key: Key, now_us: u64) -> io::Result<()> {
        let passage = &mut self.connections[key];
        if !passage.connecting {
            write_half(&mut self.up, &mut passage.up, &mut passage.broker, now_us)?;
        }
        write_half(&mut self.down, &mut passage.down, &mut passage.client, now_us)
    }

    fn read_client(&mut self, key: Key, now_us: u64) -> io::Result<()> {
        let passage = &mut self.connections[key];
        read_half(&mut self.up, &mut passage.up, &mut passage.client, &mut self.buffer, now_us)
    }

    fn read_broker(&mut self, key: Key, now_us: u64) -> io::Result<()> {
        let passage = &mut self.connections[key];
        if std::mem::take(&mut passage.connecting)
            && let Some(error) = passage.broker.take_error()?
        {
            return Err(error);
        }
        read_half(&mut self.down, &mut passage.down, &mut passage.broker, &mut self.buffer, now_us)
    }

    fn wait_and_read(&mut self) {
        let timeout = [self.up.next_us(), self.down.next_us()].into_iter().flatten().min();
        let timeout = timeout.map(|us| timespec(us.saturating_sub(self.now_us())));
        let mut watched = Vec::with_capacity(2 * self.connections.len());
        let listener = if self.connections.len() < CONNECTIONS_MAX {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds =
            vec![PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.listener, listener)];
        // A socket without interest is left out: poll tells of its end all the same, again and again.
        for (key, passage) in &self.connections {
            let up_room = passage.up.open && self.up.room_bytes(passage.up.key) > 0;
            let client = interest(up_room, passage.down.full);
            if !client.is_empty() {
                watched.push((key, true));
                fds.push(PollFd::new(&passage.client, client));
            }
            let down_room = passage.down.open && self.down.room_bytes(passage.down.key) > 0;
            let broker = if passage.connecting {
                PollFlags::OUT
            } else {
                interest(down_room, passage.up.full)
            };
            if !broker.is_empty() {
                watched.push((key, false));
                fds.push(PollFd::new(&passage.broker, broker));
            }
        }
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return; // interrupted: the loop asks again
        }
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        if !ready[0].is_empty() {
            // Empty already is as good.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        let now_us = self.now_us();
        for ((key, is_client), ready) in watched.into_iter().zip(&ready[2..]) {
            let readable = ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
            let Some(passage) = self.connections.get_mut(key) else { continue };
            if ready.intersects(PollFlags::OUT) {
                let half = if is_client { &mut passage.down } else { &mut passage.up };
                half.full = false;
            }
            if is_client && readable {
                self.serve(key, now_us, Self::read_client);
            } else if !is_client && (readable || passage.connecting && !ready.is_empty()) {
                self.serve(key, now_us, Self::read_broker);
            }
        }
        if ready[1].intersects(PollFlags::IN) {
            self.accept();
        }
    }

    fn accept(&mut self) {
        // Whatever is wrong with one that waits, the next one may be well.
        while let Ok((client, _)) = self.listener.accept() {
            let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
            if self.refusing {
                continue;
            }
            let Ok(broker) = self.dial(&client) else { continue };
            let _ = SockRef::from(&client).set_linger(None);
            self.connections.insert(Passage {
                client,
                broker,
                connecting: true,
                up: Half::new(self.up.open()),
                down: Half::new(self.down.open()),
            });
            if self.connections.len() >= CONNECTIONS_MAX {
                return;
            }
        }
    }

    /// Begins a connection to the target.
    fn dial(&self, client: &TcpStream) -> io::Result<TcpStream> {
        let broker = Socket::new(Domain::for_address(self.target), Type::STREAM, None)?;
        for socket in [&*SockRef::from(client), &broker] {
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            socket.set_recv_buffer_size(KERNEL_BUFFER_BYTES)?;
            socket.set_send_buffer_size(KERNEL_BUFFER_BYTES)?;
        }
        match broker.connect(&self.target.into()) {
            Ok(()) => {}
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Ok(broker.into())
    }

    /// Ends a connection so that both sides see it broken.
    fn reset(&mut self, key: Key) {
        let passage = &self.connections[key];
        for socket in [&passage.client, &passage.broker] {
            // If the system refuses they see an orderly end, which is an end, too.
            let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        }
        self.forget(key);
    }

    fn forget(&mut self, key: Key) {
        let passage = self.connections.remove(key);
        self.up.close(passage.up.key);
        self.down.close(passage.down.key);
    }
}

fn interest(read: bool, write: bool) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, read);
    flags.set(PollFlags::OUT, write);
    flags
}

fn timespec(us: u64) -> Timespec {
    Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1000) as i64 }
}

fn write_half(
    direction: &mut Direction,
    half: &mut Half,
    to: &mut TcpStream,
    now_us: u64,
) -> io::Result<()> {
    while !half.full && !direction.arrived(half.key).is_empty() {
        match to.write(direction.arrived(half.key)) {
            Ok(bytes) => {
                direction.take(half.key, bytes);
                // What was taken makes room for more to arrive.
                direction.turn(now_us);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => half.full = true,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if direction.take_end(now_us, half.key) {
        half.over = true;
        to.shutdown(Shutdown::Write)?;
    }
    Ok(())
}

fn read_half(
    direction: &mut Direction,
    half: &mut Half,
    from: &mut TcpStream,
    buffer: &mut [u8],
    now_us: u64,
) -> io::Result<()> {
    let room = direction.room_bytes(half.key).min(buffer.len());
    if room == 0 || !half.open {
        return Ok(());
    }
    match from.read(&mut buffer[..room]) {
        Ok(0) => {
            half.open = false;
            direction.push_end(now_us, half.key);
        }
        Ok(bytes) => direction.push(now_us, half.key, &buffer[..bytes]),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
