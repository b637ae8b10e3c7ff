//! A model of the store, and what is done to both.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

#[path = "../../../forebay-wire/tests/support/fast_random.rs"]
pub mod fast_random;
#[path = "../../../forebay-wire/tests/support/without_fuzzer.rs"]
pub mod without_fuzzer;

pub mod contents;
pub mod decode;
pub mod forgery;
pub mod fuzz_bodies;
pub mod op;
pub mod small_store;
pub mod state;
pub mod world;
