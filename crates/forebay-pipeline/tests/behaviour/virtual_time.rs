//! A runtime for tests in which time matters.

/// Runs in a runtime whose clock jumps to the next timer when nothing else is left to do.
pub(crate) fn in_virtual_time<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(work)
}
