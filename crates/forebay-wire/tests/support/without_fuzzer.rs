//! Runs fuzz targets without a fuzzer: over the committed corpus, and over a bounded number of random and
//! mutated inputs. `FOREBAY_SEED` repeats a run, `FOREBAY_FUZZ_INPUTS` makes it longer.

use std::path::PathBuf;

use super::fast_random::FastRandom;

/// Names and bodies of targets.
pub type Targets = [(&'static str, fn(&[u8]))];

/// How much of what is tried.
pub struct Effort {
    /// Inputs over all targets.
    pub inputs: usize,
    /// One of so many inputs is random from the first byte; the others are mutated seeds.
    pub random_one_in: usize,
    /// A random input is shorter than this.
    pub random_length: usize,
}

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

pub fn run_corpus(targets: &Targets) {
    for (target, body) in targets {
        for (path, data) in corpus(target) {
            println!("{}", path.display()); // the last line names the culprit
            body(&data);
        }
    }
}

pub fn run_random(targets: &Targets, effort: &Effort) {
    let mut random = FastRandom::from_environment();
    let inputs = std::env::var("FOREBAY_FUZZ_INPUTS")
        .map_or(effort.inputs, |count| count.parse().expect("FOREBAY_FUZZ_INPUTS is a number"));
    for (target, body) in targets {
        let seeds = corpus(target);
        for _ in 0..inputs / targets.len() {
            let data = if random.below(effort.random_one_in) == 0 {
                let length = random.below(effort.random_length);
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
