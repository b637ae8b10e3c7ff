//! A link on a socket that takes nothing, from a broker that is heard all the same.

use forebay_wire::{
    Table, WireMethod, basic, channel, confirm, connection, write_body_frame, write_heartbeat,
    write_method, write_properties_frame,
};

use super::super::{Channel, Connection, ConsumeOptions, Publication};
use super::*;
use crate::machine::{Machine, Options};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// The other end: it says what was put down, then nothing but heartbeats.
struct Broker {
    says: Vec<u8>,
    takes: bool,
    gives_up_at: Instant,
}

#[derive(Clone)]
struct Socket(Arc<Mutex<Broker>>);

impl Socket {
    fn says(&self, channel: u16, method: &impl WireMethod) {
        write_method(&mut self.0.lock().unwrap().says, channel, method);
    }

    /// From now on there is nobody.
    fn hangs_up(&self) {
        self.0.lock().unwrap().gives_up_at = Instant::now();
    }

    /// Whether it takes bytes from now on.
    fn takes(&self, takes: bool) {
        self.0.lock().unwrap().takes = takes;
    }
}

impl Transport for Socket {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut broker = self.0.lock().unwrap();
        if broker.gives_up_at <= Instant::now() {
            return Ok(0);
        }
        if broker.says.is_empty() {
            write_heartbeat(&mut broker.says);
        }
        let count = broker.says.len().min(into.len());
        into[..count].copy_from_slice(&broker.says[..count]);
        broker.says.drain(..count);
        Ok(count)
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let takes = self.0.lock().unwrap().takes;
        if takes { Ok(bytes.len()) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    fn set_read_timeout(&mut self, _timeout: Option<Duration>) -> std::io::Result<bool> {
        Ok(true)
    }
}

/// A channel with confirms.
fn connected() -> (Connection, Channel, Socket) {
    connected_with(0)
}

/// The same, with so many channels at most; 0: as many as there can be.
fn connected_with(channel_max: u16) -> (Connection, Channel, Socket) {
    let gives_up_at = Instant::now() + PATIENCE;
    let broker = Broker { says: Vec::new(), takes: true, gives_up_at };
    let socket = Socket(Arc::new(Mutex::new(broker)));
    let start = connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties: Table::default(),
        mechanisms: b"PLAIN",
        locales: b"en_US",
    };
    socket.says(0, &start);
    socket.says(0, &connection::Tune { channel_max, ..Default::default() });
    socket.says(0, &connection::OpenOk::default());
    let options = Options { heartbeat_s: 0, ..Options::default() };
    let mut link = Link::new(Machine::new(options), Box::new(socket.clone()));
    link.open(PATIENCE).unwrap();
    let connection = Connection { link: Arc::new(Mutex::new(link)) };
    socket.says(1, &channel::OpenOk::default());
    let mut channel = connection.channel().unwrap();
    socket.says(1, &confirm::SelectOk::default());
    channel.confirm_select(100).unwrap();
    (connection, channel, socket)
}

fn is_all_sent(connection: &Connection) -> bool {
    lock(&connection.link).machine.outgoing().is_empty()
}

#[test]
fn waiting_ends_in_time_though_the_socket_takes_nothing() {
    let (connection, mut channel, socket) = connected();
    socket.says(1, &basic::ConsumeOk::default());
    let how = ConsumeOptions { no_ack: true, ..ConsumeOptions::default() };
    let mut consumer = channel.consume("q", how).unwrap();
    socket.takes(false);
    channel.publish(&Publication::default()).unwrap();
    let patience = Duration::from_millis(10);
    let began = Instant::now();
    assert_eq!(channel.pump(patience), Ok(()));
    assert_eq!(channel.wait_settled_for(patience), Ok(false));
    assert_eq!(consumer.next_message(Some(patience)), Ok(None));
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    assert!(!is_all_sent(&connection));
    socket.takes(true);
    assert_eq!(channel.pump(Duration::ZERO), Ok(()));
    assert!(is_all_sent(&connection), "what waited is sent as soon as that is possible");
}

#[test]
fn a_close_that_is_not_agreed_to_fails_in_time() {
    for takes in [false, true] {
        let (connection, mut channel, socket) = connected();
        socket.takes(takes);
        let closed = lock(&connection.link).close(Duration::from_millis(10));
        assert_eq!(closed, Err(Lost::end_unanswered()));
        let fault = ChannelFault::Lost(Lost::end_unanswered());
        assert_eq!(channel.pump(Duration::ZERO), Err(fault), "it is over for the others as well");
    }
}

#[test]
fn a_close_to_which_the_broker_only_hangs_up_fails() {
    let (connection, _channel, socket) = connected();
    socket.hangs_up();
    let closed = connection.close();
    assert!(matches!(closed, Err(Lost::Io(_))), "{closed:?}: acknowledgements may be lost");
}

