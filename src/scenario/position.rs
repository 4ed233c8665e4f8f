//! Position of a client in the steps of a scenario.

use std::sync::Arc;

use fastrand::Rng;

use super::step::{Extent, Step, StepAction};
use super::{AtEnd, Scenario};
use crate::clock::Moment;

/// Position in the steps of a scenario. Each client, idempotency key or test has its own.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    step: usize,
    used: u32,
    /// First request at the current step.
    since: Option<Moment>,
    random: Rng,
}

impl Position {
    /// `seed` determines the choices of `chance`. `refused_since` is the time at which the listener began to refuse
    /// connections, if the first step is `refuse`.
    pub(crate) fn new(seed: u64, refused_since: Option<Moment>) -> Self {
        Self {
            step: 0,
            used: refused_since.map_or(0, |_| 1),
            since: refused_since,
            random: Rng::with_seed(seed),
        }
    }

    /// Advances. `None` means that the request passes, because the scenario has ended or because `chance` did not
    /// choose the step.
    pub(crate) fn next(&mut self, scenario: &Scenario, now: Moment) -> Option<Arc<Step>> {
        let step = self.current(scenario, now)?;
        // A refusal is counted when it is announced.
        if step.action != StepAction::Refuse {
            self.used += 1;
        }
        let is_chosen = step.chance >= 1.0 || self.random.f64() < step.chance;
        is_chosen.then(|| Arc::clone(step))
    }

    /// How long the listener refuses connections from now on, if the next step is `refuse`. Starts its time.
    pub(super) fn refuses_next(
        &mut self,
        scenario: &Scenario,
        now: Moment,
    ) -> Option<std::time::Duration> {
        let step = self.current(scenario, now)?;
        match (step.action, step.extent) {
            (StepAction::Refuse, Extent::For(time)) if self.used == 0 => {
                self.used = 1;
                Some(time)
            }
            _ => None,
        }
    }

    /// Skips the steps that no longer apply. `None` if the scenario has ended.
    fn current<'s>(&mut self, scenario: &'s Scenario, now: Moment) -> Option<&'s Arc<Step>> {
        loop {
            let Some(step) = scenario.steps.get(self.step) else {
                match scenario.at_end {
                    AtEnd::Pass => return None,
                    AtEnd::Repeat => self.go_to(scenario.steps.len().saturating_sub(1)),
                    AtEnd::Restart => self.go_to(0),
                }
                continue;
            };
            let applies = match step.extent {
                Extent::Times(times) => self.used < times.get(),
                Extent::For(time) => {
                    let since = *self.since.get_or_insert(now);
                    now.since(since) < time
                }
            };
            if applies {
                return Some(step);
            }
            self.go_to(self.step + 1);
        }
    }

    fn go_to(&mut self, step: usize) {
        self.step = step;
        self.used = 0;
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use http::StatusCode;

    use super::*;

    fn scenario(steps: Vec<Step>, at_end: AtEnd) -> Scenario {
        Scenario {
            name: "test".into(),
            summary: None,
            steps: steps.into_iter().map(Arc::new).collect(),
            at_end,
            by: super::super::CountBy::Client,
            seed: 1,
        }
    }

    fn status(status: u16) -> Step {
        Step::respond(StatusCode::from_u16(status).unwrap())
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn texts(scenario: &Scenario, times: &[u64]) -> Vec<String> {
        let mut position = Position::new(1, None);
        let mut next = |millis: &u64| {
            let step = position.next(scenario, at(*millis));
            step.map_or("pass".into(), |step| step.text.to_string())
        };
        times.iter().map(&mut next).collect()
    }

    #[test]
    fn a_refusal_at_the_end_repeats() {
        let mut refuse = status(200);
        refuse.action = StepAction::Refuse;
        refuse.extent = Extent::For(Duration::from_secs(1));
        let scenario = scenario(vec![refuse], AtEnd::Repeat);
        let mut position = Position::new(1, Some(at(0)));
        for second in [1_000, 2_000] {
            // A request that arrives after the refusal is reset, and the listener refuses again.
            assert!(position.next(&scenario, at(second)).is_some());
            assert!(position.refuses_next(&scenario, at(second)).is_some());
        }
    }

    #[test]
    fn the_end_of_a_scenario_passes_repeats_or_restarts() {
        let steps = || {
            let mut twice = status(429);
            twice.extent = Extent::Times(NonZeroU32::new(2).unwrap());
            vec![twice, status(503)]
        };
        let shown = |at_end| texts(&scenario(steps(), at_end), &[0; 5]);
        assert_eq!(shown(AtEnd::Pass), ["429", "429", "503", "pass", "pass"]);
        assert_eq!(shown(AtEnd::Repeat), ["429", "429", "503", "503", "503"]);
        assert_eq!(shown(AtEnd::Restart), ["429", "429", "503", "429", "429"]);
    }

    #[test]
    fn a_step_with_a_time_starts_with_its_first_request() {
        let mut outage = status(503);
        outage.extent = Extent::For(Duration::from_secs(1));
        let scenario = scenario(vec![outage, status(200)], AtEnd::Pass);
        let shown = texts(&scenario, &[5_000, 5_500, 5_999, 6_000, 6_001]);
        assert_eq!(shown, ["503", "503", "503", "200", "pass"]);
    }

    #[test]
    fn chance_selects_the_given_share_and_the_seed_repeats_it() {
        let mut step = status(503);
        step.chance = 0.3;
        let scenario = scenario(vec![step], AtEnd::Repeat);
        let shown = texts(&scenario, &[0; 1_000]);
        assert_eq!(shown, texts(&scenario, &[0; 1_000]));
        let chosen = shown.iter().filter(|text| *text == "503").count();
        assert!((250..350).contains(&chosen), "{chosen}");
    }

    #[test]
    fn refusal_is_announced_once_before_its_step() {
        let mut refuse = status(200);
        refuse.action = StepAction::Refuse;
        refuse.extent = Extent::For(Duration::from_secs(2));
        let scenario = scenario(vec![status(503), refuse, status(200)], AtEnd::Pass);
        let mut position = Position::new(1, None);
        assert_eq!(position.refuses_next(&scenario, at(0)), None);
        assert!(position.next(&scenario, at(0)).is_some());
        let refused = position.refuses_next(&scenario, at(10));
        assert_eq!(refused, Some(Duration::from_secs(2)));
        assert_eq!(position.refuses_next(&scenario, at(20)), None);
        let step = position.next(&scenario, at(500)).unwrap();
        assert_eq!(step.action, StepAction::Refuse);
        let step = position.next(&scenario, at(2_010)).unwrap();
        assert_eq!(step.action, StepAction::Respond(StatusCode::OK));
    }
}
