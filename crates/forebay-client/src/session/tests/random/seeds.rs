//! Which worlds there are, each made of one number, and what becomes of those that fail.

use std::panic::UnwindSafe;

use crate::shell::random_u64;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Of a world that has steps. To shrink one that fails, ask for that one alone with fewer.
pub(super) fn steps() -> u64 {
    number("FOREBAY_WORLD_STEPS").unwrap_or(400)
}

/// `FOREBAY_WORLDS` worlds from `FOREBAY_WORLD` on; unless that is set `fixed` ones that are always the same and `fresh` new ones,
/// which `FOREBAY_SEED` draws. What all of them saw together, if they are as many as they have to be to see enough.
///
/// # Panics
/// One of them did: all that do are named.
pub(super) fn all_hold<const SIGHTS: usize>(
    fixed: u64,
    fresh: u64,
    live: impl Fn(u64) -> [u64; SIGHTS] + UnwindSafe + Copy,
) -> Option<[u64; SIGHTS]> {
    let asked = number("FOREBAY_WORLD");
    let fixed = if asked.is_some() { 0 } else { fixed };
    let from = asked.or_else(|| number("FOREBAY_SEED")).unwrap_or_else(random_u64);
    let count = number("FOREBAY_WORLDS").unwrap_or(fresh);
    let mut seen = [0; SIGHTS];
    let mut failed = Vec::new();
    for seed in (0..fixed).chain((0..count).map(|place| from.wrapping_add(place))) {
        match std::panic::catch_unwind(move || live(seed)) {
            Ok(sights) => seen.iter_mut().zip(sights).for_each(|(sum, more)| *sum += more),
            Err(_) => failed.push(seed),
        }
    }
    assert!(failed.is_empty(), "FOREBAY_WORLD={failed:?} FOREBAY_WORLDS=1");
    (fixed > 0).then_some(seen)
}
