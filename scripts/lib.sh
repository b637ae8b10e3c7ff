# For the other scripts: what several of them need to know. Sourced, not run.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target_dir=${CARGO_TARGET_DIR:-$repo/target}
forebay=$target_dir/release/forebay
rust_version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repo/Cargo.toml")

die() { echo "$(basename "$0"): $*" >&2; exit 1; }

# Rust is the one thing that is not installed by our own scripts: which Rust, and where, is the user's choice.
need_rust() {
  command -v cargo >/dev/null 2>&1 ||
    die "Rust is missing: install it with the one command shown at https://rustup.rs (version $rust_version or later), open a new shell and try again"
  command -v cc >/dev/null 2>&1 ||
    die "there is no C linker, which Rust needs: on Debian and Ubuntu run 'sudo apt-get install build-essential' and try again"
}
