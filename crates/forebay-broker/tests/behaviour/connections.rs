use forebay_broker::{Admission, CloseHow, ConnectionId, Input, Notice, Peer, ShardConfig};
use forebay_wire::{
    PROTOCOL_HEADER, RawProperties, basic, channel, connection, queue, write_header_frame,
    write_method,
};

use crate::rig::{Rig, consume, declare, short};

#[test]
fn a_wrong_protocol_is_answered_with_ours_and_closed() {
    let mut rig = Rig::new();
    let id = rig.socket(true);
    rig.bytes(id, b"GET / HTTP/1.1\r\n");
    assert_eq!(rig.trace(id), [format!("{PROTOCOL_HEADER:?}")]);
    assert_eq!(rig.closed(), [(0, CloseHow::Flushed)]);
}

#[test]
fn a_connection_opens_byte_by_byte() {
    let mut rig = Rig::new();
    let id = rig.socket(true);
    let mut bytes = PROTOCOL_HEADER.to_vec();
    write_method(
        &mut bytes,
        0,
        &connection::StartOk {
            mechanism: short("PLAIN"),
            response: b"\0guest\0guest",
            locale: short("en_US"),
            ..connection::StartOk::default()
        },
    );
    let tune_ok = connection::TuneOk { channel_max: 10, frame_max: 4096, heartbeat: 0 };
    write_method(&mut bytes, 0, &tune_ok);
    let open = connection::Open { virtual_host: short("/"), ..connection::Open::default() };
    write_method(&mut bytes, 0, &open);
    for byte in bytes {
        rig.bytes(id, &[byte]);
    }
    assert_eq!(rig.trace(id), ["0 connection.start", "0 connection.tune", "0 connection.open-ok"]);
}

#[test]
fn a_refused_login_is_told_to_clients_that_can_hear_it() {
    let mut rig = Rig::new();
    let id = rig.socket(true);
    rig.bytes(id, &PROTOCOL_HEADER);
    rig.login(id, b"\0guest\0wrong");
    let trace = rig.trace(id);
    assert!(trace[1].starts_with("0 connection.close 403 ACCESS_REFUSED - Login was refused"));
}

#[test]
fn who_is_told_an_error_of_its_connection_is_told_to_the_operator() {
    let mut rig = Rig::new();
    let (address, user) = ("test:1".to_owned(), Some("guest".to_owned()));
    let id = rig.client();
    rig.method(id, 7, &declare("q", false));
    assert!(rig.trace(id)[0].starts_with("0 connection.close 504"));
    let text = "CHANNEL_ERROR - expected 'channel.open'".to_owned();
    let closed = Notice::ConnectionClosed { address, user, code: 504, text };
    assert_eq!(rig.shard.take_notice(), Some(closed));
    // A refused login has one line already, and who closes one channel needs none.
    let stranger = rig.socket(true);
    rig.bytes(stranger, &PROTOCOL_HEADER);
    rig.login(stranger, b"\0guest\0wrong");
    assert!(matches!(rig.shard.take_notice(), Some(Notice::LoginRefused { .. })));
    let other = rig.client();
    rig.method(other, 1, &consume("absent", "c", true));
    assert!(rig.trace(other)[0].starts_with("1 channel.close 404"));
    assert_eq!(rig.shard.take_notice(), None);
}

#[test]
fn guest_comes_over_loopback_only() {
    let mut rig = Rig::new();
    let id = rig.socket(false);
    rig.bytes(id, &PROTOCOL_HEADER);
    rig.login(id, b"\0guest\0guest");
    assert!(rig.trace(id)[1].starts_with("0 connection.close 403"));
}

#[test]
fn a_silent_handshake_is_closed_in_time() {
    let mut rig = Rig::new();
    rig.socket(true);
    rig.pass(9_900);
    assert_eq!(rig.closed(), []);
    rig.pass(200);
    assert_eq!(rig.closed(), [(0, CloseHow::Now)]);
}

#[test]
fn who_logs_in_and_opens_nothing_is_closed_in_time() {
    for heartbeat in [0, 60] {
        let mut rig = Rig::new();
        let id = rig.socket(true);
        rig.pass(4_000);
        rig.bytes(id, &PROTOCOL_HEADER);
        rig.login(id, b"\0guest\0guest");
        let tune_ok = connection::TuneOk { channel_max: 10, frame_max: 8192, heartbeat };
        rig.method(id, 0, &tune_ok);
        rig.pass(5_900);
        assert_eq!(rig.closed(), []);
        rig.pass(200);
        assert_eq!(rig.closed(), [(0, CloseHow::Now)]);
    }
}

