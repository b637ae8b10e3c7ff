//! The fuzz targets without a fuzzer: over the committed corpus, and over a bounded number of random
//! and mutated inputs. `FOREBAY_SEED` repeats a run, `FOREBAY_FUZZ_INPUTS` makes it longer.

mod support;

use std::path::PathBuf;

use support::fast_random::FastRandom;
use support::fuzz_bodies::TARGETS;

const INPUTS: usize = 300;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| {
            let path = entry.expect("directory entry").path();
            let data = std::fs::read(&path).expect("readable seed");
            (path, data)
        })
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "no seeds for {target}");
    seeds
}

#[test]
fn the_committed_corpus_passes() {
    for (target, body) in TARGETS {
        for (path, data) in corpus(target) {
            println!("{}", path.display()); // the last line names the culprit
            body(&data);
        }
    }
}

#[test]
fn random_and_mutated_inputs_pass() {
    let mut random = FastRandom::from_environment();
    let inputs = std::env::var("FOREBAY_FUZZ_INPUTS")
        .map_or(INPUTS, |count| count.parse().expect("FOREBAY_FUZZ_INPUTS is a number"));
    for (target, body) in TARGETS {
        let seeds = corpus(target);
        for _ in 0..inputs / TARGETS.len() {
            let data = if random.below(2) == 0 {
                let length = random.below(400);
                random.bytes(length)
            } else {
                let mut data = seeds[random.below(seeds.len())].1.clone();
                let other = &seeds[random.below(seeds.len())].1;
                random.mutate(&mut data, other);
                data
            };
            if let Err(panic) = std::panic::catch_unwind(|| body(&data)) {
                println!("target {target}, input {}", data.escape_ascii());
                std::panic::resume_unwind(panic);
            }
        }
    }
}
