//! What a message costs in a pipeline that does nothing with it: one thread, an iterator as the source.
//!
//! `cargo run --release -p forebay-pipeline --example overhead`

use std::time::Instant;

use forebay_pipeline::explain::Marks;
use forebay_pipeline::{Item, Pipeline, source};

const MESSAGES: u64 = 2_000_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for concurrency in [1, 25] {
        for how in ["", ", ordered by 1000 keys", ", one in 100 explained"] {
            let pipeline = Pipeline::from(source::iter(0..MESSAGES))
                .process(concurrency, async |_: Item<u64>| {});
            let pipeline = match how {
                "" => pipeline,
                ", ordered by 1000 keys" => pipeline.ordered_by(|number| number % 1_000),
                _ => pipeline.explain(100, |_| Marks::new()),
            };
            let begun = Instant::now();
            pipeline.run().await?;
            let ns = begun.elapsed().as_nanos() as f64 / MESSAGES as f64;
            println!("{concurrency:>3} workers{how}: {ns:.0} ns a message, {:.0} msg/s", 1e9 / ns);
        }
    }
    Ok(())
}
