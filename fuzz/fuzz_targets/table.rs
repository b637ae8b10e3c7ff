//! The contents of a table, and of an array.
#![no_main]
#![allow(dead_code)] // each target runs one of the bodies

#[path = "../../crates/forebay-wire/tests/support/fuzz_bodies.rs"]
mod fuzz_bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::table(data));
