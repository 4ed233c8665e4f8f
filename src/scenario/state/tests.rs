use http::{HeaderMap, Method, StatusCode, Version};

use super::*;
use crate::request::client::ClientId;
use crate::scenario::AtEnd;
use crate::scenario::runs::MAX_RUNS;
use crate::scenario::trace::{ObservedBody, ResponseEnd};

fn scenarios(by: CountBy) -> (Arc<ScenarioState>, Scenarios, Clock) {
    let step = |status: u16| Arc::new(Step::respond(StatusCode::from_u16(status).unwrap()));
    let scenario = Arc::new(Scenario {
        name: "test".into(),
        summary: None,
        steps: vec![step(503), step(200)],
        at_end: AtEnd::Pass,
        by,
        seed: 1,
    });
    let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
    let scenarios = Scenarios::default().renewed(&[scenario], &clock);
    let state = Arc::clone(scenarios.get("test").unwrap());
    (state, scenarios, clock)
}

fn client(number: u32) -> ClientId {
    let address = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number);
    ClientId::of(address.into(), 64)
}

fn test(id: &str) -> TestId {
    TestId::parse(id).unwrap()
}

fn attempt(state: &ScenarioState, number: u32, target: &str) -> Attempt {
    Attempt {
        client: client(number),
        connection: 0,
        version: Version::HTTP_11,
        method: Method::GET,
        target: target.into(),
        headers: HeaderMap::new(),
        key: None,
        body: ObservedBody::default(),
        arrived: state.elapsed(),
        test: None,
        step: None,
        response: None,
    }
}

fn status(step: Option<Arc<Step>>) -> Option<String> {
    step.map(|step| step.text.to_string())
}

#[test]
fn an_attempt_is_completed_and_times_count_from_the_start_of_its_run() {
    let (state, _, clock) = scenarios(CountBy::Client);
    clock.advance(Duration::from_secs(10));
    let run = state.run_id(client(1), None);
    let mut traced = state.begin(&run, attempt(&state, 1, "/a"));
    assert_eq!(state.in_flight(), 1);
    clock.advance(Duration::from_secs(1));
    traced.started(Some(StatusCode::OK), &HeaderMap::new());
    clock.advance(Duration::from_secs(1));
    traced.ended(ResponseEnd::Complete);
    drop(traced);
    assert_eq!(state.in_flight(), 0);

    let (trace, in_flight) = state.run_trace("10.0.0.1").unwrap();
    assert!(!in_flight);
    assert_eq!(
        trace.started,
        SystemTime::UNIX_EPOCH + Duration::from_secs(10)
    );
    let [attempt] = &trace.attempts[..] else {
        panic!("{:?}", trace.attempts);
    };
    let response = attempt.response.as_ref().unwrap();
    assert_eq!(attempt.arrived, Duration::ZERO);
    assert_eq!(response.started, Duration::from_secs(1));
    assert_eq!(response.ended, Duration::from_secs(2));
    assert_eq!(response.end, ResponseEnd::Complete);
    // The trace of the whole scenario counts from the start of the gateway.
    assert_eq!(state.trace().attempts[0].arrived, Duration::from_secs(10));
}

#[test]
fn a_dropped_request_has_no_response() {
    let (state, _, _) = scenarios(CountBy::Client);
    let run = state.run_id(client(1), None);
    let traced = state.begin(&run, attempt(&state, 1, "/a"));
    assert!(state.is_in_flight("10.0.0.1"));
    drop(traced);
    assert!(!state.is_in_flight("10.0.0.1"));
    assert!(state.trace().attempts[0].response.is_none());
    let traced = state.begin(&run, attempt(&state, 1, "/a"));
    traced.started(Some(StatusCode::OK), &HeaderMap::new());
    drop(traced);
    let trace = state.trace();
    let response = trace.attempts[1].response.as_ref().unwrap();
    assert_eq!(response.end, ResponseEnd::ClientClosed);
}

#[test]
fn runs_are_separated_by_client_or_test() {
    let (state, _, _) = scenarios(CountBy::Test);
    assert_eq!(&*state.run_id(client(1), Some(&test("t1"))), "t1");
    assert_eq!(&*state.run_id(client(1), None), "10.0.0.1");
    let (state, _, _) = scenarios(CountBy::Client);
    assert_eq!(&*state.run_id(client(1), Some(&test("t1"))), "10.0.0.1");
}

#[test]
fn keys_have_their_own_positions_only_with_by_key() {
    for (by, second) in [(CountBy::Key, "503"), (CountBy::Client, "200")] {
        let (state, _, _) = scenarios(by);
        let run = state.run_id(client(1), None);
        assert_eq!(
            status(state.next_step(&run, Some("a"))).as_deref(),
            Some("503")
        );
        assert_eq!(
            status(state.next_step(&run, Some("b"))).as_deref(),
            Some(second)
        );
    }
}

