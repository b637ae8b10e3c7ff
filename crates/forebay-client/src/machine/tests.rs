//! The machine by example, and the promise that the cut of its input does not matter.

use super::*;
use forebay_wire::{
    Properties, TableBuf, Value, WireMethod, confirm, queue, write_body_frame, write_header_frame,
    write_heartbeat, write_method,
};
use proptest::prelude::*;

/// What a broker writes, for tests.
#[derive(Default, Clone, Debug)]
struct Script(Vec<u8>);

impl Script {
    fn method(mut self, channel: u16, method: &impl WireMethod) -> Script {
        write_method(&mut self.0, channel, method);
        self
    }

    fn content(mut self, channel: u16, body: &[u8], frame_payload_bytes: usize) -> Script {
        let mut properties = Vec::new();
        Properties { delivery_mode: Some(2), ..Default::default() }.encode(&mut properties);
        let properties = RawProperties::validate(&properties).unwrap();
        write_header_frame(&mut self.0, channel, 60, body.len() as u64, properties);
        for payload in body.chunks(frame_payload_bytes) {
            write_body_frame(&mut self.0, channel, payload);
        }
        self
    }

    fn deliver(self, channel: u16, delivery_tag: u64, body: &[u8], frame_bytes: usize) -> Script {
        let deliver = basic::Deliver {
            consumer_tag: ShortStr::truncated("c"),
            delivery_tag,
            routing_key: ShortStr::truncated("q"),
            ..Default::default()
        };
        self.method(channel, &deliver).content(channel, body, frame_bytes)
    }

    fn heartbeat(mut self) -> Script {
        write_heartbeat(&mut self.0);
        self
    }
}

fn start(mechanisms: &[u8]) -> Script {
    let capabilities = TableBuf::new().with("publisher_confirms", Value::Bool(true));
    let server = TableBuf::new()
        .with("product", Value::LongStr(b"Broker"))
        .with("version", Value::LongStr(b"3.13.0"))
        .with("forebay_version", Value::LongStr(b"1.2.3"))
        .with("capabilities", Value::Table(capabilities.as_table()));
    Script::default().method(
        0,
        &connection::Start {
            version_minor: 9,
            server_properties: server.as_table(),
            mechanisms,
            locales: b"en_US",
            ..Default::default()
        },
    )
}

fn handshake() -> Script {
    start(b"AMQPLAIN PLAIN")
        .method(0, &connection::Tune { channel_max: 2047, frame_max: 131_072, heartbeat: 60 })
        .method(0, &connection::OpenOk::default())
}

/// Feeds all of `bytes` and tells the events as text, and how it ended.
fn feed(machine: &mut Machine, mut bytes: &[u8]) -> Result<Vec<String>, Failed> {
    let mut told = Vec::new();
    while let Some(event) = machine.poll_event(&mut bytes)? {
        told.push(format!("{event:?}"));
    }
    assert!(bytes.is_empty(), "{} bytes were left over", bytes.len());
    Ok(told)
}

/// An open connection with channels 1 and 2, confirms on channel 1.
fn open() -> Machine {
    let mut machine = Machine::new(Options::default());
    feed(&mut machine, &handshake().0).unwrap();
    for number in 1..=2 {
        assert_eq!(machine.open_channel(), Ok(number));
        let ok = Script::default().method(number, &forebay_wire::channel::OpenOk::default());
        feed(&mut machine, &ok.0).unwrap();
    }
    machine.select_confirms(1).unwrap();
    feed(&mut machine, &Script::default().method(1, &confirm::SelectOk::default()).0).unwrap();
    machine.sent(usize::MAX);
    machine
}

/// The methods that wait in the send buffer.
fn outgoing(machine: &Machine) -> Vec<String> {
    let mut bytes = machine.outgoing();
    let mut seen = Vec::new();
    while let Some(frame) = read_frame(bytes, 0).unwrap() {
        seen.push(match frame.kind {
            FrameKind::Method => Method::parse(frame.payload).unwrap().name().to_owned(),
            kind => format!("{kind:?} {}", frame.payload.len()),
        });
        bytes = &bytes[frame.size_bytes()..];
    }
    seen
}

