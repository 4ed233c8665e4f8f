//! Clocks that are moved.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::redis::{RedisServer, Reply, shifted, shifted_back};

/// What a server thinks the time is.
pub(super) fn time_of(server: &RedisServer) -> Duration {
    let [seconds, micros] = server.command(&["TIME"]).array().try_into().unwrap();
    let whole = |reply: Reply| u64::try_from(reply.int()).unwrap();
    Duration::from_secs(whole(seconds)) + Duration::from_micros(whole(micros))
}

fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap()
}

/// How far a clock is ahead, given what it says between two looks at the real one.
fn is_ahead_by(by: Duration, look: impl Fn() -> Duration) {
    let before = now();
    let seen = look();
    let after = now();
    // Offsets are numbers with a fraction, which is not kept to the last bit.
    let slack = Duration::from_millis(2);
    assert!(
        seen + slack >= before + by && seen <= after + by + slack,
        "{seen:?} is not {by:?} after {before:?} to {after:?}"
    );
}

#[test]
fn a_server_believes_that_time_has_passed() {
    let server = RedisServer::options().fake_time().start();
    let mut ahead = Duration::ZERO;
    is_ahead_by(ahead, || time_of(&server));
    for by in [
        Duration::from_millis(1),
        Duration::from_millis(2_500),
        Duration::from_hours(24 * 366),
    ] {
        ahead += by;
        server.advance(by);
        is_ahead_by(ahead, || time_of(&server));
    }
    // Nor does it forget when it is started again.
    server.restart();
    is_ahead_by(ahead, || time_of(&server));
}

#[test]
fn a_key_expires_when_its_time_has_passed_and_not_before() {
    let server = RedisServer::options().fake_time().start();
    for _ in 0..20 {
        server.command(&["SET", "a", "1", "PX", "3600000"]);
        server.advance(Duration::from_mins(59));
        assert_eq!(server.command(&["EXISTS", "a"]), Reply::Int(1));
        // Redis keeps a key to the end of its last millisecond.
        server.advance(Duration::from_mins(1) + Duration::from_millis(2));
        assert_eq!(server.command(&["EXISTS", "a"]), Reply::Int(0));
    }
}

#[test]
fn a_server_whose_time_is_moved_is_about_as_fast_as_another() {
    let median = |server: &RedisServer| {
        let mut took: Vec<_> = (0..500)
            .map(|_| {
                let asked = Instant::now();
                server.command(&["PING"]);
                asked.elapsed()
            })
            .collect();
        took.sort();
        took[250]
    };
    let moved = RedisServer::options().fake_time().start();
    moved.advance(Duration::from_hours(1));
    let (real, moved) = (median(&RedisServer::start()), median(&moved));
    eprintln!("a connection and a PING: {real:?}, and {moved:?} in time that is moved");
    assert!(
        moved < real + Duration::from_millis(5),
        "{moved:?} {real:?}"
    );
}

#[test]
fn a_command_has_another_wall_clock_and_the_same_time() {
    let date = |command: &mut Command| {
        let said = command.output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        Duration::from_secs_f64(said.trim().parse().unwrap())
    };
    let by = Duration::from_mins(5);
    is_ahead_by(by, || {
        let mut command = Command::new("date");
        shifted(command.arg("+%s.%N"), by);
        date(&mut command)
    });
    is_ahead_by(Duration::ZERO, || {
        let mut command = Command::new("date");
        shifted_back(command.arg("+%s.%N"), by);
        date(&mut command) + by
    });
}