#[test]
fn a_new_run_with_the_same_id_starts_again_and_ignores_requests_of_the_old_one() {
    let (state, scenarios, _) = scenarios(CountBy::Test);
    let run = state.run_id(client(1), Some(&test("t")));
    let old = state.begin(&run, attempt(&state, 1, "/old"));
    assert_eq!(status(state.next_step(&run, None)).as_deref(), Some("503"));
    assert_eq!(state.start_run("t").requests, 0);
    old.started(Some(StatusCode::OK), &HeaderMap::new());
    assert_eq!(status(state.next_step(&run, None)).as_deref(), Some("503"));
    assert!(state.run_trace("t").unwrap().0.attempts.is_empty());
    assert_eq!(scenarios.usage().trace_bytes, 0);
    assert!(state.remove_run("t") && !state.remove_run("t"));
    assert!(state.run_trace("t").is_none());
}

#[test]
fn above_the_maximum_the_runs_that_were_unused_for_longest_are_removed() {
    let (state, scenarios, clock) = scenarios(CountBy::Client);
    for number in 0..=u32::try_from(MAX_RUNS).unwrap() {
        clock.advance(Duration::from_millis(1));
        let run = state.run_id(client(number), None);
        state.begin(&run, attempt(&state, number, "/"));
    }
    let used = scenarios.usage();
    assert!(used.runs <= MAX_RUNS, "{used:?}");
    assert_eq!(used.runs as u64 + used.removed_runs, MAX_RUNS as u64 + 1);
    assert!(!state.has_run("10.0.0.0") && state.has_run("10.0.32.0"));
}

#[test]
fn a_full_trace_counts_further_requests_and_still_selects_steps() {
    let (state, scenarios, _) = scenarios(CountBy::Client);
    let run = state.run_id(client(1), None);
    let target = "/".repeat(1 << 20);
    for _ in 0..80 {
        state.begin(&run, attempt(&state, 1, &target));
    }
    let used = scenarios.usage();
    assert!(used.trace_bytes <= MAX_BYTES, "{used:?}");
    assert_eq!(used.untraced, 80 - 63);
    let trace = state.trace();
    assert_eq!((trace.attempts.len(), trace.untraced), (63, 17));
    assert!(state.next_step(&run, None).is_some());
}

#[test]
fn a_full_trace_removes_the_runs_of_other_clients_first() {
    let (state, scenarios, clock) = scenarios(CountBy::Client);
    let target = "/".repeat(1 << 20);
    for number in 0..63 {
        clock.advance(Duration::from_secs(1));
        let run = state.run_id(client(number), None);
        state.begin(&run, attempt(&state, number, &target));
    }
    let run = state.run_id(client(100), None);
    state.begin(&run, attempt(&state, 100, &target));
    let used = scenarios.usage();
    assert_eq!(used.untraced, 0);
    assert!(
        used.removed_runs > 0 && !state.has_run("10.0.0.0"),
        "{used:?}"
    );
    assert_eq!(state.run_trace("10.0.0.100").unwrap().0.attempts.len(), 1);
}

#[test]
fn positions_of_keys_are_bounded_over_all_runs() {
    let (state, scenarios, clock) = scenarios(CountBy::Key);
    for number in 0..3 {
        clock.advance(Duration::from_secs(1));
        let run = state.run_id(client(number), None);
        for key in 0..MAX_POSITIONS / 2 {
            state.next_step(&run, Some(&key.to_string()));
        }
    }
    let used = scenarios.usage();
    assert!(used.positions <= MAX_POSITIONS, "{used:?}");
    assert!(!state.has_run("10.0.0.0") && state.has_run("10.0.0.2"));
    assert!(state.remove_run("10.0.0.1") && state.remove_run("10.0.0.2"));
    assert_eq!(scenarios.usage().positions, 0);
}

#[test]
fn requests_are_in_the_order_of_their_arrival() {
    let (state, _, clock) = scenarios(CountBy::Client);
    let slow = attempt(&state, 1, "/slow");
    clock.advance(Duration::from_secs(1));
    let run = state.run_id(client(1), None);
    state.begin(&run, attempt(&state, 1, "/fast"));
    state.begin(&run, slow);
    let (trace, _) = state.run_trace("10.0.0.1").unwrap();
    let targets: Vec<_> = trace.attempts.iter().map(|it| &*it.target).collect();
    assert_eq!(targets, ["/slow", "/fast"]);
}

#[test]
fn the_listener_refuses_connections_before_its_step() {
    let (first, _, clock) = scenarios(CountBy::Client);
    let mut refuse = Step::respond(StatusCode::OK);
    refuse.action = super::super::step::StepAction::Refuse;
    refuse.extent = super::super::step::Extent::For(Duration::from_secs(2));
    let mut scenario = Scenario::clone(&first.scenario);
    scenario.steps.insert(0, Arc::new(refuse));
    let scenarios = Scenarios::default().renewed(&[Arc::new(scenario)], &clock);
    let state = scenarios.get("test").unwrap();
    let refused = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&refused);
    state.set_refusal(move |time| log.lock().push(time));
    assert_eq!(*refused.lock(), [Duration::from_secs(2)]);
    // When the listener accepts connections again, the next step applies.
    clock.advance(Duration::from_secs(2));
    let run = state.run_id(client(1), None);
    assert_eq!(status(state.next_step(&run, None)).as_deref(), Some("503"));
    assert_eq!(refused.lock().len(), 1);
}