fn publish(machine: &mut Machine, body: &[u8]) -> Result<u64, PublishError> {
    let nothing = RawProperties::validate(&[0, 0]).unwrap();
    let key = ShortStr::truncated("q");
    machine.publish(1, ShortStr::default(), key, true, nothing, body)
}

#[test]
fn a_handshake_leads_to_an_open_connection() {
    let mut machine = Machine::new(Options { heartbeat_s: 30, ..Options::default() });
    assert_eq!(machine.outgoing(), b"AMQP\x00\x00\x09\x01");
    machine.sent(8);
    assert_eq!(feed(&mut machine, &handshake().0).unwrap(), ["Opened"]);
    assert_eq!(
        outgoing(&machine),
        ["connection.start-ok", "connection.tune-ok", "connection.open"]
    );
    assert_eq!(machine.server().product, "Broker");
    assert_eq!(machine.server().version, "1.2.3");
    assert!(machine.server().can("publisher_confirms"));
    assert_eq!(machine.limits().heartbeat_s, 30);
    assert_eq!(machine.state(), State::Open);
}

#[test]
fn a_refused_login_is_a_close_with_its_text() {
    let mut machine = Machine::new(Options::default());
    let text = "ACCESS_REFUSED - Login was refused";
    let close = connection::Close {
        reply_code: 403,
        reply_text: ShortStr::truncated(text),
        ..Default::default()
    };
    let told = feed(&mut machine, &start(b"PLAIN").method(0, &close).0).unwrap();
    assert!(told[0].contains("Closed") && told[0].contains("403"), "{told:?}");
    assert_eq!(machine.state(), State::Over);
    assert_eq!(outgoing_after_header(&machine).last().unwrap(), "connection.close-ok");
    assert_eq!(machine.hung_up(), Ok(()));
}

/// The server takes the name from the client's certificate (RFC 4422 appendix A): neither it nor a password is said.
#[test]
fn an_external_login_says_nothing_but_that() {
    let files = "cacertfile=ca.pem&certfile=client.pem&keyfile=key.pem";
    for (mechanism, offered) in
        [("external", &b"PLAIN AMQPLAIN EXTERNAL"[..]), ("EXTERNAL", b"EXTERNAL")]
    {
        let uri = format!("amqps://guest:sesame@host/v?{files}&auth_mechanism={mechanism}");
        let options = Options::from_uri(&uri.parse().unwrap());
        let mut machine = Machine::new(options.clone());
        machine.sent(8);
        feed(&mut machine, &start(offered).0).unwrap();
        let frame = read_frame(machine.outgoing(), 0).unwrap().expect("an answer");
        let Method::ConnectionStartOk(ok) = Method::parse(frame.payload).unwrap() else {
            panic!("{:?}", outgoing(&machine));
        };
        assert_eq!((ok.mechanism.as_bytes(), ok.response), (&b"EXTERNAL"[..], &b""[..]));
        assert!(!machine.outgoing().windows(6).any(|bytes| bytes == b"sesame"));
        let tune = connection::Tune { channel_max: 2047, frame_max: 131_072, heartbeat: 60 };
        let rest = Script::default().method(0, &tune).method(0, &connection::OpenOk::default());
        assert_eq!(feed(&mut machine, &rest.0).unwrap(), ["Opened"]);

        // What the server does not offer is not tried, and no password is sent instead.
        let mut machine = Machine::new(options);
        machine.sent(8);
        let failed = feed(&mut machine, &start(b"PLAIN").0).unwrap_err();
        assert_eq!(failed, Failed::NoSuchLogin { wanted: "EXTERNAL", offered: "PLAIN".into() });
        assert!(machine.outgoing().is_empty());
    }
}

fn outgoing_after_header(machine: &Machine) -> Vec<String> {
    let mut copy = Machine::new(Options::default());
    copy.outgoing = Outgoing::default();
    copy.outgoing.tail().extend_from_slice(&machine.outgoing()[8..]);
    outgoing(&copy)
}