#[test]
fn one_connection_too_many_is_closed() {
    let mut rig = Rig::with(ShardConfig { connections_max: 1, ..ShardConfig::default() });
    rig.client();
    rig.socket(true);
    assert_eq!(rig.closed(), [(1, CloseHow::Now)]);
}

#[test]
fn one_that_was_to_be_closed_and_is_gone_closes_nobody_in_its_place() {
    let mut rig = Rig::with(ShardConfig { connections_max: 1, ..ShardConfig::default() });
    let (first, second) = (rig.client(), rig.socket(true));
    rig.disconnect(second);
    rig.disconnect(first);
    let peer = Peer { address: "test:2".into(), loopback: true, listener: "test".into() };
    rig.step(Input::Connected { connection: second, peer });
    assert_eq!(rig.closed(), []);
}

#[test]
fn strangers_cannot_use_up_the_connections() {
    let mut rig = Rig::with(ShardConfig { handshakes_max: 2, ..ShardConfig::default() });
    rig.client();
    rig.client();
    rig.socket(true);
    let second = rig.socket(true);
    assert_eq!(rig.closed(), []);
    rig.socket(true);
    assert_eq!(rig.closed(), [(4, CloseHow::Now)]);
    rig.disconnect(second);
    rig.client();
    assert_eq!(rig.closed(), []);
}

#[test]
fn strangers_that_take_their_leave_are_counted_until_they_are_gone() {
    let mut rig = Rig::with(ShardConfig { handshakes_max: 1, ..ShardConfig::default() });
    let stays = rig.socket(true);
    rig.bytes(stays, &PROTOCOL_HEADER);
    rig.method(stays, 0, &connection::Close::default());
    assert_eq!(rig.closed(), [], "it is to close its socket itself");
    let second = rig.socket(true);
    assert_eq!(rig.closed(), [(second.0, CloseHow::Now)]);
    rig.disconnect(second);
    rig.disconnect(stays);
    rig.client();
    rig.socket(true);
    assert_eq!(rig.closed(), []);
}

#[test]
fn heartbeats_are_sent_and_missed_ones_close() {
    let mut rig = Rig::new();
    let id = rig.socket(true);
    rig.bytes(id, &PROTOCOL_HEADER);
    rig.login(id, b"\0guest\0guest");
    let tune_ok = connection::TuneOk { channel_max: 10, frame_max: 4096, heartbeat: 1 };
    rig.method(id, 0, &tune_ok);
    let open = connection::Open { virtual_host: short("/"), ..connection::Open::default() };
    rig.method(id, 0, &open);
    rig.trace(id);
    rig.pass(1_000);
    assert!(rig.sent(id).contains(&"heartbeat".to_owned()));
    assert_eq!(rig.closed(), []);
    rig.pass(2_100);
    assert_eq!(rig.closed(), [(0, CloseHow::Now)]);
}

/// Either answers to what it asked or a delivery wait for it; it says nothing, as if it had lost power.
#[test]
fn who_takes_nothing_any_more_and_is_silent_is_closed_whatever_waits_for_it() {
    for asks in [true, false] {
        let (mut rig, id) = with_much_outgoing(asks);
        rig.pass(2_000);
        assert_eq!(rig.closed(), []);
        rig.pass(2_000);
        assert_eq!(rig.closed(), [(id.0, CloseHow::Now)]);
    }
}

#[test]
fn who_takes_slowly_what_it_asked_for_stays() {
    let (mut rig, id) = with_much_outgoing(true);
    for _ in 0..10 {
        rig.pass(2_000);
        rig.step(Input::Sent { connection: id, bytes: 10_000 });
    }
    assert_eq!(rig.closed(), []);
    // Its heartbeats were not read meanwhile: it has the usual time after it has taken all.
    rig.pass(2_000);
    rig.sent(id);
    rig.pass(2_000);
    assert_eq!(rig.closed(), []);
    rig.pass(1_000);
    assert_eq!(rig.closed(), [(id.0, CloseHow::Now)]);
}

