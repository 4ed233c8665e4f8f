//! Reports the state of the gateway to systemd or another supervisor that sets `NOTIFY_SOCKET`.

use std::sync::Weak;

use sd_notify::NotifyState;

use crate::server::live::Live;

pub(super) fn report_ready() {
    report(&[NotifyState::Ready]);
}

/// [`report_ready`] reports the end of the reload.
pub(super) fn report_reloading() {
    let now = NotifyState::monotonic_usec_now().ok();
    let states = [NotifyState::Reloading].into_iter().chain(now);
    report(&states.collect::<Vec<_>>());
}

pub(super) fn report_stopping() {
    report(&[NotifyState::Stopping]);
}

/// The gateway works if all workers handle events.
pub(super) async fn feed_watchdog(live: Weak<Live>) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    loop {
        tokio::time::sleep(limit / 3).await;
        let Some(live) = live.upgrade() else { return };
        if let Ok(()) = tokio::time::timeout(limit / 3, live.await_workers()).await {
            report(&[NotifyState::Watchdog]);
        } else {
            tracing::error!(
                "a worker handles no events, so the supervisor may restart the gateway"
            );
        }
    }
}

fn report(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot report the state to the supervisor");
    }
}