#[test]
fn other_protocols_and_other_logins_are_told_apart() {
    let mut machine = Machine::new(Options::default());
    let mut said: &[u8] = b"HTTP/1.1 400 Bad Request";
    let failed = machine.poll_event(&mut said).unwrap_err();
    assert_eq!(failed, Failed::OtherProtocol { said: *b"HTTP/1.1" });

    let mut machine = Machine::new(Options::default());
    let failed = feed(&mut machine, &start(b"EXTERNAL").0).unwrap_err();
    assert_eq!(failed, Failed::NoSuchLogin { wanted: "PLAIN", offered: "EXTERNAL".into() });

    let mut machine = Machine::new(Options::default());
    assert_eq!(machine.hung_up(), Err(Failed::HungUpAtLogin));
}

#[test]
fn a_large_body_is_split_at_the_frame_limit() {
    let mut machine = open();
    assert_eq!(publish(&mut machine, &vec![1; 300_000]), Ok(1));
    assert_eq!(
        outgoing(&machine),
        ["basic.publish", "Header 14", "Body 131064", "Body 131064", "Body 37872"]
    );
    machine.sent(usize::MAX);
    assert_eq!(publish(&mut machine, b""), Ok(2));
    assert_eq!(outgoing(&machine), ["basic.publish", "Header 14"]);
}

#[test]
fn a_full_send_buffer_takes_no_more_publishes_but_acks() {
    let mut machine = open();
    let body = vec![0; 100_000];
    let taken = (0..).take_while(|_| publish(&mut machine, &body).is_ok()).count();
    assert_eq!(taken, OUTGOING_BYTES_MAX / 100_000 + 1);
    assert_eq!(publish(&mut machine, b"x"), Err(PublishError::Full));
    assert_eq!(machine.ack(1, 1, false), Ok(()));
    machine.sent(usize::MAX);
    assert_eq!(publish(&mut machine, b"x"), Ok(taken as u64 + 1));
}

#[test]
fn confirms_come_as_ranges() {
    let mut machine = open();
    for expected in 1..=6 {
        assert_eq!(publish(&mut machine, b"x"), Ok(expected));
    }
    let script = Script::default()
        .method(1, &basic::Ack { delivery_tag: 2, multiple: false })
        .method(1, &basic::Nack { delivery_tag: 4, multiple: false, requeue: false })
        .method(1, &basic::Ack { delivery_tag: 5, multiple: true });
    let mut input = &script.0[..];
    let mut ranges = Vec::new();
    while let Some(event) = machine.poll_event(&mut input).unwrap() {
        let Event::Settled { channel: 1, settled } = event else { panic!("{event:?}") };
        ranges.push((settled.first, settled.last, settled.acked));
    }
    assert_eq!(ranges, [(2, 2, true), (4, 4, false), (1, 1, true), (3, 3, true), (5, 5, true)]);
    assert_eq!(machine.unconfirmed(1), 1);
}

#[test]
fn properties_that_do_not_fit_a_frame_are_refused_and_count_for_nothing() {
    let mut machine = open();
    let long = "x".repeat(machine.properties_bytes_max());
    let headers = TableBuf::new().with("long", Value::LongStr(long.as_bytes()));
    let mut encoded = Vec::new();
    Properties { headers: Some(headers.as_table()), ..Default::default() }.encode(&mut encoded);
    let none = ShortStr::truncated("");
    let properties = RawProperties::validate(&encoded).unwrap();
    let bytes_max = machine.properties_bytes_max();
    let too_long = PublishError::PropertiesTooLong { bytes: encoded.len(), bytes_max };
    machine.sent(usize::MAX);
    assert_eq!(machine.publish(1, none, none, false, properties, b""), Err(too_long));
    assert!(machine.outgoing().is_empty());
    assert_eq!(publish(&mut machine, b"x"), Ok(1));
    // The longest that fits: a frame of exactly the agreed size.
    let value = &long[..long.len() - (encoded.len() - bytes_max)];
    let headers = TableBuf::new().with("long", Value::LongStr(value.as_bytes()));
    encoded.clear();
    Properties { headers: Some(headers.as_table()), ..Default::default() }.encode(&mut encoded);
    let properties = RawProperties::validate(&encoded).unwrap();
    machine.sent(usize::MAX);
    assert_eq!(machine.publish(1, none, none, false, properties, b""), Ok(2));
    let frame_bytes_max = machine.limits().frame_bytes_max as usize;
    let mut rest = machine.outgoing();
    let mut largest = 0;
    while let Some(frame) = read_frame(rest, 1 << 20).unwrap() {
        largest = largest.max(frame.size_bytes());
        rest = &rest[frame.size_bytes()..];
    }
    assert_eq!(largest, frame_bytes_max);
}

