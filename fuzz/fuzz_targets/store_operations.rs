//! Operations on a store and crashes of it, against a model.
#![no_main]
#![allow(dead_code)] // each target runs one of the bodies

#[path = "../../crates/forebay-store/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| support::fuzz_bodies::store_operations(data));
