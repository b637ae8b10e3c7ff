//! How long jobs waited although somebody had nothing to do: arithmetic over what was observed.

/// One job, in microseconds of one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// It could have begun.
    pub(super) came_us: u64,
    pub(super) begun_us: u64,
    pub(super) done_us: u64,
}

/// From and until.
pub(super) type Interval = (u64, u64);

/// The longest that a job waited while fewer than `workers` were busy, in microseconds.
pub(super) fn worst_wait_beside_idle_us(jobs: &[Span], workers: usize) -> u64 {
    worst_wait_us(jobs, &idle(jobs, workers))
}

/// The same without the times at which the machine itself was late.
pub(super) fn worst_wait_of_its_own_us(jobs: &[Span], workers: usize, late: Vec<Interval>) -> u64 {
    worst_wait_us(jobs, &without(idle(jobs, workers), late))
}

/// The longest that a job waited within these.
fn worst_wait_us(jobs: &[Span], counted: &[Interval]) -> u64 {
    let waited = |job: &Span| {
        let overlap = |&(from, until): &Interval| {
            until.min(job.begun_us).saturating_sub(from.max(job.came_us))
        };
        counted.iter().map(overlap).sum()
    };
    jobs.iter().map(waited).max().unwrap_or(0)
}

/// What of `counted`, which do not overlap, is in none of `others`.
fn without(counted: Vec<Interval>, mut others: Vec<Interval>) -> Vec<Interval> {
    others.sort_unstable();
    let mut left = Vec::new();
    for (mut from, until) in counted {
        for &(begins, ends) in &others {
            if begins >= until || ends <= from {
                continue;
            }
            if begins > from {
                left.push((from, begins));
            }
            from = from.max(ends);
        }
        if from < until {
            left.push((from, until));
        }
    }
    left
}

/// When fewer than `workers` were busy, from 0 to the end of time.
fn idle(jobs: &[Span], workers: usize) -> Vec<Interval> {
    // Ends before beginnings of the same moment: a worker that goes on was not doubled.
    let mut changes: Vec<(u64, bool)> = Vec::with_capacity(2 * jobs.len());
    for job in jobs {
        changes.extend([(job.begun_us, true), (job.done_us, false)]);
    }
    changes.sort_unstable();
    let (mut busy, mut since, mut idle) = (0, Some(0), Vec::new());
    for (at, begins) in changes {
        busy = if begins { busy + 1 } else { busy - 1_usize };
        match since {
            Some(from) if busy >= workers => {
                idle.push((from, at));
                since = None;
            }
            None if busy < workers => since = Some(at),
            _ => {}
        }
    }
    idle.extend(since.map(|from| (from, u64::MAX)));
    idle
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(came_us: u64, begun_us: u64, done_us: u64) -> Span {
        Span { came_us, begun_us, done_us }
    }

    #[test]
    fn waiting_for_busy_workers_is_nobodys_fault() {
        let one_after_the_other = [span(0, 0, 10), span(0, 10, 20)];
        assert_eq!(worst_wait_beside_idle_us(&one_after_the_other, 1), 0);
        assert_eq!(worst_wait_beside_idle_us(&one_after_the_other, 2), 10);
        let beside = [span(0, 0, 10), span(0, 2, 4), span(3, 10, 11)];
        assert_eq!(worst_wait_beside_idle_us(&beside, 2), 6, "from 4 to 10");
        assert_eq!(worst_wait_beside_idle_us(&[], 2), 0);
    }

    #[test]
    fn what_the_machine_took_is_not_a_wait_of_its_own() {
        let beside = [span(0, 0, 10), span(0, 2, 4), span(3, 10, 11)];
        let of_its_own = |late: &[Interval]| worst_wait_of_its_own_us(&beside, 2, late.to_vec());
        assert_eq!(of_its_own(&[]), 6, "from 4 to 10");
        assert_eq!(of_its_own(&[(5, 8), (7, 9), (0, 1)]), 2, "from 4 to 5 and from 9 to 10");
        assert_eq!(of_its_own(&[(0, 20)]), 0);
    }

    proptest! {
        /// Moment by moment, as one would count by hand.
        #[test]
        fn it_is_what_counting_moments_gives(
            jobs in prop::collection::vec((0_u64..30, 0_u64..20, 1_u64..20), 0..12),
            late in prop::collection::vec((0_u64..40, 0_u64..10), 0..5),
            workers in 1_usize..5,
        ) {
            let late: Vec<Interval> = late.iter().map(|&(from, time)| (from, from + time)).collect();
            let jobs: Vec<Span> =
                jobs.iter().map(|&(came, wait, work)| span(came, came + wait, came + wait + work)).collect();
            let busy = |at: u64| jobs.iter().filter(|job| job.begun_us <= at && at < job.done_us).count();
            let waits = |job: &Span| (job.came_us..job.begun_us).filter(|&at| busy(at) < workers).count();
            let counted = jobs.iter().map(waits).max().unwrap_or(0);
            prop_assert_eq!(worst_wait_beside_idle_us(&jobs, workers), counted as u64);
            let on_time = |at: u64| late.iter().all(|&(from, until)| at < from || at >= until);
            let waits = |job: &Span| {
                (job.came_us..job.begun_us).filter(|&at| busy(at) < workers && on_time(at)).count()
            };
            let counted = jobs.iter().map(waits).max().unwrap_or(0);
            prop_assert_eq!(worst_wait_of_its_own_us(&jobs, workers, late.clone()), counted as u64);
        }
    }
}