#[test]
fn a_closed_channel_frees_its_number_and_leaves_the_others_alone() {
    let mut machine = open();
    let close = forebay_wire::channel::Close {
        reply_code: 404,
        reply_text: ShortStr::truncated("NOT_FOUND - no queue"),
        class_id: 50,
        method_id: 10,
    };
    let told = feed(&mut machine, &Script::default().method(1, &close).0).unwrap();
    assert!(told[0].starts_with("ChannelClosed { channel: 1"), "{told:?}");
    assert_eq!(outgoing(&machine), ["channel.close-ok"]);
    assert_eq!(publish(&mut machine, b"x"), Err(PublishError::NotOpen));
    assert_eq!(machine.ack(2, 1, false), Ok(()));
    assert_eq!(machine.open_channel(), Ok(1));
}

#[test]
fn what_arrives_for_a_closing_channel_is_dropped() {
    let mut machine = open();
    machine.close_channel(1).unwrap();
    let script = Script::default()
        .deliver(1, 1, b"late", 100)
        .method(1, &queue::DeclareOk::default())
        .method(1, &forebay_wire::channel::CloseOk::default());
    let told = feed(&mut machine, &script.0).unwrap();
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("ChannelCloseOk"), "{told:?}");
    assert_eq!(machine.open_channel(), Ok(1));
}

#[test]
fn disorder_fails_the_connection_once_and_for_all() {
    let late_body = {
        let mut bytes = Vec::new();
        write_body_frame(&mut bytes, 1, b"x");
        Script(bytes)
    };
    for (script, what) in [
        (late_body, "a content body where none belongs"),
        (Script::default().deliver(9, 1, b"x", 9), "a method on a channel that is not open"),
        (
            Script::default().method(2, &basic::Ack { delivery_tag: 1, multiple: false }),
            "a confirm although none was asked for",
        ),
        (
            Script::default().method(1, &basic::Ack { delivery_tag: 1, multiple: false }),
            "a confirm of a message never published",
        ),
    ] {
        let mut machine = open();
        let failed = feed(&mut machine, &script.0).unwrap_err();
        assert!(matches!(failed, Failed::Misbehaved { what: w, .. } if w == what), "{failed:?}");
        assert_eq!(outgoing(&machine), ["connection.close"]);
        assert_eq!(machine.poll_event(&mut &b"more"[..]).unwrap_err(), failed);
    }
}

#[test]
fn a_message_over_the_bound_fails_before_it_is_stored() {
    let mut machine = open();
    machine.options.message_bytes_max = 1000;
    let script = Script::default().deliver(1, 1, &[0; 1001], 100_000);
    let failed = feed(&mut machine, &script.0).unwrap_err();
    assert_eq!(failed, Failed::MessageTooLarge { size_bytes: 1001, max_bytes: 1000 });
}

#[test]
fn silence_fails_the_connection_and_idleness_makes_heartbeats() {
    let mut machine = open();
    machine.tick(0).unwrap();
    machine.tick(30_000_000).unwrap();
    assert_eq!(outgoing(&machine), ["Heartbeat 0"]);
    machine.sent(8);
    feed(&mut machine, &Script::default().heartbeat().0).unwrap();
    machine.tick(60_000_000).unwrap();
    assert_eq!(machine.tick(180_000_000), Err(Failed::Silent { heartbeat_s: 60 }));
}

