//! The database at the end: what the year is like at each station, counted exactly once.
//!
//! ```text
//!   station │ number of its last reading      next:    count it, in the same transaction
//!   st-0042 │ 17                          ──▶ 18       ≤ 17: it was counted before, a duplicate
//!                                                      ≥ 19: one is missing, it comes too early
//! ```
//! A broker delivers at least once. A reading's message-id names station and number, the number counted last is
//! committed together with the counts, and messages are acknowledged after that: so whatever is delivered again counts
//! once. All values are whole tenths, as in [`super::readings`].

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::station::{STATION_COUNT, name_of, number_of};
use super::statistics::{Month, Statistics};

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL; -- what is acknowledged is on disk
    CREATE TABLE station (name TEXT PRIMARY KEY, last_number INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE tenths (
        station TEXT NOT NULL, month INTEGER NOT NULL, readings INTEGER NOT NULL,
        temperature_sum INTEGER NOT NULL, temperature_min INTEGER NOT NULL, temperature_max INTEGER NOT NULL,
        pressure_sum INTEGER NOT NULL, wind_sum INTEGER NOT NULL,
        PRIMARY KEY (station, month)
    ) WITHOUT ROWID;
    CREATE VIEW climate AS SELECT station, month, readings,
        round(temperature_sum / 10.0 / readings, 1) AS celsius_mean,
        temperature_min / 10.0 AS celsius_min, temperature_max / 10.0 AS celsius_max,
        round(pressure_sum / 10.0 / readings, 1) AS hpa_mean, round(wind_sum / 10.0 / readings, 1) AS m_per_s_mean
        FROM tenths;";

const ADD: &str = "
    INSERT INTO tenths VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT (station, month) DO UPDATE SET
        readings = readings + excluded.readings,
        temperature_sum = temperature_sum + excluded.temperature_sum,
        temperature_min = min(temperature_min, excluded.temperature_min),
        temperature_max = max(temperature_max, excluded.temperature_max),
        pressure_sum = pressure_sum + excluded.pressure_sum,
        wind_sum = wind_sum + excluded.wind_sum";

/// A reading that came by the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) station: u16,
    /// From 1, at its station.
    pub(super) number: u64,
    /// 0 = January.
    pub(super) month: usize,
    /// One reading.
    pub(super) values: Month,
    /// When it was published, in microseconds of the demo's clock.
    pub(super) sent_us: u64,
}

/// What became of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It counts from now on.
    Counted,
    /// It was counted before.
    Duplicate,
    /// One that was published before it has not been counted.
    Early,
}

/// A SQLite file.
#[derive(Debug)]
pub(super) struct Database {
    file: Connection,
}

impl Database {
    /// A new one at `path`, where nothing may be.
    pub(super) fn create(path: &Path) -> Result<Database, String> {
        if path.exists() {
            return Err(format!("{} exists already; name a file that does not", path.display()));
        }
        let made = || {
            let file = Connection::open(path)?;
            file.execute_batch(TABLES)?;
            Ok(Database { file })
        };
        made().map_err(|error: rusqlite::Error| format!("cannot make {}: {error}", path.display()))
    }

    /// Counts `batch` in one transaction; on an error nothing of it counts. Tells what became of each.
    pub(super) fn commit(&mut self, batch: &[Arrived]) -> Result<Vec<Fate>, String> {
        let sentence = |error: rusqlite::Error| format!("the transaction failed: {error}");
        let transaction = self.file.transaction().map_err(sentence)?;
        let fates = count(&transaction, batch).map_err(sentence)?;
        transaction.commit().map_err(sentence)?;
        Ok(fates)
    }

    /// All that was counted.
    pub(super) fn statistics(&self) -> Result<Statistics, String> {
        let read = || {
            let mut statistics = Statistics::default();
            let mut select = self.file.prepare("SELECT * FROM tenths")?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                let month = Month {
                    count: row.get(2)?,
                    temperature_sum: row.get(3)?,
                    temperature_min: row.get(4)?,
                    temperature_max: row.get(5)?,
                    pressure_sum: row.get(6)?,
                    wind_sum: row.get(7)?,
                };
                let (station, number): (String, usize) = (row.get(0)?, row.get(1)?);
                let station = number_of(&station).filter(|_| (1..=12).contains(&number));
                let station = station.ok_or(rusqlite::Error::InvalidQuery)?;
                statistics.add(station, number - 1, &month);
            }
            Ok(statistics)
        };
        read().map_err(|error: rusqlite::Error| format!("cannot read what was counted: {error}"))
    }
}

