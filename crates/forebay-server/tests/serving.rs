//! A server over real sockets: who is let in, who is told what, and that nobody holds up others.

mod rig;

use forebay_client::blocking::{ConsumeOptions, DeclareQueue, Publication};
use forebay_server::{Config, UserSetting};
use rig::*;
use std::io::{Read, Write};

const START: (u16, u16) = (10, 10);
const CLOSE: (u16, u16) = (10, 50);

#[test]
fn port_zero_is_resolved_and_several_listeners_serve() {
    let mut config = in_memory();
    config.amqp.push("127.0.0.1:0".into());
    let server = start(config);
    let addresses = &server.addresses().amqp;
    assert_eq!(addresses.len(), 2);
    assert!(addresses.iter().all(|address| address.port() != 0));
    for address in addresses {
        forebay_client::blocking::Connection::open(&format!("amqp://guest:guest@{address}"))
            .unwrap();
    }
    let third = server.listen("127.0.0.1:0").unwrap();
    forebay_client::blocking::Connection::open(&format!("amqp://guest:guest@{third}")).unwrap();
    server.stop().unwrap();
}

#[test]
fn the_protocol_header_is_answered_with_connection_start() {
    let server = start(in_memory());
    let mut socket = socket(&server);
    // In two parts, as a network may deliver it.
    socket.write_all(b"AMQ").unwrap();
    socket.write_all(b"P\x00\x00\x09\x01").unwrap();
    assert_eq!(method_of(&read_frame(&mut socket)), START);
}

#[test]
fn a_wrong_protocol_header_is_answered_with_the_right_one_and_the_end() {
    let server = start(in_memory());
    for wrong in [&b"HTTP/1.1 GET /\r\n\r\n"[..], b"AMQP\x03\x01\x00\x00"] {
        let mut socket = socket(&server);
        socket.write_all(wrong).unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"AMQP\x00\x00\x09\x01");
    }
}

#[test]
fn whoever_was_sent_away_and_stays_keeps_nobody_out() {
    let server = start(Config { connections_max: 2, ..in_memory() });
    let sent_away = [(); 2].map(|()| {
        let mut socket = socket(&server);
        socket.write_all(b"AMQP\x03\x01\x00\x00").unwrap();
        socket.read_to_end(&mut Vec::new()).unwrap();
        socket
    });
    let _first = connect(&server);
    let _second = connect(&server);
    let mut third = socket(&server);
    assert_eq!(third.read(&mut [0]).unwrap_or(0), 0, "there is no room for more");
    drop(sent_away);
    server.stop().unwrap();
}

#[test]
fn messages_pass_through_and_are_counted() {
    let server = start(in_memory());
    let connection = connect(&server);
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    channel.confirm_select(50).unwrap();
    let mut consumer = channel.consume("q", ConsumeOptions::default()).unwrap();
    for number in 0..1000u32 {
        let body = number.to_be_bytes();
        channel
            .publish(&Publication { routing_key: "q", body: &body, ..Default::default() })
            .unwrap();
    }
    channel.wait_settled().unwrap();
    for number in 0..1000u32 {
        let message = consumer.next_message(Some(PATIENCE)).unwrap().expect("a message");
        assert_eq!(message.body(), number.to_be_bytes());
        consumer.ack(&message, false).unwrap();
    }
    consumer.flush().unwrap();
    until("all acknowledged", || server.status().unwrap().broker.counters.acknowledged == 1000);
    let status = server.status().unwrap();
    assert_eq!(status.broker.counters.published, 1000);
    assert_eq!(status.broker.connections, 1);
    assert_eq!(status.broker.queues[0].name, "q");
    assert!(status.shell.received_bytes > 1000);
}

#[test]
fn an_in_process_connection_speaks_the_same_protocol() {
    let server = start(in_memory());
    let mut stream = server.connect();
    stream.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    assert_eq!(method_of(&read_frame(&mut stream)), START);
    drop(stream);
    until("it is forgotten", || server.status().unwrap().shell.connections_open == 0);
}

