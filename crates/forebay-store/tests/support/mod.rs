//! A model of the store, and what is done to both.
#![allow(dead_code, unreachable_pub)] // each test file uses its part

pub mod contents;
pub mod op;
pub mod state;
pub mod world;
