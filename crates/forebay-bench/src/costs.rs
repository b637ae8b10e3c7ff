//! What a visit to a connection, a message and a commit cost the broker, from several loads.
//!
//! ```text
//!   CPU per message = message + visit * visits per message + commit * commits per message
//! ```
//!
//! Each load gives one such equation; the costs are the least squares solution, each residual weighted by
//! the CPU per message, so that the cheap loads count as much as the dear ones. A publisher with a window of
//! W confirmed in one go brings W messages to a visit, so visits per message = 1 / W.

/// What one load showed, per message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadCost {
    /// Visits to the publisher's connection.
    pub visits: f64,
    /// Commits of the log.
    pub commits: f64,
    /// CPU time of the broker in microseconds.
    pub cpu_us: f64,
}

/// What each kind of work costs, in microseconds of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Costs {
    /// One message.
    pub message_us: f64,
    /// One visit to a connection: waking, reading, writing the confirm.
    pub visit_us: f64,
    /// One commit: building it, writing, waiting for it.
    pub commit_us: f64,
}

impl Costs {
    /// The costs that explain `loads` best; `None` if they do not tell visits, messages and commits apart.
    #[must_use]
    pub fn fit(loads: &[LoadCost]) -> Option<Costs> {
        let mut equations = [[0.0_f64; 4]; 3];
        for load in loads {
            let row =
                [1.0, load.visits, load.commits, load.cpu_us].map(|value| value / load.cpu_us);
            for (equation, factor) in equations.iter_mut().zip(row) {
                for (sum, value) in equation.iter_mut().zip(row) {
                    *sum += factor * value;
                }
            }
        }
        let [message_us, visit_us, commit_us] = solve(equations)?;
        Some(Costs { message_us, visit_us, commit_us })
    }

    /// CPU per message that they predict for a load.
    #[must_use]
    pub fn predict(&self, load: &LoadCost) -> f64 {
        self.message_us + self.visit_us * load.visits + self.commit_us * load.commits
    }

    /// The smallest window at which visits cost a tenth of messages: the floor of self-tuned windows, kept
    /// between 4 and 16.
    #[must_use]
    pub fn floor_messages(&self) -> u32 {
        ((self.visit_us / (0.1 * self.message_us)).ceil() as u32).clamp(4, 16)
    }
}

/// Gauss's elimination with pivots.
fn solve(mut rows: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for column in 0..3 {
        let pivot =
            (column..3).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        if rows[column][column].abs() < 1e-12 {
            return None;
        }
        let pivot = rows[column];
        for (index, row) in rows.iter_mut().enumerate() {
            if index != column {
                let factor = row[column] / pivot[column];
                for (value, above) in row.iter_mut().zip(pivot) {
                    *value -= factor * above;
                }
            }
        }
    }
    Some([0, 1, 2].map(|row| rows[row][3] / rows[row][row]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_found_again() {
        let costs = Costs { message_us: 2.0, visit_us: 3.0, commit_us: 20.0 };
        let loads = [(1.0, 1.0), (1.0, 0.1), (0.02, 0.01), (0.25, 0.02), (0.001, 0.005)]
            .map(|(visits, commits)| LoadCost { visits, commits, cpu_us: 0.0 })
            .map(|load| LoadCost { cpu_us: costs.predict(&load), ..load });
        let found = Costs::fit(&loads).unwrap();
        assert!((found.message_us - 2.0).abs() < 1e-6, "{found:?}");
        assert!((found.visit_us - 3.0).abs() < 1e-6, "{found:?}");
        assert!((found.commit_us - 20.0).abs() < 1e-6, "{found:?}");
        assert_eq!(found.floor_messages(), 15);
    }

    #[test]
    fn loads_that_are_alike_tell_nothing() {
        let load = LoadCost { visits: 1.0, commits: 1.0, cpu_us: 25.0 };
        assert_eq!(Costs::fit(&[load; 4]), None);
    }
}
