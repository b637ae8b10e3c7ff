//! What reading one published message costs: method, header and body frame, here and in
//! `amq-protocol`. Run with `cargo run --release -p forebay-wire --example parse_cost`.
//!
//! Each figure is the best of several rounds: the cost of the work, not of the machine's other work.

use std::hint::black_box;
use std::time::Instant;

use amq_protocol::frame::parse_frame;
use forebay_wire::{
    ContentHeader, FrameKind, Method, Properties, ShortStr, TableBuf, Value, basic, read_frame,
    write_body_frame, write_method, write_properties_frame,
};

const ROUNDS: usize = 30;
const MESSAGES_PER_BUFFER: usize = 100;
const FRAME_MAX_BYTES: u32 = 131_072;

fn stream(body_bytes: usize, properties: &Properties<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let publish = basic::Publish {
        exchange: ShortStr::truncated("orders"),
        routing_key: ShortStr::truncated("orders.created.eu"),
        ..Default::default()
    };
    let body = vec![7; body_bytes];
    for _ in 0..MESSAGES_PER_BUFFER {
        write_method(&mut out, 1, &publish);
        write_properties_frame(&mut out, 1, basic::CLASS_ID, body_bytes as u64, properties);
        write_body_frame(&mut out, 1, &body);
    }
    out
}

fn read_ours(mut input: &[u8]) -> usize {
    let mut messages = 0;
    while let Some(frame) = read_frame(input, FRAME_MAX_BYTES).expect("well-formed frames") {
        input = &input[frame.size_bytes()..];
        match frame.kind {
            FrameKind::Method => {
                black_box(&Method::parse(frame.payload).expect("a method"));
            }
            FrameKind::Header => {
                let header = ContentHeader::parse(frame.payload).expect("a header");
                black_box(header.properties.delivery_mode());
                black_box(&header);
            }
            FrameKind::Body => {
                black_box(frame.payload);
                messages += 1;
            }
            FrameKind::Heartbeat => {}
        }
    }
    messages
}

fn read_theirs(mut input: &[u8]) -> usize {
    let mut frames = 0;
    while !input.is_empty() {
        let (rest, frame) = parse_frame(input).expect("well-formed frames");
        black_box(&frame);
        input = rest;
        frames += 1;
    }
    frames / 3
}

/// Nanoseconds per message, the best round.
fn cost(input: &[u8], repeats: usize, read: fn(&[u8]) -> usize) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..repeats {
            assert_eq!(read(black_box(input)), MESSAGES_PER_BUFFER);
        }
        let messages = (repeats * MESSAGES_PER_BUFFER) as f64;
        best = best.min(start.elapsed().as_nanos() as f64 / messages);
    }
    best
}

fn main() {
    let headers = TableBuf::new()
        .with("tenant", Value::LongStr(b"acme"))
        .with("attempt", Value::I32(3))
        .with("sent", Value::Timestamp(1_700_000_000))
        .with("trace", Value::LongStr(b"00-4bf92f3577b34da6a3ce929d0e0e4736"));
    let two = Properties {
        content_type: Some(ShortStr::truncated("application/json")),
        delivery_mode: Some(2),
        ..Default::default()
    };
    let with_headers = Properties { headers: Some(headers.as_table()), ..two };

    println!("ns per message read          forebay-wire   amq-protocol");
    for (name, body_bytes, properties) in [
        ("100 B, 2 properties", 100, &two),
        ("1 KB, 2 properties", 1024, &two),
        ("1 KB, 4-entry headers too", 1024, &with_headers),
    ] {
        let input = stream(body_bytes, properties);
        let (ours, theirs) = (cost(&input, 200, read_ours), cost(&input, 20, read_theirs));
        println!("{name:<28} {ours:>12.1} {theirs:>14.1}");
    }
}
