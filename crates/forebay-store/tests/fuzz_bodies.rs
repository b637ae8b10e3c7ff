//! The fuzz targets without a fuzzer.

mod support;

use support::fuzz_bodies::TARGETS;
use support::without_fuzzer::{Effort, run_corpus, run_random};

#[test]
fn the_committed_corpus_passes() {
    run_corpus(TARGETS);
}

#[test]
fn random_and_mutated_inputs_pass() {
    run_random(TARGETS, &Effort { inputs: 300, random_one_in: 2, random_length: 400 });
}
