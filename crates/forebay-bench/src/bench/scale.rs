//! How a published rate is fitted to a machine.

use std::fmt;
use std::str::FromStr;

use crate::plan::Plan;
use crate::setting::{Credit, Window};

/// Seconds for which capacity is measured, after as many to warm up.
const CAPACITY_SECONDS: f64 = 3.0;

/// What is done to the rate of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    /// The broker's capacity is measured, and the workload asks for its share of it.
    Auto,
    /// It is measured, and the load is this share of it.
    Share(f64),
    /// The published rate, so many times.
    Times(f64),
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Scale, String> {
        if text == "auto" {
            return Ok(Scale::Auto);
        }
        let number = |text: &str| {
            text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)
        };
        let scale = match text.strip_suffix('%') {
            Some(percent) => number(percent).map(|percent| Scale::Share(percent / 100.0)),
            None => number(text).map(Scale::Times),
        };
        scale.ok_or_else(|| {
            format!("`{text}` is neither auto nor N% of the capacity nor a number above 0")
        })
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scale::Auto => f.write_str("auto"),
            Scale::Share(share) => write!(f, "{}%", share * 100.0),
            Scale::Times(times) => times.fmt(f),
        }
    }
}

/// The load that shows a broker's capacity: the same shape, as fast as it goes, nothing set by hand.
pub(crate) fn capacity_plan(plan: &Plan) -> Plan {
    Plan {
        rate: 0.0,
        profile: Vec::new(),
        window: Window::Auto,
        prefetch: Credit::Auto,
        ack_every: 0,
        consumer_rate: plan.consumer_rate,
        seconds: CAPACITY_SECONDS,
        warm_up: CAPACITY_SECONDS,
        drain: 30.0,
        messages: 0,
        consumed_messages: 0,
        steps: Vec::new(),
        ..plan.clone()
    }
}

/// The plan with its rate scaled so that all publishers together ask for `total_per_s`, evenly if it has none.
pub(crate) fn scaled_to(plan: &Plan, total_per_s: f64) -> Plan {
    match plan.target_per_s() {
        Some(target_per_s) => scaled_by(plan, total_per_s / target_per_s),
        None => Plan { rate: total_per_s / plan.publishers.max(1) as f64, ..plan.clone() },
    }
}

/// The plan with its rate multiplied.
pub(crate) fn scaled_by(plan: &Plan, times: f64) -> Plan {
    let mut scaled = plan.clone();
    scaled.rate *= times;
    for piece in &mut scaled.profile {
        piece.rate *= times;
    }
    scaled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::RatePiece;

    #[test]
    fn a_scale_is_auto_or_a_number() {
        assert_eq!("auto".parse(), Ok(Scale::Auto));
        assert_eq!("0.5".parse(), Ok(Scale::Times(0.5)));
        assert_eq!("80%".parse(), Ok(Scale::Share(0.8)));
        for text in ["", "0", "-1", "inf", "much", "%", "0%", "-5%", "auto%"] {
            assert!(text.parse::<Scale>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_plan_is_scaled_to_a_total() {
        let plan = Plan { publishers: 20, rate: 1_000.0, ..Plan::default() };
        assert_eq!(scaled_to(&plan, 50_000.0).rate, 2_500.0);
        let profile =
            vec![RatePiece { rate: 10.0, seconds: 1.0 }, RatePiece { rate: 0.0, seconds: 1.0 }];
        let plan = Plan { publishers: 2, profile, ..Plan::default() };
        assert_eq!(scaled_to(&plan, 100.0).profile[0].rate, 100.0);
        let plan = Plan { publishers: 4, ..Plan::default() };
        assert_eq!(scaled_to(&plan, 100.0).rate, 25.0, "evenly, where nothing says otherwise");
    }

    #[test]
    fn capacity_is_measured_without_a_rate() {
        let plan = Plan { publishers: 3, rate: 9.0, ..Plan::default() };
        let capacity = capacity_plan(&plan);
        assert_eq!(
            (capacity.target_per_s(), capacity.publishers, capacity.window),
            (None, 3, Window::Auto)
        );
    }
}
