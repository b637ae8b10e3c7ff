//! `forebay bench` and what it writes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::dir::Dir;

pub fn bench(arguments: &[&str]) -> Output {
    Command::new(super::forebay())
        .arg("bench")
        .args(arguments)
        .env_remove("FOREBAY_URL")
        .output()
        .expect("the binary was built")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("it was written")).expect("JSON")
}

pub fn files(home: &Dir) -> (PathBuf, PathBuf) {
    (home.path().join("bench.json"), home.path().join("bench.csv"))
}