#[test]
fn a_body_of_several_frames_survives() {
    let server = start(in_memory());
    let mut channel = connect(&server).channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    let body: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    channel.publish(&Publication { routing_key: "q", body: &body, ..Default::default() }).unwrap();
    let (message, left) = channel.get("q", true).unwrap().expect("the message");
    assert_eq!(left, 0);
    assert!(message.body() == body);
}

#[test]
fn a_peer_that_does_not_read_holds_up_nobody() {
    let server = start(in_memory());
    let publisher = connect(&server);
    let mut channel = publisher.channel().unwrap();
    channel.declare_queue("slow", DeclareQueue::default()).unwrap();
    channel.declare_queue("fast", DeclareQueue::default()).unwrap();
    // It asks for everything without acks and then never reads: its socket fills up.
    let deaf = connect(&server);
    let mut deaf_channel = deaf.channel().unwrap();
    let no_ack = ConsumeOptions { no_ack: true, ..ConsumeOptions::default() };
    let _deaf_consumer = deaf_channel.consume("slow", no_ack).unwrap();
    let body = vec![7; 100_000];
    for _ in 0..200 {
        let message = Publication { routing_key: "slow", body: &body, ..Default::default() };
        channel.publish(&message).unwrap();
    }
    channel.confirm_select(10).unwrap();
    for _ in 0..100 {
        let message = Publication { routing_key: "fast", body: b"x", ..Default::default() };
        channel.publish(&message).unwrap();
    }
    channel.wait_settled().unwrap();
    for _ in 0..100 {
        assert!(channel.get("fast", true).unwrap().is_some());
    }
}

#[test]
fn a_peer_that_vanishes_is_forgotten_and_its_messages_go_back() {
    let server = start(in_memory());
    let mut channel = connect(&server).channel().unwrap();
    channel.declare_queue("q", DeclareQueue::default()).unwrap();
    channel.confirm_select(1).unwrap();
    channel.publish(&Publication { routing_key: "q", body: b"x", ..Default::default() }).unwrap();
    channel.wait_settled().unwrap();
    {
        let mut other = connect(&server).channel().unwrap();
        assert!(other.get("q", false).unwrap().is_some());
    }
    until("it goes back", || server.status().unwrap().broker.ready == 1);
    let (message, _) = channel.get("q", true).unwrap().unwrap();
    assert!(message.redelivered());
}

#[test]
fn one_connection_too_many_is_closed_and_the_others_live() {
    let mut config = in_memory();
    config.connections_max = 2;
    let server = start(config);
    let first = connect(&server);
    let second = connect(&server);
    let mut third = socket(&server);
    let _ = third.write_all(b"AMQP\x00\x00\x09\x01");
    let mut answer = Vec::new();
    // The end or a reset, depending on who was faster; but no login.
    let _ = third.read_to_end(&mut answer);
    assert!(answer.is_empty());
    first.channel().unwrap();
    second.channel().unwrap();
    assert_eq!(server.status().unwrap().shell.connections_refused, 1);
    drop(first);
    until("room again", || server.status().unwrap().shell.connections_open < 2);
    connect(&server).channel().unwrap();
}

#[test]
fn a_handshake_that_never_comes_is_given_up() {
    let mut config = in_memory();
    config.handshake_timeout_ms = 50;
    let server = start(config);
    let mut silent = socket(&server);
    let mut answer = Vec::new();
    let _ = silent.read_to_end(&mut answer);
    until("it is forgotten", || server.status().unwrap().shell.connections_open == 0);
}

#[test]
fn users_of_the_configuration_may_log_in_and_others_not() {
    let mut config = in_memory();
    config.vhosts.push("shop".into());
    config.users.push(UserSetting::with_password("app", "secret", "shop"));
    let server = start(config);
    let address = address(&server);
    let open = |login: &str| forebay_client::blocking::Connection::open(&format!("amqp://{login}"));
    assert!(open(&format!("app:secret@{address}/shop")).is_ok());
    assert!(open(&format!("app:wrong@{address}/shop")).is_err());
    assert!(open(&format!("app:secret@{address}/%2f")).is_err());
}

