//! What files a directory holds.

use crate::disk::Disk;
use crate::error::OpenError;
use crate::home::RunId;
use crate::run::{parse_lost_run_file, parse_run_file};
use crate::segment::{parse_segment_file, parse_spare_file};

/// The files of a store, by kind.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) epochs: Vec<u64>,
    pub(crate) runs: Vec<RunId>,
    /// Those that were set aside: their numbers are not given again, or the file of another run might be set aside over one.
    pub(crate) lost_runs: Vec<RunId>,
    pub(crate) spares: Vec<u32>,
}

impl Listing {
    pub(crate) fn read(disk: &dyn Disk) -> Result<Listing, OpenError> {
        let mut listing = Listing::default();
        for name in disk.list().map_err(OpenError::reading("list the data directory"))? {
            if let Some(epoch) = parse_segment_file(&name) {
                listing.epochs.push(epoch);
            } else if let Some(run) = parse_run_file(&name) {
                listing.runs.push(run);
            } else if let Some(run) = parse_lost_run_file(&name) {
                listing.lost_runs.push(run);
            } else if let Some(spare) = parse_spare_file(&name) {
                listing.spares.push(spare);
            }
        }
        listing.epochs.sort_unstable();
        listing.runs.sort_unstable();
        listing.spares.sort_unstable();
        Ok(listing)
    }
}
