//! Callers that ask again and again, and what became of it.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::client::{Asking, KeptAlive};
use super::{Client, PATIENCE};

/// One request of many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// When it was sent, counted from the first.
    pub(crate) at: Duration,
    /// The status of its answer, where there was a whole one.
    pub(crate) status: Option<u16>,
}

/// Sends this many requests a second, whatever becomes of those before, each on its own connection.
pub(crate) async fn steadily(
    client: &Client,
    a_second: u32,
    lasting: Duration,
    ask: fn(&Client) -> Asking,
) -> Vec<Outcome> {
    let begun = Instant::now();
    let mut ticks = interval(Duration::from_secs(1) / a_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut requests = JoinSet::new();
    loop {
        ticks.tick().await;
        let at = begun.elapsed();
        if at >= lasting {
            return requests.join_all().await;
        }
        let asking = ask(client);
        requests.spawn(async move {
            let answered = timeout(PATIENCE, asking.try_send()).await;
            let answer = answered.ok().and_then(Result::ok);
            Outcome {
                at,
                status: answer.map(|answer| answer.status),
            }
        });
    }
}

/// Has this many callers ask, each again as soon as it is answered, on connections they keep.
pub(crate) async fn crowding(
    client: &Client,
    callers: usize,
    lasting: Duration,
    ask: fn(&Client) -> Asking,
) -> Vec<Outcome> {
    let begun = Instant::now();
    let mut crowd = JoinSet::new();
    for _ in 0..callers {
        let client = client.clone();
        crowd.spawn(async move {
            let mut outcomes = Vec::new();
            let mut connection = None;
            while begun.elapsed() < lasting {
                let at = begun.elapsed();
                let asked = ask_on(&mut connection, &client, ask(&client));
                let status = timeout(PATIENCE, asked).await.ok().flatten();
                if status.is_none() {
                    connection = None;
                }
                outcomes.push(Outcome { at, status });
            }
            outcomes
        });
    }
    crowd.join_all().await.concat()
}

async fn ask_on(
    connection: &mut Option<KeptAlive>,
    client: &Client,
    asking: Asking,
) -> Option<u16> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(client.try_keep_alive().await.ok()?),
    };
    let answer = connection.try_send(asking).await.ok()?;
    Some(answer.status)
}
