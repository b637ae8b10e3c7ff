//! What a message costs in a pipeline that does nothing with it: one thread, an iterator as the source.
//!
//! `cargo run --release -p forebay-pipeline --example overhead`

use std::time::Instant;

use forebay_pipeline::{Item, Pipeline, source};

const MESSAGES: u64 = 2_000_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for concurrency in [1, 25] {
        for ordered in [false, true] {
            let pipeline = Pipeline::from(source::iter(0..MESSAGES))
                .process(concurrency, async |_: Item<u64>| {});
            let begun = Instant::now();
            if ordered {
                pipeline.ordered_by(|number| number % 1_000).run().await?;
            } else {
                pipeline.run().await?;
            }
            let ns = begun.elapsed().as_nanos() as f64 / MESSAGES as f64;
            let order = if ordered { ", ordered by 1000 keys" } else { "" };
            println!(
                "{concurrency:>3} workers{order}: {ns:.0} ns a message, {:.0} msg/s",
                1e9 / ns
            );
        }
    }
    Ok(())
}