fn delivered(socket: &Socket, delivery_tag: u64) {
    socket.says(1, &basic::Deliver { delivery_tag, ..Default::default() });
    let says = &mut socket.0.lock().unwrap().says;
    write_properties_frame(says, 1, 60, 1, &Default::default());
    write_body_frame(says, 1, b"m");
}

/// A consumer to which so many messages came together with the end of the connection, if that came with them.
fn consumer_of(messages: u64, closes: bool) -> (Connection, Socket, crate::blocking::Consumer) {
    let (connection, mut channel, socket) = connected();
    socket.says(1, &basic::ConsumeOk::default());
    let how = ConsumeOptions { no_ack: true, ..ConsumeOptions::default() };
    let consumer = channel.consume("q", how).unwrap();
    for delivery_tag in 1..=messages {
        delivered(&socket, delivery_tag);
    }
    if closes {
        socket.says(0, &connection::Close { reply_code: 320, ..Default::default() });
    }
    (connection, socket, consumer)
}

#[test]
fn what_came_before_the_end_of_the_connection_is_taken_first() {
    let (_connection, _socket, consumer) = consumer_of(3, true);
    let taken: Vec<bool> = consumer.map(|message| message.is_ok()).collect();
    assert_eq!(taken, [true, true, true, false], "nobody sends it again");
}

#[test]
fn a_message_is_handed_out_though_what_waits_to_be_sent_cannot_be() {
    let (connection, socket, mut consumer) = consumer_of(2, false);
    assert!(consumer.next_message(None).unwrap().is_some());
    {
        let machine = &mut lock(&connection.link).machine;
        let (nowhere, none) = (Default::default(), Default::default());
        machine.publish(1, nowhere, nowhere, false, none, &vec![0; SEND_BATCH_BYTES]).unwrap();
    }
    socket.takes(false);
    socket.hangs_up();
    assert!(consumer.next_message(None).unwrap().is_some(), "nobody sends it again");
    assert!(consumer.next_message(None).is_err());
}

#[test]
fn what_a_cancelled_consumer_left_is_not_the_next_ones_with_its_tag() {
    let (connection, mut channel, socket) = connected();
    let consume = |channel: &mut Channel, delivery_tag: u64| {
        socket.says(1, &basic::ConsumeOk::default());
        delivered(&socket, delivery_tag);
        let how = ConsumeOptions { no_ack: true, ..ConsumeOptions::default() };
        channel.consume("q", how).unwrap()
    };
    let tag_of = |message: Option<Message>| message.map(|message| message.delivery_tag());
    let mut first = consume(&mut channel, 1);
    delivered(&socket, 2);
    socket.says(1, &basic::CancelOk::default());
    first.cancel().unwrap();
    let mut second = consume(&mut channel, 3);
    assert_eq!(tag_of(second.next_message(Some(Duration::ZERO)).unwrap()), Some(3));
    assert_eq!(second.next_message(Some(Duration::ZERO)).unwrap(), None);
    first.cancel().unwrap();
    delivered(&socket, 4);
    assert_eq!(
        tag_of(second.next_message(None).unwrap()),
        Some(4),
        "it is not cancelled by another"
    );
    assert_eq!(tag_of(first.take_ready()), Some(1));
    assert!(first.has_ready());
    drop(first);
    assert_eq!(lock(&connection.link).delivery_bytes, 0, "nobody can take what a dropped one had");
    delivered(&socket, 5);
    assert_eq!(tag_of(second.next_message(None).unwrap()), Some(5));
}

#[test]
fn what_a_channel_had_when_the_broker_closed_it_is_its_own_though_another_has_its_number() {
    let (connection, mut first, socket) = connected();
    first.publish(&Publication::default()).unwrap();
    socket.says(1, &basic::Ack { delivery_tag: 1, multiple: false });
    socket.says(1, &channel::Close { reply_code: 406, ..Default::default() });
    assert!(first.pump(Duration::ZERO).is_err());
    socket.says(1, &channel::OpenOk::default());
    let mut second = connection.channel().unwrap();
    assert_eq!(second.number(), first.number());
    let settled = first.take_settled();
    assert_eq!(settled.iter().map(|settled| settled.acked).collect::<Vec<_>>(), [true]);
    assert!(second.take_settled().is_empty());
    let closed = first.flush().unwrap_err();
    assert!(matches!(closed, ChannelFault::Refused(_)), "{closed:?}");
    drop(first);
    assert_eq!(second.flush(), Ok(()), "only the other one is closed");
    assert!(lock(&connection.link).past.is_empty());
}

#[test]
fn a_channel_is_waited_for_while_another_is_being_closed() {
    let (connection, first, socket) = connected_with(1);
    let number = first.number();
    drop(first);
    socket.says(number, &channel::CloseOk::default());
    let mut link = lock(&connection.link);
    assert_eq!(link.open_channel().unwrap().number, number);
    assert!(link.open_channel().is_err(), "all are in use, and none is being closed");
}
