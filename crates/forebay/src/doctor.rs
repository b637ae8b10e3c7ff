//! Whether a pipeline and its queue's consumer fit together: a machine that compares numbers.
//!
//! What the client tunes by itself cannot be wrong, so most of what is found here was set by hand. Each finding has
//! been somebody's lost day: workers that idle behind a prefetch, or hoard what it sends ahead, batches that are never full,
//! messages that a broker takes back from those who still work on them.

use std::time::Duration;

use forebay_client::ConsumerLimits;
use forebay_pipeline::{Finding, Needs};

/// What a broker does that holds deliveries against a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AckTimeout {
    /// It asks the client whether it is alive, so work may take as long as it needs to.
    Leases,
    /// A delivery that is unacknowledged for longer ends the channel.
    After(Duration),
}

/// All that is wrong, the most costly first.
pub(crate) fn examine(
    needs: &Needs,
    limits: &ConsumerLimits,
    ack_timeout: AckTimeout,
) -> Vec<Finding> {
    let credit = usize::from(limits.fixed_credit.unwrap_or(limits.credit_max));
    let setting = if limits.fixed_credit.is_some() { "fixed_credit" } else { "credit_max" };
    let mut findings = Vec::new();
    let mut find = |name, says| findings.push(Finding { name, says });
    let workers = needs.workers;
    if credit < workers {
        let idle = workers - credit;
        let says = format!(
            "{setting} {credit} lets the broker send {credit} messages at a time to {workers} workers, so {idle} of them \
             never have one; leave {setting} out, or set it to {workers} at least"
        );
        find("prefetch-below-workers", says);
    }
    if let Some(batch) = needs.batch_messages.filter(|batch| credit < *batch) {
        let delay = needs.batch_delay.unwrap_or_default();
        let says = format!(
            "a batch of {batch} messages is never full, because {setting} {credit} lets no more be unacknowledged: each \
             waits {delay:?} in vain; leave {setting} out, or set it to {} at least",
            needs.held_messages
        );
        find("prefetch-below-batch", says);
    }
    // What waits for its key, its batch or its next attempt is held for a reason; the rest only in case.
    let put_off = if needs.retry_pauses.is_some() { needs.put_off_messages } else { 0 };
    let held = needs.held_messages.max(workers).saturating_add(put_off);
    if let Some(fixed) = limits.fixed_credit.map(usize::from).filter(|fixed| *fixed > held) {
        let says = format!(
            "fixed_credit {fixed} lets the broker send {} messages more than the pipeline works on and holds ({held}, with \
             {workers} workers): they wait here behind busy workers while other consumers may be idle; leave fixed_credit out, \
             unless nobody else consumes the queue",
            fixed - held
        );
        find("prefetch-hoards", says);
    }
    if let (Some(limit), Some(timeout)) = (limits.work_limit, needs.timeout)
        && limit < timeout
    {
        let says = format!(
            "after {limit:?} (work_limit) a message goes back to its queue, though its handler may go on until {timeout:?} \
             (timeout): it is done twice; make work_limit the longer one"
        );
        find("work-limit-below-timeout", says);
    }
    if let AckTimeout::After(ack) = ack_timeout {
        if let Some(timeout) = needs.timeout.filter(|timeout| *timeout >= ack) {
            let says = format!(
                "a handler may take {timeout:?} (timeout), and this broker closes the channel after {ack:?}: all that it \
                 holds is delivered again; raise consumer_timeout there, or x-consumer-timeout of the queue"
            );
            find("timeout-above-ack-timeout", says);
        }
        if let Some(delay) = needs.batch_delay.filter(|delay| *delay >= ack) {
            let says = format!(
                "a message may wait {delay:?} for its batch, and this broker closes the channel after {ack:?} without an \
                 acknowledgement; let batches wait for less"
            );
            find("batch-delay-above-ack-timeout", says);
        }
        if let Some(pauses) = needs.retry_pauses.filter(|pauses| *pauses >= ack) {
            let says = format!(
                "the pauses of a message that fails each time may take {pauses:?} together (retries), unacknowledged, and this \
                 broker closes the channel after {ack:?}: all that it holds is delivered again; retry less often, or after \
                 shorter pauses"
            );
            find("retry-pause-above-ack-timeout", says);
        }
        if let Some(oldest) = needs.oldest.filter(|oldest| *oldest >= ack / 2) {
            let oldest = Duration::from_millis(oldest.as_millis().try_into().unwrap_or(u64::MAX));
            let says = format!(
                "a message is unacknowledged for {oldest:?}, in its handler, its batch or a pause before a retry, and this broker \
                 closes the channel after {ack:?}: all that it holds is delivered again; raise consumer_timeout there, or \
                 x-consumer-timeout of the queue, or end such work sooner (timeout)"
            );
            find("handler-above-ack-timeout", says);
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_client::CREDIT_MAX;

    const MINUTE: Duration = Duration::from_secs(60);
    const RABBITMQ: AckTimeout = AckTimeout::After(Duration::from_secs(1_800));

    fn tuned() -> ConsumerLimits {
        ConsumerLimits {
            credit_max: CREDIT_MAX,
            fixed_credit: None,
            work_limit: None,
            ack_timeout: None,
        }
    }

    fn fixed(credit: u16) -> ConsumerLimits {
        ConsumerLimits { fixed_credit: Some(credit), ..tuned() }
    }

    fn needs(workers: usize) -> Needs {
        let mut needs = Needs::default();
        (needs.workers, needs.held_messages) = (workers, workers);
        needs
    }

    fn batches(workers: usize, messages: usize, delay: Duration) -> Needs {
        let mut needs = needs(workers);
        needs.held_messages += 2 * messages;
        (needs.batch_messages, needs.batch_delay) = (Some(messages), Some(delay));
        needs
    }

    fn limited(limit: Duration) -> Needs {
        let mut needs = needs(4);
        needs.timeout = Some(limit);
        needs
    }

    fn retried(pauses: Duration) -> Needs {
        let mut needs = needs(4);
        needs.retry_pauses = Some(pauses);
        needs
    }

    fn oldest(age: Duration) -> Needs {
        let mut needs = needs(4);
        needs.oldest = Some(age);
        needs
    }

    fn names(needs: &Needs, limits: &ConsumerLimits, ack_timeout: AckTimeout) -> Vec<&'static str> {
        examine(needs, limits, ack_timeout).into_iter().map(|finding| finding.name).collect()
    }

    #[test]
    fn what_tunes_itself_is_well() {
        let second = Duration::from_secs(1);
        let retried = retried(29 * MINUTE);
        for needs in [needs(1), needs(500), batches(8, 100, second), limited(MINUTE), retried] {
            assert_eq!(names(&needs, &tuned(), RABBITMQ), [""; 0]);
            assert_eq!(names(&needs, &tuned(), AckTimeout::Leases), [""; 0]);
        }
    }

    #[test]
    fn bad_set_ups_are_called_by_their_names() {
        let hour = 60 * MINUTE;
        let work_limit = ConsumerLimits { work_limit: Some(MINUTE), ..tuned() };
        for (needs, limits, ack_timeout, name) in [
            (needs(25), fixed(10), RABBITMQ, "prefetch-below-workers"),
            (needs(6_000), tuned(), AckTimeout::Leases, "prefetch-below-workers"),
            (batches(4, 100, MINUTE), fixed(50), RABBITMQ, "prefetch-below-batch"),
            (limited(2 * MINUTE), work_limit, AckTimeout::Leases, "work-limit-below-timeout"),
            (limited(hour), tuned(), RABBITMQ, "timeout-above-ack-timeout"),
            (batches(4, 100, hour), tuned(), RABBITMQ, "batch-delay-above-ack-timeout"),
            (retried(hour), tuned(), RABBITMQ, "retry-pause-above-ack-timeout"),
            (oldest(15 * MINUTE), tuned(), RABBITMQ, "handler-above-ack-timeout"),
            (needs(10), fixed(11), AckTimeout::Leases, "prefetch-hoards"),
            (batches(4, 100, MINUTE), fixed(205), RABBITMQ, "prefetch-hoards"),
        ] {
            assert_eq!(names(&needs, &limits, ack_timeout), [name]);
        }
    }

    #[test]
    fn the_edges_are_well() {
        assert_eq!(names(&needs(10), &fixed(10), RABBITMQ), [""; 0]);
        assert_eq!(names(&batches(4, 100, MINUTE), &fixed(100), RABBITMQ), [""; 0]);
        assert_eq!(names(&batches(4, 100, MINUTE), &fixed(204), RABBITMQ), [""; 0]);
        let mut retried_later = retried(MINUTE);
        retried_later.put_off_messages = 100;
        assert_eq!(
            names(&retried_later, &fixed(104), RABBITMQ),
            [""; 0],
            "workers go on meanwhile"
        );
        for needs in [limited(60 * MINUTE), retried(60 * MINUTE), oldest(60 * MINUTE)] {
            assert_eq!(names(&needs, &tuned(), AckTimeout::Leases), [""; 0], "a lease is renewed");
        }
    }

    #[test]
    fn a_finding_has_the_numbers_and_says_what_to_change() {
        let finding = &examine(&needs(25), &fixed(10), RABBITMQ)[0];
        let text = finding.to_string();
        assert!(text.starts_with("prefetch-below-workers: fixed_credit 10"), "{text}");
        assert!(
            text.contains("15 of them never") && text.contains("set it to 25 at least"),
            "{text}"
        );
    }
}