/// A client with a heartbeat of a second, for which two large messages wait.
fn with_much_outgoing(asks: bool) -> (Rig, ConnectionId) {
    let mut rig = Rig::new();
    let other = rig.client();
    rig.method(other, 1, &declare("q", false));
    for _ in 0..2 {
        rig.publish(other, "q", &[7; 1_000_000], false);
    }
    rig.trace(other);
    let id = rig.client_with(b"\0guest\0guest", 1);
    for _ in 0..2 {
        if asks {
            rig.method(id, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
        } else {
            rig.method(id, 1, &consume("q", "", false));
        }
    }
    rig.step(Input::Turn { busy: false });
    assert!(rig.shard.unsent_bytes(id) > 1_000_000);
    (rig, id)
}

#[test]
fn an_error_of_a_channel_leaves_the_others_alone() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 2, &channel::Open::default());
    let mut passive = declare("nowhere", false);
    passive.passive = true;
    rig.method(id, 2, &passive);
    rig.method(id, 2, &basic::Qos::default());
    rig.method(id, 1, &declare("here", false));
    assert_eq!(
        rig.trace(id),
        [
            "2 channel.open-ok",
            "2 channel.close 404 NOT_FOUND - no queue 'nowhere' in vhost '/'",
            "1 queue.declare-ok here 0 0",
        ]
    );
    rig.method(id, 2, &channel::CloseOk::default());
    rig.method(id, 2, &channel::Open::default());
    assert_eq!(rig.trace(id), ["2 channel.open-ok"]);
}

#[test]
fn a_method_on_a_channel_that_is_not_open_closes_the_connection() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 7, &basic::Qos::default());
    let trace = rig.trace(id);
    assert_eq!(trace, ["0 connection.close 504 CHANNEL_ERROR - expected 'channel.open'"]);
    rig.method(id, 0, &connection::CloseOk::default());
    assert_eq!(rig.closed(), [(0, CloseHow::Flushed)]);
}

#[test]
fn what_was_under_way_when_a_client_closed_its_channel_harms_nobody() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    rig.method(id, 2, &channel::Open::default());
    rig.trace(id);
    rig.method(id, 1, &channel::Close::default());
    rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    rig.publish(id, "q", b"lost", false);
    rig.method(id, 2, &declare("q", false));
    rig.method(id, 1, &channel::Open::default());
    rig.publish(id, "q", b"kept", false);
    rig.method(id, 1, &channel::Close::default());
    rig.method(id, 1, &basic::Qos::default());
    assert_eq!(
        rig.trace(id),
        [
            "1 channel.close-ok",
            "2 queue.declare-ok q 0 0",
            "1 channel.open-ok",
            "1 channel.close-ok",
            "0 connection.close 504 CHANNEL_ERROR - expected 'channel.open'",
        ]
    );
}

/// A program that publishes on a channel that it has closed long ago would never hear that its messages are lost.
#[test]
fn who_publishes_on_a_channel_that_he_has_closed_long_ago_is_told() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &channel::Close::default());
    rig.pass(2_000);
    rig.trace(id);
    rig.method(id, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    assert!(rig.trace(id).is_empty());
    rig.publish(id, "q", b"lost", false);
    let told = rig.trace(id);
    assert_eq!(told, ["0 connection.close 504 CHANNEL_ERROR - expected 'channel.open'"]);
}

#[test]
fn garbage_after_the_handshake_is_a_frame_error() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.bytes(id, &[99; 64]);
    assert!(rig.trace(id)[0].starts_with("0 connection.close 501 FRAME_ERROR"));
}

/// Before a login nobody is waited for.
#[test]
fn who_sends_something_else_in_place_of_a_login_is_told_and_closed() {
    let mut rig = Rig::new();
    for frame in [&[3, 0, 1, 0, 0, 0, 1, 7, 0xCE][..], &[1, 0, 0, 0, 0, 0, 4, 0, 10, 0, 99, 0xCE]] {
        let id = rig.socket(true);
        rig.bytes(id, &PROTOCOL_HEADER);
        rig.sent(id);
        rig.bytes(id, frame);
        let lines = rig.sent(id);
        assert!(lines[0].contains("0 connection.close 50"), "{lines:?}");
        assert_eq!(rig.closed(), [(id.0, CloseHow::Flushed)]);
        rig.disconnect(id);
    }
}

/// Each is answered, and nobody reads the answers.
#[test]
fn who_goes_on_closing_does_not_fill_the_memory() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 99, &queue::Purge::default());
    let mut bytes = Vec::new();
    write_method(&mut bytes, 0, &connection::Close::default());
    let many = bytes.repeat(1_000);
    for _ in 0..200 {
        rig.bytes(id, &many);
    }
    assert!(rig.shard.unsent_bytes(id) < 2 << 20, "{}", rig.shard.unsent_bytes(id));
    assert_eq!(rig.closed(), [(id.0, CloseHow::Now)]);
}

/// It was heard to its end, and is silent since; that others have to wait says nothing of it.
#[test]
fn a_publisher_that_is_gone_is_missed_though_publishers_are_paused() {
    let mut rig = Rig::small();
    let id = rig.client_with(b"\0guest\0guest", 1);
    rig.method(id, 1, &declare("q", true));
    rig.publish(id, "q", b"x", true);
    rig.trace(id);
    assert_eq!(rig.shard.admission(id), Admission::Open);
    let other = rig.client();
    rig.fill(other, "q");
    rig.pass(2_000);
    assert_eq!(rig.closed(), []);
    rig.pass(2_000);
    assert_eq!(rig.closed(), [(id.0, CloseHow::Now)]);
}

