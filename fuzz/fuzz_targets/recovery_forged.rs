//! A sound store with changes, their checksums mended or not.
#![no_main]
#![allow(dead_code)] // each target runs one of the bodies

#[path = "../../crates/forebay-store/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| support::fuzz_bodies::recovery_forged(data));
