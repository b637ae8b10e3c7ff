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
    /// `st-0042`
    pub(super) name: String,
    /// `weather.<region>.<station>`
    pub(super) routing_key: String,
    /// The beginning of its messages.
    pub(super) json_head: String,
}

/// All stations, by number. Neighbouring numbers go four by four to the same region, so that each of
/// four publishers, which share the numbers in turn, serves every region.
pub(super) fn stations() -> Vec<Station> {
    (0..STATION_COUNT as u16)
        .map(|number| {
            let region = REGIONS[usize::from(number / 4 % 4)];
            let name = name_of(number);
            Station {
                routing_key: format!("weather.{region}.{name}"),
                json_head: format!("{{\"station\":\"{name}\","),
                name,
            }
        })
        .collect()
}

/// `st-0042`
pub(super) fn name_of(station: u16) -> String {
    format!("st-{station:04}")
}

/// The number of the station of this name.
pub(super) fn number_of(name: &str) -> Option<u16> {
    let number = name.strip_prefix("st-")?.parse().ok()?;
    (u64::from(number) < STATION_COUNT).then_some(number)
}

/// The message-id of a station's reading number `number`.
pub(super) fn message_id(station: &str, number: u64) -> String {
    format!("{station}/{number}")
}

/// Station and number of that.
pub(super) fn of_message_id(id: &str) -> Option<(u16, u64)> {
    let (station, number) = id.split_once('/')?;
    Some((number_of(station)?, number.parse().ok()?))
}

/// The queue of a region.
pub(super) fn queue_of(region: &str) -> String {
    format!("forebay-demo.{region}")
}

/// The pattern by which that queue is bound.
pub(super) fn pattern_of(region: &str) -> String {
    format!("weather.{region}.#")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_id_names_station_and_number() {
        assert_eq!(of_message_id(&message_id("st-0042", 17)), Some((42, 17)));
        for other in ["", "st-0042", "st-1000/1", "st-0042/x", "0042/1"] {
            assert_eq!(of_message_id(other), None, "{other}");
        }
    }
}
