//! Tests of routes with a scenario: scripted responses and faults on real sockets, and the verdicts of the admin API.

mod runs;
mod steps;

use crate::support::{Gateway, GatewayBuilder};

/// Prepares a gateway whose only route, for all paths, has a scenario with these steps. `more` contains further lines
/// of the scenario.
fn scripted(steps: &[&str], more: &str) -> GatewayBuilder {
    let steps = serde_json::to_string(steps).expect("a list of strings");
    Gateway::with(&format!(
        "[scenario.test]\nsteps = {steps}\n{more}\n[[route]]\nname = \"all\"\npath = \"/\"\nscenario = \"test\"\n"
    ))
}
