//! Fixed settings to set beside the one that tunes itself.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::setting::{Credit, Window};

/// What is varied between the columns of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Setting {
    /// The publishers'.
    pub window: Window,
    /// The consumers'.
    pub prefetch: Credit,
    /// Deliveries an ack; 0 = one ack a read.
    pub ack_every: u64,
}

impl Setting {
    /// Of a plan.
    pub(crate) fn of(plan: &Plan) -> Setting {
        Setting { window: plan.window, prefetch: plan.prefetch, ack_every: plan.ack_every }
    }

    /// The plan with this setting.
    pub(crate) fn apply(self, plan: &Plan) -> Plan {
        let Setting { window, prefetch, ack_every } = self;
        Plan { window, prefetch, ack_every, ..plan.clone() }
    }

    /// Whether nothing of it is set by hand.
    pub fn tunes_itself(&self) -> bool {
        (self.window, self.prefetch, self.ack_every) == (Window::Auto, Credit::Auto, 0)
    }
}

/// One axis: `window=8,64,512`, `prefetch=10,auto` or `ack=1,50`. A number with `%` is a share of the target
/// rate of each publisher, as in the published experiences with stress.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    name: AxisName,
    values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AxisName {
    Window,
    Prefetch,
    Ack,
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Axis, String> {
        let wrong = || {
            format!("`{text}` is not a grid: window=8,64,512 or window=1%,10%, prefetch=… or ack=…")
        };
        let (name, values) = text.split_once('=').ok_or_else(wrong)?;
        let name = match name {
            "window" | "confirm" => AxisName::Window,
            "prefetch" | "qos" => AxisName::Prefetch,
            "ack" | "multi-ack-every" => AxisName::Ack,
            _ => return Err(wrong()),
        };
        let axis = Axis { name, values: values.split(',').map(str::to_owned).collect() };
        // Any rate will do to see whether they can be read.
        axis.settings(Setting::of(&Plan::default()), 100.0)?;
        Ok(axis)
    }
}

impl Axis {
    /// `setting` once for each value.
    fn settings(&self, setting: Setting, rate: f64) -> Result<Vec<Setting>, String> {
        let each = self.values.iter().map(|value| {
            let number = match value.strip_suffix('%').map(str::parse::<f64>) {
                None => value.clone(),
                Some(Ok(percent)) => ((rate * percent / 100.0).round().max(1.0) as u64).to_string(),
                Some(Err(_)) => return Err(format!("`{value}` is not a share such as 10%")),
            };
            Ok(match self.name {
                AxisName::Window => Setting { window: number.parse()?, ..setting },
                AxisName::Prefetch => Setting { prefetch: number.parse()?, ..setting },
                AxisName::Ack => Setting {
                    ack_every: number.parse().map_err(|_| format!("`{value}` is not a number"))?,
                    ..setting
                },
            })
        });
        each.collect()
    }

    fn is_relative(&self) -> bool {
        self.values.iter().any(|value| value.ends_with('%'))
    }
}

/// Those of one name are one with the values of all.
fn joined(axes: &[Axis]) -> Vec<Axis> {
    let mut all: Vec<Axis> = Vec::new();
    for axis in axes {
        match all.iter_mut().find(|other| other.name == axis.name) {
            Some(other) => other.values.extend(axis.values.iter().cloned()),
            None => all.push(axis.clone()),
        }
    }
    all
}

/// More settings than anybody looks at.
const SETTINGS_MAX: usize = 1_000;

/// All settings of a grid, the plan's own first, each once. Without axes that is the only one.
pub(crate) fn settings(axes: &[Axis], plan: &Plan) -> Result<Vec<Setting>, String> {
    let rate = plan.mean_rate();
    if rate.is_none() && axes.iter().any(Axis::is_relative) {
        return Err("a share of the rate needs a rate: the load is as fast as it goes".into());
    }
    let own = Setting::of(plan);
    let mut fixed = vec![own];
    let axes = joined(axes);
    let count = axes.iter().fold(1_usize, |count, axis| count.saturating_mul(axis.values.len()));
    if count > SETTINGS_MAX {
        return Err(format!("--grid: these are {count} settings, and {SETTINGS_MAX} are the most"));
    }
    for axis in axes {
        let mut wider = Vec::new();
        for setting in &fixed {
            wider.extend(axis.settings(*setting, rate.unwrap_or(0.0))?);
        }
        fixed = wider;
    }
    let mut all = vec![own];
    for setting in fixed {
        // What the grid does not name is set by hand, too, or acks with an interval would wait for ever.
        let setting = match setting {
            Setting { prefetch: Credit::Auto, ack_every: 1.., .. } => {
                Setting { prefetch: Credit::Fixed(1000), ..setting }
            }
            setting => setting,
        };
        if !all.contains(&setting) {
            all.push(setting);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(settings: &[Setting]) -> Vec<Window> {
        settings.iter().map(|setting| setting.window).collect()
    }

    #[test]
    fn the_plans_own_setting_is_first_and_nothing_comes_twice() {
        let plan = Plan { window: Window::Auto, prefetch: Credit::Auto, ..Plan::default() };
        assert_eq!(settings(&[], &plan).unwrap().len(), 1);
        let axes = ["window=8,64,8,auto".parse().unwrap()];
        let settings = settings(&axes, &plan).unwrap();
        assert_eq!(windows(&settings), [Window::Auto, Window::Fixed(8), Window::Fixed(64)]);
        assert!(settings[0].tunes_itself() && !settings[1].tunes_itself());
    }

    #[test]
    fn axes_multiply_and_shares_are_of_the_rate() {
        let plan = Plan { rate: 250.0, window: Window::Auto, ..Plan::default() };
        let axes: Vec<Axis> = ["window=1%,0.1%,200%", "prefetch=10,20"]
            .iter()
            .map(|axis| axis.parse().unwrap())
            .collect();
        let settings = settings(&axes, &plan).unwrap();
        assert_eq!(settings.len(), 7);
        let [three, one, many] = [3, 1, 500].map(Window::Fixed);
        assert_eq!(windows(&settings[1..]), [three, three, one, one, many, many]);
    }

    #[test]
    fn values_of_one_thing_add_up_wherever_they_were_given() {
        let plan = Plan { window: Window::Auto, ..Plan::default() };
        let axes: Vec<Axis> = ["window=8", "prefetch=10,20", "window=64"]
            .iter()
            .map(|axis| axis.parse().unwrap())
            .collect();
        let [small, large] = [8, 64].map(Window::Fixed);
        assert_eq!(windows(&settings(&axes, &plan).unwrap()[1..]), [small, small, large, large]);
    }

    #[test]
    fn a_share_without_a_rate_is_refused() {
        let axes = ["window=10%".parse().unwrap()];
        assert!(settings(&axes, &Plan::default()).unwrap_err().contains("rate"));
        for text in ["", "window", "window=x", "speed=1", "window=%", "ack=x"] {
            assert!(text.parse::<Axis>().is_err(), "{text}");
        }
    }

    #[test]
    fn more_settings_than_anybody_looks_at_are_refused() {
        let hundred: Vec<String> = (1..=100).map(|number| number.to_string()).collect();
        let axis = |name: &str| format!("{name}={}", hundred.join(",")).parse::<Axis>().unwrap();
        assert_eq!(settings(&[axis("window")], &Plan::default()).unwrap().len(), 101);
        let refused = settings(&[axis("window"), axis("ack")], &Plan::default()).unwrap_err();
        assert!(refused.contains("10000 settings"), "{refused}");
    }
}
