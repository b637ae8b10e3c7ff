//! What is declared again after a reconnect, and what the broker says to it.

use forebay_wire::{ReplyCode, channel, exchange, queue};

use super::*;
use crate::happening::Happening;

/// The names that are declared again: of queues, and of exchanges.
fn declared(session: &mut Session) -> Vec<String> {
    let mut out = Vec::new();
    session.machine.take_outgoing(&mut out);
    let mut rest = out.strip_prefix(&forebay_wire::PROTOCOL_HEADER).unwrap_or(&out);
    let mut names = Vec::new();
    while let Some(frame) = read_frame(rest, 1 << 20).unwrap() {
        match Method::parse(frame.payload).unwrap() {
            Method::QueueDeclare(declare) => names.push(declare.queue.to_string()),
            Method::ExchangeDeclare(declare) => names.push(declare.exchange.to_string()),
            _ => {}
        }
        rest = &rest[frame.size_bytes()..];
    }
    names
}

/// Begins a connection, and says what is declared on it.
fn begin(session: &mut Session) -> Vec<String> {
    let topology = Topology::new()
        .queue(Queue::durable("before"))
        .exchange(Exchange::durable("of a plug-in", "x-random"))
        .queue(Queue::durable("after"));
    let options = Options { heartbeat_s: 0, ..Options::default() };
    let tune = connection::Tune::default();
    log_in(session, options, topology, Table::default(), &tune, 1);
    feed(session, &bytes(1, &channel::OpenOk::default()), 1);
    assert_eq!(*session.phase(), Phase::Restoring);
    declared(session)
}

fn close_for(class_id: u16, method_id: u16) -> connection::Close<'static> {
    connection::Close { reply_code: 503, class_id, method_id, ..Default::default() }
}

/// The broker's last words on a connection; whether the next one goes without something.
fn ends(session: &mut Session, last: &[u8]) -> bool {
    feed(session, last, 1);
    let lost = session.hung_up(None);
    assert!(matches!(lost, Lost::Closed(_)), "{lost:?}");
    session.lost(&lost, 1);
    session.take_leaves_out_more()
}

#[test]
fn what_the_broker_closes_the_connection_for_is_left_out_of_the_next_one_and_told() {
    const DECLARE: (u16, u16) = (exchange::Declare::CLASS_ID, exchange::Declare::METHOD_ID);
    let mut session = Session::new(Options::default());
    assert_eq!(begin(&mut session), ["before", "of a plug-in", "after"]);
    let mut last = bytes(1, &queue::DeclareOk::default());
    last.extend(bytes(0, &close_for(DECLARE.0, DECLARE.1)));
    assert!(ends(&mut session, &last));
    let told = std::mem::take(&mut session.happenings);
    let [Happening::TopologyRefused { what, why }] = &told[..] else { panic!("{told:?}") };
    assert_eq!((&**what, why.code), ("exchange 'of a plug-in'", 503));

    assert_eq!(begin(&mut session), ["before", "after"]);
    for _ in 0..2 {
        feed(&mut session, &bytes(1, &queue::DeclareOk::default()), 1);
    }
    assert_eq!(*session.phase(), Phase::Up, "all else goes on");
    session.lost(&Lost::Io("cut".into()), 1);
    assert_eq!(begin(&mut session), ["before", "of a plug-in", "after"], "it may have it by now");
}

#[test]
fn a_connection_that_is_closed_for_something_else_costs_no_declaration() {
    let mut session = Session::new(Options::default());
    let (exchange, queue) = (exchange::Declare::METHOD_ID, queue::Declare::METHOD_ID);
    let its_own_fault = ReplyCode::InternalError.code();
    for (close, why) in [
        (close_for(0, 0), "no method"),
        (close_for(exchange::Declare::CLASS_ID, exchange), "it was the queue's turn"),
        (
            connection::Close {
                reply_code: its_own_fault,
                ..close_for(queue::Declare::CLASS_ID, queue)
            },
            "a broker that has not come up yet",
        ),
    ] {
        begin(&mut session);
        assert!(!ends(&mut session, &bytes(0, &close)), "{why}");
        assert!(session.happenings.is_empty());
    }
}
