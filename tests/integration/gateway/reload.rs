//! Tests of the reload of the configuration: by signal, by the admin API, by command and by `serve --watch`.

mod load;
pub(super) mod traffic;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    Certificates, Client, ClientResponse, Process, ProcessBuilder, Upstream, eventually,
};

/// A gateway process whose configuration file a test changes.
struct Reloaded {
    files: ProcessBuilder,
    process: Process,
}

impl Reloaded {
    fn start(config: &str) -> Self {
        let files = Process::serving(config).binary_from_env("RELOAD_TIDEGATE");
        let process = files.start();
        // From now on, a changed file takes effect only by a reload.
        process.admin();
        Self { files, process }
    }

    async fn post(&self) -> ClientResponse {
        self.process.admin().post("/admin/v1/reload").send().await
    }

    /// Writes `config` to the file, reloads it, and asserts that it was put in force. Returns the response.
    async fn reload(&self, config: &str) -> Value {
        self.files.write_config(config);
        let response = self.post().await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    /// Writes `config` to the file, reloads it, and asserts that it was rejected. Returns the reason.
    async fn reject(&self, config: &str) -> String {
        self.files.write_config(config);
        let response = self.post().await;
        assert_eq!(response.status, 422, "{}", response.text());
        let detail = response.json()["detail"].take();
        detail.as_str().expect("the detail is a text").to_owned()
    }

    async fn status(&self) -> Value {
        let response = self.process.admin().get("/admin/v1/config").send().await;
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    fn client(&self) -> Client {
        self.process.client()
    }
}

/// Returns a configuration with an admin listener, one upstream and the route `always`, followed by `rest`.
fn config(upstream: &Upstream, rest: &str) -> String {
    format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [upstream.api]\nservers = [\"{}\"]\n{rest}\
         [[route]]\nname = \"always\"\npath = \"/always\"\n",
        upstream.url()
    )
}

/// Returns a configuration whose routes have the limit `device` with this quota, followed by `rest`.
fn limited(upstream: &Upstream, quota: &str, rest: &str) -> String {
    let limit = format!("[limit.device]\n{quota}\n");
    let route = "[[route]]\nname = \"all\"\npath = \"/$\"\nlimits = [\"device\"]\n";
    config(upstream, &format!("{limit}{rest}{route}"))
}

/// Sends `count` requests and returns how many of them were admitted.
async fn admitted(client: &Client, count: usize) -> usize {
    let mut connection = client.keep_alive().await;
    let mut admitted = 0;
    for _ in 0..count {
        let response = connection.send(client.get("/")).await;
        assert!(matches!(response.status, 200 | 429), "{response:?}");
        admitted += usize::from(response.status == 200);
    }
    admitted
}

const OPEN_ROUTE: &str = "[[route]]\nname = \"new\"\npath = \"/new\"\n";

#[tokio::test]
async fn a_changed_file_is_in_force_after_sighup() {
    let upstream = Upstream::echo();
    let gateway = Reloaded::start(&config(&upstream, OPEN_ROUTE));
    let client = gateway.client();
    assert_eq!(client.get("/new").send().await.status, 200);
    assert_eq!(client.get("/other").send().await.status, 404);
    let before = gateway.status().await;
    assert_eq!(before["last_reload"], Value::Null);

    let both = format!("{OPEN_ROUTE}[[route]]\nname = \"other\"\npath = \"/other\"\n");
    gateway.files.write_config(&config(&upstream, &both));
    gateway.process.signal(Signal::HUP);
    eventually("the new route is in force", async || {
        client.get("/other").send().await.status == 200
    })
    .await;
    let after = gateway.status().await;
    assert_eq!(after["source"], "tidegate.toml");
    assert_ne!(after["hash"], before["hash"]);
    assert_eq!(after["last_reload"]["result"], "applied");
    let applied = "config_reloads_total{result=\"applied\"}";
    assert_eq!(gateway.process.metric(applied).await, 1);
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_is_reported_everywhere() {
    let upstream = Upstream::echo();
    let valid = config(&upstream, OPEN_ROUTE);
    let gateway = Reloaded::start(&valid);
    let hash = gateway.status().await["hash"].take();

    let detail = gateway.reject(&valid.replace("path", "pth")).await;
    assert!(detail.contains("tidegate.toml:9:1"), "{detail}");
    assert!(detail.contains("did you mean `path`?"), "{detail}");
    let status = gateway.status().await;
    assert_eq!(status["hash"], hash);
    assert_eq!(status["last_reload"]["result"], "rejected");
    assert_eq!(status["last_reload"]["error"], detail);
    gateway.process.wait_for_line("configuration not reloaded");
    gateway.process.wait_for_line("location=tidegate.toml:9:1");
    let rejected = "config_reloads_total{result=\"rejected\"}";
    assert_eq!(gateway.process.metric(rejected).await, 1);

    // An error that only TLS would notice has a location, too.
    let unusable = valid.replace(
        "[upstream.api]",
        "[upstream.tls]\nservers = [\"https://a..b\"]\n[upstream.api]",
    );
    let detail = gateway.reject(&unusable).await;
    assert!(detail.contains("TLS cannot verify it"), "{detail}");

    // A file that is written at this moment is cut in the middle, and a missing file cannot be read.
    gateway.reject(&valid[..valid.len() - 9]).await;
    let path = gateway.files.directory().join("tidegate.toml");
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let detail = gateway.post().await.text();
    assert!(detail.contains("it is larger than 4 MiB"), "{detail}");
    fs::remove_file(path).unwrap();
    assert_eq!(gateway.post().await.status, 422);
    assert_eq!(gateway.client().get("/new").send().await.status, 200);
}

#[tokio::test]
async fn a_drained_bucket_stays_drained_over_an_unrelated_change() {
    let upstream = Upstream::echo();
    let quota = "rate = \"1/m\"\nburst = 59";
    let gateway = Reloaded::start(&limited(&upstream, quota, ""));
    assert_eq!(admitted(&gateway.client(), 80).await, 60);
    gateway.reload(&limited(&upstream, quota, OPEN_ROUTE)).await;
    assert_eq!(gateway.client().get("/new").send().await.status, 200);
    assert_eq!(admitted(&gateway.client(), 80).await, 0);
    // A limit with another name has new buckets.
    let renamed = limited(&upstream, quota, "").replace("device", "client");
    gateway.reload(&renamed).await;
    assert_eq!(admitted(&gateway.client(), 80).await, 60);
}

#[tokio::test]
async fn keys_that_need_a_restart_are_named_and_the_others_apply() {
    let upstream = Upstream::echo();
    let gateway = Reloaded::start(&config(&upstream, ""));
    let changed = config(&upstream, OPEN_ROUTE)
        .replacen("127.0.0.1:0", "127.0.0.1:1", 1)
        .replace("[admin]", "workers = 7\n[store]\nmax_keys = 5\n[admin]");
    let status = gateway.reload(&changed).await;
    let pending = serde_json::json!(["server.listen", "server.workers", "store"]);
    assert_eq!(status["pending_restart"], pending);
    assert_eq!(gateway.status().await["pending_restart"], pending);
    assert_eq!(gateway.client().get("/new").send().await.status, 200);
    let status = gateway.reload(&config(&upstream, OPEN_ROUTE)).await;
    assert_eq!(status["pending_restart"], serde_json::json!([]));
}

#[tokio::test]
async fn counters_of_kept_names_continue_and_those_of_removed_routes_disappear() {
    let upstream = Upstream::echo();
    let old = "[[route]]\nname = \"old\"\npath = \"/old\"\n";
    let gateway = Reloaded::start(&config(&upstream, &format!("{OPEN_ROUTE}{old}")));
    for path in ["/new", "/old"] {
        assert_eq!(gateway.client().get(path).send().await.status, 200);
    }
    gateway.reload(&config(&upstream, OPEN_ROUTE)).await;
    assert_eq!(gateway.client().get("/new").send().await.status, 200);
    let series = "requests_total{route=\"new\",status=\"200\"}";
    assert_eq!(gateway.process.metric(series).await, 2);
    let metrics = gateway.process.admin().get("/metrics").send().await.text();
    assert!(!metrics.contains("route=\"old\""), "{metrics}");
}

#[tokio::test]
async fn circuits_and_connections_of_an_upstream_are_kept() {
    let upstream = Upstream::echo();
    let gateway = Reloaded::start(&config(&upstream, OPEN_ROUTE));
    let (client, admin) = (gateway.client(), gateway.process.admin());
    assert_eq!(client.get("/new").send().await.status, 200);
    let retries = "[upstream.api.retry]\nattempts = 2\n";
    gateway
        .reload(&config(&upstream, &format!("{retries}{OPEN_ROUTE}")))
        .await;
    assert_eq!(client.get("/new").send().await.status, 200);
    // Each worker has its own connections.
    assert!(upstream.connections() <= 2, "{}", upstream.connections());

    let server = upstream.url().replace("http://", "");
    let open = format!("/admin/v1/upstreams/api/servers/{server}/open");
    assert_eq!(admin.post(&open).send().await.status, 200);
    assert_eq!(client.get("/new").send().await.status, 503);
    gateway.reload(&config(&upstream, OPEN_ROUTE)).await;
    assert_eq!(client.get("/new").send().await.status, 503);
}

#[tokio::test]
async fn a_request_finishes_with_the_configuration_it_started_with() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let idempotency =
        "[[route]]\nname = \"pay\"\npath = \"/pay\"\nidempotency = { mode = \"required\" }\n";
    let gateway = Reloaded::start(&config(&upstream, idempotency));
    let request = gateway.client().post("/pay").key("k1");
    let started = tokio::spawn(request.send());
    eventually("upstream has the request", async || upstream.count() == 1).await;
    // Neither the route nor its upstream exist in the new configuration.
    let other = Upstream::echo();
    let moved = config(&other, OPEN_ROUTE).replace("api", "other");
    gateway.reload(&moved).await;
    permits.add_permits(1);
    let response = started.await.unwrap();
    assert_eq!(
        (response.status, &*response.text()),
        (200, "late, but whole")
    );
    gateway.reload(&config(&upstream, idempotency)).await;
    let replay = gateway.client().post("/pay").key("k1").send().await;
    assert_eq!(replay.header("idempotent-replayed"), "true");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn watch_reloads_a_file_that_is_replaced_as_by_kubernetes() {
    let upstream = Upstream::echo();
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_owned();
    let put = |version: &str, config: &str| {
        fs::create_dir(root.join(version)).unwrap();
        fs::write(root.join(version).join("tidegate.toml"), config).unwrap();
        symlink(version, root.join("..new")).unwrap();
        fs::rename(root.join("..new"), root.join("..data")).unwrap();
    };
    put("..v1", &config(&upstream, ""));
    symlink("..data/tidegate.toml", root.join("tidegate.toml")).unwrap();
    let process = Process::with(&["serve", "tidegate.toml", "--watch"]);
    let process = process.inside(directory).start();
    assert_eq!(process.client().get("/new").send().await.status, 404);
    put("..v2", &config(&upstream, OPEN_ROUTE));
    eventually("the new file is in force", async || {
        process.client().get("/new").send().await.status == 200
    })
    .await;
    // An event without a change of the content causes no reload, and does not delay one.
    let busy = root.join("unrelated");
    let writes = tokio::spawn(async move {
        loop {
            fs::write(&busy, "").unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    put("..v3", &config(&upstream, ""));
    eventually("the last file is in force", async || {
        process.client().get("/new").send().await.status == 404
    })
    .await;
    writes.abort();
    let applied = "config_reloads_total{result=\"applied\"}";
    assert_eq!(process.metric(applied).await, 2);
}

#[tokio::test]
async fn the_reload_command_prints_the_result_and_fails_if_the_file_was_rejected() {
    let upstream = Upstream::echo();
    let valid = config(&upstream, OPEN_ROUTE);
    let gateway = Reloaded::start(&valid);
    let url = format!("http://{}", gateway.process.admin().address());
    let run = |command: &str| {
        let output = Process::run(&[command, "--admin", &url]);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (code, text) = run("reload");
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.starts_with("tidegate.toml: reloaded (SHA-256 "),
        "{text}"
    );
    assert_eq!(run("ready"), (Some(0), "ready\n".to_owned()));

    gateway.files.write_config(&valid.replace("path", "pth"));
    let (code, text) = run("reload");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("did you mean `path`?"), "{text}");

    gateway
        .files
        .write_config(&valid.replace("[admin]", "workers = 9\n[admin]"));
    let (code, text) = run("reload");
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("restart the gateway to change server.workers"),
        "{text}"
    );

    let (code, text) = {
        let unused = crate::support::free_address();
        let output = Process::run(&["ready", "--admin", &format!("http://{unused}")]);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(code, Some(1));
    assert!(
        text.contains("no response from the admin listener"),
        "{text}"
    );
}

#[tokio::test]
async fn drain_by_the_admin_api_requires_a_token_and_rejects_later_reloads() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let open = config(&upstream, OPEN_ROUTE);
    let mut gateway = Reloaded::start(&open);
    let admin = gateway.process.admin();
    assert_eq!(admin.post("/admin/v1/drain").send().await.status, 403);
    // A token can be set and changed by a reload.
    let with_token = open.replace("[admin]", "[admin]\ntoken = \"s3cret\"");
    gateway.reload(&with_token).await;
    let post = |path: &str| admin.post(path).header("Authorization", "Bearer s3cret");
    assert_eq!(admin.post("/admin/v1/drain").send().await.status, 401);
    let slow = tokio::spawn(gateway.client().get("/new").send());
    eventually("upstream has the request", async || upstream.count() == 1).await;
    assert_eq!(post("/admin/v1/drain").send().await.status, 200);
    let rejected = post("/admin/v1/reload").send().await;
    assert_eq!(rejected.status, 422);
    assert!(rejected.text().contains("the gateway is shutting down"));
    // As when Kubernetes stops the container after a preStop hook.
    gateway.process.signal(Signal::TERM);
    gateway
        .process
        .wait_for_line("shutdown signal received, draining");
    permits.add_permits(1);
    assert_eq!(slow.await.unwrap().status, 200);
    assert_eq!(gateway.process.wait_for_exit().code(), Some(0));
}

/// Returns a configuration with TLS, whose certificate and key are in the files `cert.pem` and `key.pem`.
fn tls(upstream: &Upstream) -> String {
    config(upstream, OPEN_ROUTE).replace(
        "[admin]",
        "tls = { cert = \"cert.pem\", key = \"key.pem\" }\n[admin]",
    )
}

/// Copies the certificate and the key to the directory of the gateway.
fn install(directory: &Path, certificates: &Certificates) {
    fs::copy(certificates.cert_file(), directory.join("cert.pem")).unwrap();
    fs::copy(certificates.key_file(), directory.join("key.pem")).unwrap();
}

#[tokio::test]
async fn certificates_rotate_without_a_failed_handshake_and_unusable_pairs_are_rejected() {
    let upstream = Upstream::echo();
    let pairs = [Certificates::for_localhost(), Certificates::for_localhost()];
    let files = Process::serving(&tls(&upstream));
    install(files.directory(), &pairs[0]);
    let process = files.start();
    process.admin();
    let gateway = Reloaded { files, process };
    // The client trusts both certificates, and connects all the time.
    let both = Certificates::connector_for(&pairs, &[]);
    let client = gateway.client().tls(both);
    let handshakes = tokio::spawn(async move {
        for _ in 0..500 {
            assert_eq!(client.get("/new").send().await.status, 200);
        }
    });
    let directory = gateway.files.directory();
    let trusting = |pair: &Certificates| gateway.client().tls(pair.connector(&[]));
    let mut round = 0;
    while !handshakes.is_finished() {
        round += 1;
        install(directory, &pairs[round % 2]);
        assert_eq!(gateway.post().await.status, 200);
        let response = trusting(&pairs[round % 2]).get("/new").send().await;
        assert_eq!(response.status, 200);
    }
    handshakes.await.unwrap();
    assert!(round >= 2);

    let (current, other) = (&pairs[round % 2], &pairs[(round + 1) % 2]);
    fs::copy(other.key_file(), directory.join("key.pem")).unwrap();
    let detail = gateway.reject(&tls(&upstream)).await;
    assert!(
        detail.contains("does not belong to the certificate"),
        "{detail}"
    );
    install(directory, &Certificates::expired());
    let detail = gateway.reject(&tls(&upstream)).await;
    assert!(detail.contains("expired"), "{detail}");
    assert!(detail.contains("renew the certificate"), "{detail}");
    fs::remove_file(directory.join("cert.pem")).unwrap();
    let detail = gateway.reject(&tls(&upstream)).await;
    assert!(detail.contains("cannot read the file"), "{detail}");
    assert_eq!(trusting(current).get("/new").send().await.status, 200);
}

#[tokio::test]
async fn a_log_file_that_was_renamed_is_opened_again() {
    let upstream = Upstream::echo();
    let with_log =
        config(&upstream, OPEN_ROUTE).replace("[admin]", "[log]\nfile = \"gateway.log\"\n[admin]");
    let files = Process::serving(&with_log);
    let listen = crate::support::free_address();
    let files = files.args(&["--listen", &listen.to_string()]);
    let process = files.start();
    let (log, rotated) = (
        files.directory().join("gateway.log"),
        files.directory().join("gateway.log.1"),
    );
    let contains =
        |path: &Path, part: &str| fs::read_to_string(path).is_ok_and(|text| text.contains(part));
    eventually("the gateway listens", async || {
        contains(&log, "gateway listening")
    })
    .await;
    let client = Client::of(listen);
    assert_eq!(client.get("/new?first").send().await.status, 200);
    eventually("the first request is in the file", async || {
        contains(&log, "tidegate::access")
    })
    .await;
    fs::rename(&log, &rotated).unwrap();
    // The file is opened again even if the configuration is rejected.
    files.write_config("[server]\nlisten = 1\n");
    process.signal(Signal::HUP);
    eventually("the file is opened again", async || log.exists()).await;
    assert_eq!(client.get("/new").send().await.status, 200);
    eventually("the request is in the new file", async || {
        contains(&log, "tidegate::access")
    })
    .await;
    assert!(process.lines().is_empty(), "{}", process.log());
}

#[tokio::test]
async fn reloads_in_quick_succession_follow_each_other() {
    let upstream = Upstream::echo();
    let gateway = Reloaded::start(&config(&upstream, OPEN_ROUTE));
    let reloads: Vec<_> = (0..10)
        .map(|_| tokio::spawn(gateway.process.admin().post("/admin/v1/reload").send()))
        .collect();
    for reload in reloads {
        assert_eq!(reload.await.unwrap().status, 200);
    }
    let applied = "config_reloads_total{result=\"applied\"}";
    assert_eq!(gateway.process.metric(applied).await, 10);
}
