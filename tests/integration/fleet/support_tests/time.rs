//! Tests of Redis servers and other processes that run with a fake clock, which is ahead of or behind the real time.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::support::redis::{RedisServer, Reply, shift_clock_ahead, shift_clock_back};

/// Returns the time since 1970 by the clock of `server`.
pub(super) fn time_of(server: &RedisServer) -> Duration {
    let [seconds, micros] = server.command(&["TIME"]).array().try_into().unwrap();
    let number = |reply: Reply| u64::try_from(reply.int()).unwrap();
    Duration::from_secs(number(seconds)) + Duration::from_micros(number(micros))
}

fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap()
}

/// Asserts that the time that `read` returns is ahead of the real time by the duration `by`. The tolerance is 2 ms.
fn assert_ahead(by: Duration, read: impl Fn() -> Duration) {
    let before = now();
    let seen = read();
    let after = now();
    // The comparison tolerates 2 ms, because the offset is a floating-point number and not exact.
    let slack = Duration::from_millis(2);
    assert!(
        seen + slack >= before + by && seen <= after + by + slack,
        "{seen:?} is not {by:?} after {before:?} to {after:?}"
    );
}

#[test]
fn advancing_the_clock_changes_the_time_of_a_server() {
    let server = RedisServer::options().fake_time().start();
    let mut ahead = Duration::ZERO;
    assert_ahead(ahead, || time_of(&server));
    for by in [
        Duration::from_millis(1),
        Duration::from_millis(2_500),
        Duration::from_hours(24 * 366),
    ] {
        ahead += by;
        server.advance(by);
        assert_ahead(ahead, || time_of(&server));
    }
    // A restart must not reset the offset of the clock.
    server.restart();
    assert_ahead(ahead, || time_of(&server));
}

#[test]
fn a_key_expires_at_its_expiry_and_not_before() {
    let server = RedisServer::options().fake_time().start();
    for _ in 0..20 {
        server.command(&["SET", "a", "1", "PX", "3600000"]);
        server.advance(Duration::from_mins(59));
        assert_eq!(server.command(&["EXISTS", "a"]), Reply::Int(1));
        // The clock advances 2 ms beyond the expiry, because Redis deletes a key only after the millisecond of its
        // expiry.
        server.advance(Duration::from_mins(1) + Duration::from_millis(2));
        assert_eq!(server.command(&["EXISTS", "a"]), Reply::Int(0));
    }
}

#[test]
fn a_server_with_a_fake_clock_is_about_as_fast_as_another() {
    let median = |server: &RedisServer| {
        let mut took: Vec<_> = (0..500)
            .map(|_| {
                let began = Instant::now();
                server.command(&["PING"]);
                began.elapsed()
            })
            .collect();
        took.sort();
        took[250]
    };
    let fake = RedisServer::options().fake_time().start();
    fake.advance(Duration::from_hours(1));
    let (real, fake) = (median(&RedisServer::start()), median(&fake));
    eprintln!("connection and PING: {real:?}, with a fake clock {fake:?}");
    assert!(fake < real + Duration::from_millis(5), "{fake:?} {real:?}");
}

#[test]
fn the_wall_clock_of_a_command_can_be_shifted() {
    let date = |command: &mut Command| {
        let output = command.output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        Duration::from_secs_f64(output.trim().parse().unwrap())
    };
    let by = Duration::from_mins(5);
    assert_ahead(by, || {
        let mut command = Command::new("date");
        shift_clock_ahead(command.arg("+%s.%N"), by);
        date(&mut command)
    });
    assert_ahead(Duration::ZERO, || {
        let mut command = Command::new("date");
        shift_clock_back(command.arg("+%s.%N"), by);
        date(&mut command) + by
    });
}
