//! A broker inside this process: publish with confirms, consume, acknowledge.
//!
//! `cargo run -p forebay --example embedded`

use forebay::Broker;
use forebay::blocking::DeclareQueue;
use forebay::blocking::{ConsumeOptions, Publication};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::temp_dir().join(format!("forebay-embedded-{}", std::process::id()));
    let broker = Broker::open(&dir)?;

    // Two connections, as in two parts of a program; neither needs a socket.
    let publishing = broker.connect_blocking()?;
    let consuming = broker.connect_blocking()?;

    let mut orders = publishing.channel()?;
    orders.declare_queue("orders", DeclareQueue { durable: true, ..Default::default() })?;
    orders.confirm_select(100)?;

    let mut channel = consuming.channel()?;
    let mut jobs = channel.consume("orders", ConsumeOptions::default())?;

    for number in 1..=10 {
        let body = format!("order {number}");
        orders.publish(&Publication {
            routing_key: "orders",
            body: body.as_bytes(),
            ..Default::default()
        })?;
    }
    orders.wait_settled()?;
    println!("10 orders are confirmed: they are on disk");

    for _ in 0..10 {
        let Some(message) = jobs.next_message(None)? else { break };
        println!("{}", String::from_utf8_lossy(message.body()));
        jobs.ack(&message, false)?;
    }
    jobs.flush()?;

    broker.close()?;
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