#[test]
fn a_channel_has_so_many_consumers_at_most() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.method(id, 1, &declare("q", false));
    let consume = basic::Consume { queue: short("q"), no_wait: true, ..basic::Consume::default() };
    for _ in 0..10_000 {
        let tag = basic::Consume { consumer_tag: short("wanted"), ..consume };
        rig.method(id, 1, if rig.shard.status().consumers == 0 { &tag } else { &consume });
    }
    rig.trace(id);
    assert_eq!(rig.shard.status().consumers, 10_000);
    // With a tag of its own or without.
    rig.method(id, 1, &consume);
    let lines = rig.trace(id);
    assert!(lines[0].contains("10000 consumers at most"), "{lines:?}");
}

#[test]
fn a_stop_tells_everybody_and_ends() {
    let mut rig = Rig::new();
    let id = rig.client();
    rig.step(forebay_broker::Input::Shutdown);
    let expected = "0 connection.close 320 CONNECTION_FORCED - broker forced connection closure \
                    with reason 'shutdown'";
    assert_eq!(rig.trace(id), [expected]);
    rig.method(id, 0, &connection::CloseOk::default());
    assert_eq!(rig.closed(), [(0, CloseHow::Flushed)]);
    rig.disconnect(id);
    rig.settle();
    assert!(rig.shard.stopped());
}

#[test]
fn a_virtual_host_has_as_many_connections_as_it_may() {
    let vhost_connections_max = vec![("/".to_owned(), 1)];
    let mut rig = Rig::with(ShardConfig { vhost_connections_max, ..ShardConfig::default() });
    let open = |rig: &mut Rig| {
        let id = rig.socket(true);
        rig.bytes(id, &PROTOCOL_HEADER);
        rig.login(id, b"\0guest\0guest");
        let tune_ok = connection::TuneOk { channel_max: 10, frame_max: 4096, heartbeat: 0 };
        rig.method(id, 0, &tune_ok);
        let open = connection::Open { virtual_host: short("/"), ..connection::Open::default() };
        rig.method(id, 0, &open);
        (id, rig.trace(id).pop().expect("an answer"))
    };
    let (first, answer) = open(&mut rig);
    assert_eq!(answer, "0 connection.open-ok");
    let (second, answer) = open(&mut rig);
    assert_eq!(
        answer,
        "0 connection.close 530 NOT_ALLOWED - access to vhost '/' refused for user 'guest': \
         connection limit (1) is reached"
    );
    // Who was refused was never counted; who is gone is not any more.
    rig.disconnect(second);
    assert!(open(&mut rig).1.contains("connection limit (1)"));
    rig.disconnect(first);
    assert_eq!(open(&mut rig).1, "0 connection.open-ok");
}

#[test]
fn names_are_text_and_routing_keys_are_what_publishers_say() {
    let key = forebay_wire::ShortStr::new(b"k\xff").unwrap();
    let mut rig = Rig::new();
    let client = rig.client();
    rig.method(client, 1, &declare("q", false));
    let everything = queue::Bind {
        queue: short("q"),
        exchange: short("amq.topic"),
        routing_key: short("#"),
        ..queue::Bind::default()
    };
    rig.method(client, 1, &everything);
    let mut bytes = Vec::new();
    let exchange = short("amq.topic");
    write_method(
        &mut bytes,
        1,
        &basic::Publish { exchange, routing_key: key, ..Default::default() },
    );
    write_header_frame(&mut bytes, 1, 60, 0, RawProperties::trusted(&[0, 0]));
    rig.bytes(client, &bytes);
    rig.method(client, 1, &basic::Get { queue: short("q"), ..basic::Get::default() });
    assert!(rig.trace(client).contains(&"1 basic.get-ok 1 left=0".to_owned()));

    let told = ["0 connection.close 501 FRAME_ERROR - Malformed UTF-8 in shortstr"];
    let bind = queue::Bind { routing_key: key, ..everything };
    rig.method(client, 1, &bind);
    assert_eq!(rig.trace(client), told);
    let client = rig.client();
    rig.method(client, 1, &queue::Declare { queue: key, ..declare("q", false) });
    assert_eq!(rig.trace(client), told);
    let client = rig.client();
    rig.method(client, 1, &basic::Consume { consumer_tag: key, ..consume("q", "c", true) });
    assert_eq!(rig.trace(client), told);
}
