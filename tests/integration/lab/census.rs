//! The census of a gateway and the verdict of the lab agree on whether a real client returns early.

use std::process::Command;

use super::clients::{judge, library};
use crate::support::{Gateway, Upstream};

const CLIENTS: [&str; 12] = [
    "curl",
    "wget",
    "urllib3",
    "urllib3-without-retry-after",
    "requests",
    "openai",
    "anthropic",
    "stripe",
    "boto3-legacy",
    "boto3-standard",
    "undici",
    "got",
];

/// Returns a client that makes one operation.
fn client(name: &str) -> Command {
    let mut command = Command::new(name);
    match name {
        "curl" => command.args(["-s", "--retry", "3", "{url}/"]),
        "wget" => command.args([
            "-q",
            "-O",
            "/dev/null",
            "--tries=4",
            "--waitretry=1",
            "--retry-on-http-error=429",
            "{url}/",
        ]),
        _ => return library(name, 1),
    };
    command
}

/// Runs a client against a limit whose bucket is empty. Returns the counts of rejections and early returns.
async fn observe(name: &'static str) -> (u64, u64) {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/3s\"\nburst = 0");
    let gateway = gateway.upstream(&upstream).admin().start();
    // A library needs seconds to start, and sends the request that empties the bucket itself.
    if ["curl", "wget"].contains(&name) {
        assert_eq!(gateway.client().get("/").send().await.status, 200);
    }
    let url = format!("http://{}", gateway.address());
    let mut command = client(name);
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let replaced = arguments.iter().map(|it| it.to_str().expect("ASCII"));
    let replaced: Vec<_> = replaced.map(|it| it.replace("{url}", &url)).collect();
    let mut filled = Command::new(command.get_program());
    let set = command.get_envs();
    filled.envs(set.filter_map(|(name, value)| Some((name, value?))));
    filled.args(replaced).env("TIDEGATE_URL", &url);
    filled.env("TIDEGATE_FIRST_REQUEST", "1");
    command = filled;
    let run = tokio::task::spawn_blocking(move || command.output().expect("the client starts"));
    run.await.expect("the task does not panic");
    let limits = gateway.admin().get("/admin/v1/limits").send().await.json();
    let count = |what: &str| limits["limits"][0][what].as_u64().expect("a count");
    (count("rejected"), count("early"))
}

#[tokio::test(flavor = "multi_thread")]
async fn census_and_lab_agree_on_real_clients() {
    let running = CLIENTS.map(|name| {
        tokio::spawn(async move {
            let observed = observe(name).await;
            let judging = move || judge("stated-3s", &[], &client(name));
            let judged = tokio::task::spawn_blocking(judging).await;
            (observed, judged.expect("the task does not panic"))
        })
    });
    let mut early = Vec::new();
    for (name, running) in CLIENTS.into_iter().zip(running) {
        let ((rejected, returned), judged) = running.await.expect("the task does not panic");
        assert!(rejected >= 1, "{name} was not rejected");
        let is_early = judged.verdict("retry-after") == "fail";
        assert_eq!(
            returned > 0,
            is_early,
            "{name}: {rejected} rejections, {returned} early"
        );
        if is_early {
            early.push(name);
        }
    }
    // Some clients of each kind, so that the agreement means something.
    assert!((3..=9).contains(&early.len()), "{early:?}");
}
