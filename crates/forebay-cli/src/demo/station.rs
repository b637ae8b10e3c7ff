//! A thousand simulated stations in four regions.

/// Stations.
pub(super) const STATION_COUNT: u64 = 1000;
/// Regions; each has its queue.
pub(super) const REGIONS: [&str; 4] = ["north", "east", "south", "west"];
/// The exchange that they publish to.
pub(super) const EXCHANGE: &str = "forebay-demo.weather";

/// One station.
#[derive(Debug)]
pub(super) struct Station {
    /// `weather.<region>.<station>`
    pub(super) routing_key: String,
    /// The beginning of its messages.
    pub(super) json_head: String,
}

/// All stations, by number. Neighbouring numbers go four by four to the same region, so that each of
/// four publishers, which share the numbers in turn, serves every region.
pub(super) fn stations() -> Vec<Station> {
    (0..STATION_COUNT)
        .map(|number| {
            let region = REGIONS[(number / 4 % 4) as usize];
            Station {
                routing_key: format!("weather.{region}.st-{number:04}"),
                json_head: format!("{{\"station\":\"st-{number:04}\","),
            }
        })
        .collect()
}

/// The queue of a region.
pub(super) fn queue_of(region: &str) -> String {
    format!("forebay-demo.{region}")
}

/// The pattern by which that queue is bound.
pub(super) fn pattern_of(region: &str) -> String {
    format!("weather.{region}.#")
}