/// What a broker may say to the machine of `open()` after six publishes.
fn sayings(count: std::ops::Range<usize>) -> impl Strategy<Value = Script> {
    proptest::collection::vec(saying(), count).prop_map(|sayings| {
        let mut script = Script::default();
        for (number, saying) in (1..).zip(sayings) {
            match saying {
                // Deliveries of a channel are numbered upwards.
                Saying::Delivery(channel, body, cut) => {
                    script = script.deliver(channel, number, &body, cut);
                }
                Saying::Other(other) => script.0.extend(other.0),
            }
        }
        script
    })
}

#[derive(Debug, Clone)]
enum Saying {
    /// On a channel, in frames of so many bytes.
    Delivery(u16, Vec<u8>, usize),
    Other(Script),
}

fn saying() -> impl Strategy<Value = Saying> {
    let body = proptest::collection::vec(any::<u8>(), 0..40);
    let other = prop_oneof![
        (1_u64..=6, any::<bool>()).prop_map(|(delivery_tag, multiple)| {
            Script::default().method(1, &basic::Ack { delivery_tag, multiple })
        }),
        (body.clone(), 1_usize..60).prop_map(|(body, cut)| {
            let returned = basic::Return { reply_code: 312, ..Default::default() };
            Script::default().method(1, &returned).content(1, &body, cut)
        }),
        Just(Script::default().heartbeat()),
        Just(
            Script::default()
                .method(0, &connection::Blocked { reason: ShortStr::truncated("low on memory") })
        ),
        Just(
            Script::default()
                .method(2, &queue::DeclareOk { message_count: 3, ..Default::default() })
        ),
        Just(Script::default().method(2, &forebay_wire::channel::Flow { active: false })),
    ];
    prop_oneof![
        1 => (1_u16..=2, body, 1_usize..60)
            .prop_map(|(channel, body, cut)| Saying::Delivery(channel, body, cut)),
        6 => other.prop_map(Saying::Other),
    ]
}

proptest! {
    #[test]
    fn the_cut_of_the_input_does_not_matter(
        sayings in sayings(0..12),
        cuts in proptest::collection::vec(1_usize..50, 1..40),
    ) {
        let mut bytes = handshake().0;
        let opening = bytes.len();
        bytes.extend(sayings.0);
        let fresh = || {
            let mut machine = open();
            for _ in 0..6 {
                publish(&mut machine, b"x").unwrap();
            }
            machine
        };
        let mut whole = fresh();
        let expected = feed(&mut whole, &bytes[opening..]).unwrap();

        let mut cut = fresh();
        let mut buffer = crate::ReceiveBuffer::new(64, 4096);
        let mut told = Vec::new();
        let mut rest = &bytes[opening..];
        for size in cuts.into_iter().cycle() {
            let piece = &rest[..size.min(rest.len())];
            rest = &rest[piece.len()..];
            buffer.spare()[..piece.len()].copy_from_slice(piece);
            buffer.filled(piece.len());
            let mut pending = buffer.pending();
            let before = pending.len();
            while let Some(event) = cut.poll_event(&mut pending).unwrap() {
                told.push(format!("{event:?}"));
            }
            let used = before - pending.len();
            buffer.consume(used);
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(told, expected);
        prop_assert_eq!(cut.outgoing(), whole.outgoing());
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..300), open_first: bool) {
        let mut machine = if open_first { open() } else { Machine::new(Options::default()) };
        let mut input = &noise[..];
        while let Ok(Some(_)) = machine.poll_event(&mut input) {}
    }

    #[test]
    fn a_damaged_conversation_never_panics(
        sayings in sayings(1..6),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = sayings.0;
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let mut machine = open();
        let mut input = &bytes[..];
        while let Ok(Some(_)) = machine.poll_event(&mut input) {}
    }
}

#[test]
fn the_handshake_can_be_cut_anywhere() {
    let bytes = handshake().0;
    for at in 0..bytes.len() {
        let mut machine = Machine::new(Options::default());
        let mut first = &bytes[..at];
        assert!(machine.poll_event(&mut first).unwrap().is_none());
        let rest = [first, &bytes[at..]].concat();
        assert_eq!(feed(&mut machine, &rest).unwrap(), ["Opened"]);
    }
}