/// The part of [`Database::commit`] inside the transaction.
fn count(transaction: &Transaction<'_>, batch: &[Arrived]) -> rusqlite::Result<Vec<Fate>> {
    let mut last_of = transaction.prepare("SELECT last_number FROM station WHERE name = ?1")?;
    // Of this batch; at most STATION_COUNT, and twelve months each.
    let mut lasts: BTreeMap<u16, u64> = BTreeMap::new();
    let mut months: BTreeMap<(u16, usize), Month> = BTreeMap::new();
    let mut fates = Vec::with_capacity(batch.len());
    for arrived in batch {
        debug_assert!(u64::from(arrived.station) < STATION_COUNT);
        let last = match lasts.entry(arrived.station) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let name = name_of(arrived.station);
                let last = last_of.query_row([name], |row| row.get(0)).optional()?;
                unknown.insert(last.unwrap_or(0))
            }
        };
        fates.push(match arrived.number {
            number if number <= *last => Fate::Duplicate,
            number if number > *last + 1 => Fate::Early,
            number => {
                *last = number;
                let month = months.entry((arrived.station, arrived.month)).or_default();
                month.add(&arrived.values, 1);
                Fate::Counted
            }
        });
    }
    let mut add = transaction.prepare(ADD)?;
    for ((station, month), sum) in &months {
        add.execute(params![
            name_of(*station),
            month + 1,
            sum.count,
            sum.temperature_sum,
            sum.temperature_min,
            sum.temperature_max,
            sum.pressure_sum,
            sum.wind_sum
        ])?;
    }
    let mut remember = transaction.prepare("REPLACE INTO station VALUES (?1, ?2)")?;
    for (station, last) in &lasts {
        remember.execute(params![name_of(*station), last])?;
    }
    Ok(fates)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In memory.
    fn database() -> Database {
        let file = Connection::open_in_memory().unwrap();
        file.execute_batch(TABLES).unwrap();
        Database { file }
    }

    fn arrived(station: u16, number: u64) -> Arrived {
        let values = Month::of(number as i64, 10_000, 5);
        Arrived { station, number, month: 3, values, sent_us: 0 }
    }

    #[test]
    fn what_comes_again_counts_once_and_what_comes_early_not_yet() {
        let mut database = database();
        let first = [arrived(7, 1), arrived(7, 2), arrived(8, 1), arrived(7, 2)];
        let fates = database.commit(&first).unwrap();
        assert_eq!(fates, [Fate::Counted, Fate::Counted, Fate::Counted, Fate::Duplicate]);
        let again = [arrived(7, 1), arrived(7, 4), arrived(7, 3), arrived(7, 4)];
        let fates = database.commit(&again).unwrap();
        assert_eq!(fates, [Fate::Duplicate, Fate::Early, Fate::Counted, Fate::Counted]);

        let mut expected = Statistics::default();
        for (station, number) in [(7, 1), (7, 2), (7, 3), (7, 4), (8, 1)] {
            expected.add(station, 3, &arrived(station, number).values);
        }
        assert_eq!(database.statistics().unwrap(), expected);
    }

    #[test]
    fn a_transaction_that_fails_leaves_nothing() {
        let mut database = database();
        database.commit(&[arrived(7, 1)]).unwrap();
        let before = database.statistics().unwrap();
        let refuse =
            "CREATE TRIGGER full BEFORE INSERT ON station BEGIN SELECT RAISE(ABORT, 'disk'); END";
        database.file.execute_batch(refuse).unwrap();
        let failed = database.commit(&[arrived(7, 2)]).unwrap_err();
        assert_eq!(failed, "the transaction failed: disk");
        assert_eq!(database.statistics().unwrap(), before);
        database.file.execute_batch("DROP TRIGGER full").unwrap();
        assert_eq!(database.commit(&[arrived(7, 2)]).unwrap(), [Fate::Counted]);
    }

    #[test]
    fn people_read_the_view() {
        let mut database = database();
        database.commit(&[arrived(7, 1), arrived(7, 2)]).unwrap();
        let row =
            |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(4)?));
        let shown: (String, u32, u32, f64) =
            database.file.query_row("SELECT * FROM climate", [], row).unwrap();
        assert_eq!(shown, ("st-0007".to_owned(), 4, 2, 0.1));
    }

    #[test]
    fn a_file_that_exists_is_left_alone() {
        let manifest = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        assert!(Database::create(manifest).unwrap_err().contains("exists already"));
    }
}