#[test]
fn stopping_tells_every_client_and_ends_every_thread() {
    let server = start(in_memory());
    let mut socket = socket(&server);
    // A login by hand, to see the very bytes of the farewell.
    socket.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
    assert_eq!(method_of(&read_frame(&mut socket)), START);
    let method = |payload: &[u8]| {
        let mut frame = vec![1, 0, 0];
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(payload);
        frame.push(206);
        frame
    };
    let start_ok = b"\0\x0a\0\x0b\0\0\0\0\x05PLAIN\0\0\0\x0c\0guest\0guest\x05en_US";
    socket.write_all(&method(start_ok)).unwrap();
    assert_eq!(method_of(&read_frame(&mut socket)), (10, 30), "connection.tune");
    socket.write_all(&method(b"\0\x0a\0\x1f\x07\xff\0\x02\0\0\0\0")).unwrap();
    socket.write_all(&method(b"\0\x0a\0\x28\x01/\0\0")).unwrap();
    assert_eq!(method_of(&read_frame(&mut socket)), (10, 41), "connection.open-ok");

    let in_process = server.connect();
    let address = address(&server);
    let stopping = std::thread::spawn(move || server.stop());
    let close = read_frame(&mut socket);
    assert_eq!(method_of(&close), CLOSE);
    assert_eq!(u16::from_be_bytes([close.2[4], close.2[5]]), 320);
    let text = String::from_utf8_lossy(&close.2[7..7 + usize::from(close.2[6])]).into_owned();
    assert_eq!(text, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'");
    socket.write_all(&method(b"\0\x0a\0\x33")).unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    stopping.join().unwrap().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
    drop(in_process);
}

#[test]
fn a_client_that_ignores_the_farewell_is_cut_after_the_drain_timeout() {
    let mut config = in_memory();
    config.drain_timeout = std::time::Duration::from_millis(50);
    let server = start(config);
    let deaf = connect(&server);
    server.stop().unwrap();
    drop(deaf);
}

#[test]
fn confirmed_messages_survive_a_stop() {
    let dir = Dir::new();
    let server = start(on_disk(&dir));
    let mut channel = connect(&server).channel().unwrap();
    channel.declare_queue("q", DeclareQueue { durable: true, ..DeclareQueue::default() }).unwrap();
    channel.confirm_select(100).unwrap();
    for number in 0..100u32 {
        let properties = forebay_wire::Properties { delivery_mode: Some(2), ..Default::default() };
        let body = number.to_be_bytes();
        channel
            .publish(&Publication {
                routing_key: "q",
                properties,
                body: &body,
                ..Default::default()
            })
            .unwrap();
    }
    channel.wait_settled().unwrap();
    drop(channel);
    server.stop().unwrap();

    let server = start(on_disk(&dir));
    let mut channel = connect(&server).channel().unwrap();
    for number in 0..100u32 {
        let (message, _) = channel.get("q", true).unwrap().expect("it was confirmed");
        assert_eq!(message.body(), number.to_be_bytes());
        assert!(!message.redelivered(), "a clean stop remembers what was delivered");
    }
    assert!(channel.get("q", true).unwrap().is_none());
}

#[test]
fn who_connects_inside_the_process_after_the_stop_is_not_left_waiting() {
    let server = start(in_memory());
    let connect = server.connector();
    server.stop().unwrap();
    let mut stream = connect();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "the end, at once");
    assert!(stream.write_all(b"AMQP\x00\x00\x09\x01").is_err());
}

#[test]
fn dropping_a_server_stops_it() {
    let server = start(in_memory());
    let address = address(&server);
    drop(server);
    assert!(std::net::TcpStream::connect(address).is_err());
}
