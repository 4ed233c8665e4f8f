//! Tests of the metrics, the alerts and the dashboard with the real `prometheus` and `promtool`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::docs::anchors;
use crate::support::redis::RedisServer;
use crate::support::{
    Certificates, Client, Gateway, KilledOnDrop, Process, RefusingPort, Upstream, eventually,
    free_address,
};

fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs `promtool`, and panics if it finds a problem.
#[track_caller]
fn promtool(arguments: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command
        .args(arguments)
        .current_dir(file("config/prometheus"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool is installed");
    let mut stdin = child.stdin.take().expect("the input is piped");
    stdin.write_all(input.as_bytes()).expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool ends");
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    assert!(
        output.status.success(),
        "promtool {arguments:?}:\n{stdout}{stderr}"
    );
}

#[test]
fn promtool_accepts_the_configuration_and_the_alerts() {
    promtool(&["check", "config", "--syntax-only", "prometheus.yml"], "");
    promtool(&["check", "rules", "alerts.yml"], "");
    promtool(&["test", "rules", "alerts_test.yml"], "");
}

/// Starts a gateway with TLS, limits, keys, a store on disk, all features of upstreams, and a scenario.
fn start_gateway(upstream: &Upstream, certificates: &Certificates) -> Process {
    let config = format!(
        r#"
        [server]
        listen = "127.0.0.1:0"
        workers = 2
        tls = {{ cert = "{}", key = "{}" }}
        [admin]
        listen = "127.0.0.1:0"
        [store]
        backend = "disk"
        path = "store"
        [upstream.api]
        servers = ["{}"]
        health = {{ path = "/healthz", interval = "1s" }}
        [upstream.api.concurrency]
        [upstream.down]
        servers = ["{}"]
        [upstream.down.retry]
        deadline = "1s"
        [limit.client]
        rate = "1/h"
        burst = 2
        [limit.soft]
        rate = "1/h"
        mode = "shadow"
        [limit.slow]
        rate = "20/s"
        on_exceed = "delay"
        [scenario.steps]
        steps = ["404", "503"]
        at_end = "restart"
        [[route]]
        name = "scripted"
        path = "/scripted"
        upstream = "api"
        scenario = "steps"
        [[route]]
        name = "down"
        path = "/down"
        upstream = "down"
        [[route]]
        name = "limited"
        path = "/limited"
        upstream = "api"
        limits = ["client", "soft"]
        [[route]]
        name = "all"
        path = "/"
        upstream = "api"
        limits = ["slow"]
        idempotency = {{ scope = "client" }}
        "#,
        certificates.cert_file().display(),
        certificates.key_file().display(),
        upstream.url(),
        RefusingPort::permanent_url(),
    );
    Process::serving(&config).start()
}

/// Starts a gateway with its store in Redis.
fn start_with_redis(redis: &RedisServer, upstream: &Upstream) -> Process {
    redis.command(&["CONFIG", "SET", "maxmemory", "40mb"]);
    Process::serving(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nbackend = \"redis\"\nurl = \"{}\"\n[upstream.api]\nservers = [\"{}\"]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{}}\n",
        redis.url(),
        upstream.url()
    ))
    .start()
}

async fn send_traffic(client: &Client) {
    let mut statuses = Vec::new();
    for (method, path, key) in [
        ("GET", "/limited", None),
        ("GET", "/limited", None),
        ("GET", "/limited", None),
        ("GET", "/limited", None),
        ("POST", "/payments", Some("one")),
        ("POST", "/payments", Some("one")),
        ("GET", "/scripted", None),
        ("GET", "/scripted", None),
        ("GET", "/down", None),
    ] {
        let request = client.request(method, path);
        let request = match key {
            Some(key) => request.key(key),
            None => request,
        };
        statuses.push(request.send().await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 200, 200, 404, 503, 502]);
}

#[tokio::test]
async fn every_query_of_the_alerts_and_the_dashboard_has_a_result() {
    let (upstream, redis) = (Upstream::replying(200), RedisServer::start());
    let certificates = Certificates::for_localhost();
    let gateways = [
        start_gateway(&upstream, &certificates),
        start_with_redis(&redis, &upstream),
    ];
    let client = gateways[0].client().tls(certificates.connector(&[]));
    send_traffic(&client).await;
    for gateway in &gateways {
        let request = gateway.admin().get("/metrics");
        let response = request.header("Accept", "text/plain").send().await;
        let text = response.text();
        promtool(&["check", "metrics"], &text);
    }

    let directory = tempfile::tempdir().unwrap();
    let targets = gateways
        .each_ref()
        .map(|it| it.admin().address().to_string());
    let config = directory.path().join("prometheus.yml");
    let rules = file("config/prometheus/alerts.yml");
    let text = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{rules:?}]\n\
         scrape_configs: [{{ job_name: tidegate, static_configs: [{{ targets: {targets:?} }}] }}]\n"
    );
    std::fs::write(&config, text).unwrap();
    let address = free_address();
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            directory.path().display()
        ))
        .arg(format!("--web.listen-address={address}"))
        .arg("--log.level=error");
    let _prometheus = KilledOnDrop::listening(&mut command, address);
    let prometheus = Client::of(address);
    eventually("Prometheus is ready", async || {
        prometheus.get("/-/ready").send().await.status == 200
    })
    .await;
    eventually("Prometheus has scraped both gateways thrice", async || {
        let scraped = query(&prometheus, "count_over_time(up[1m]) >= 3 and up == 1").await;
        scraped.as_array().is_some_and(|series| series.len() == 2)
    })
    .await;

    let alerts = alerts(&prometheus).await;
    let panels = panel_queries();
    assert!(alerts.len() >= 14 && panels.len() >= 40);
    let mut empty = Vec::new();
    for expression in alerts.iter().chain(&panels) {
        let result = query(&prometheus, expression).await;
        if result.as_array().is_none_or(Vec::is_empty) {
            empty.push(expression);
        }
    }
    assert!(empty.is_empty(), "without a result: {empty:#?}");
}

/// Returns the result of an instant query.
async fn query(prometheus: &Client, expression: &str) -> Value {
    let encoded = expression.bytes().fold(String::new(), |mut text, byte| {
        write!(text, "%{byte:02X}").unwrap();
        text
    });
    let path = format!("/api/v1/query?query={encoded}");
    let mut response = prometheus.get(&path).send().await.json();
    assert_eq!(response["status"], "success", "{expression}: {response}");
    response["data"]["result"].take()
}

/// Returns the expressions of all alerts, without the comparisons that make them empty while the alert does not fire.
/// Each part of an `or` is an expression of its own.
async fn alerts(prometheus: &Client) -> Vec<String> {
    let response = prometheus.get("/api/v1/rules").send().await.json();
    let document = std::fs::read_to_string(file("docs/operate.md")).unwrap();
    let anchors = anchors(&document);
    let mut expressions = Vec::new();
    for rule in response["data"]["groups"][0]["rules"].as_array().unwrap() {
        let [name, expression] = ["name", "query"].map(|member| rule[member].as_str().unwrap());
        let runbook = rule["annotations"]["runbook"].as_str().unwrap();
        let anchor = runbook.strip_prefix("docs/operate.md#").unwrap();
        assert!(anchors.contains(anchor), "{runbook}");
        assert!(document.contains(&format!("`{name}`")), "{name}");
        assert_ne!(rule["health"], "err", "{rule}");
        for part in expression.split(" or ") {
            let compared = [" > ", " < ", " == "].map(|operator| part.find(operator));
            let end = compared.into_iter().flatten().min();
            expressions.push(part[..end.expect("a comparison")].to_owned());
        }
    }
    expressions
}

/// Returns the expressions of all panels of the dashboard.
fn panel_queries() -> Vec<String> {
    let text = std::fs::read_to_string(file("config/grafana/tidegate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array());
    let queries = targets.flatten().map(|target| {
        let expression = target["expr"].as_str().expect("a query");
        let expression = expression.replace("$__rate_interval", "30s");
        let expression = expression.replace("$__range", "1h");
        assert!(!expression.contains('$'), "{expression}");
        expression
    });
    queries.collect()
}

#[tokio::test]
async fn metrics_have_the_text_format_of_prometheus_on_request() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    for (accept, expected) in [
        ("text/plain", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ] {
        let request = gateway.admin().get("/metrics").header("Accept", accept);
        let response = request.send().await;
        assert_eq!(response.header("content-type"), expected);
        let is_openmetrics = response.text().ends_with("# EOF\n");
        assert_eq!(is_openmetrics, expected.contains("openmetrics"));
    }
}

#[tokio::test]
async fn the_process_metrics_have_no_prefix_and_match_the_process() {
    let gateway = Process::start(&["demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let line = gateway.wait_for_line("/metrics");
    let admin = Client::of(super::commands::address(&line));
    let text = admin.get("/metrics").send().await.text();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in\n{text}"))
            .trim()
            .parse()
            .unwrap()
    };
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - value("process_start_time_seconds ");
    assert!((-1.0..60.0).contains(&age), "{age}");
    assert!(value("process_cpu_seconds_total ") > 0.0);
    let (resident, virtual_memory) = (
        value("process_resident_memory_bytes "),
        value("process_virtual_memory_bytes "),
    );
    assert!(1e6 < resident && resident < virtual_memory);
    assert!(value("process_open_fds ") > 3.0);
    assert!(value("process_open_fds ") < value("process_max_fds "));
    assert!(text.contains("tidegate_build_info{version=\""));
}

#[tokio::test]
async fn bytes_and_connections_of_clients_are_counted() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    let request = "GET /o HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    let mut response = 0;
    for _ in 0..3 {
        response += gateway.client().send_raw(request).await.len();
    }
    let request = u32::try_from(3 * request.len()).unwrap();
    gateway
        .wait_for_metric("received_bytes_total", request)
        .await;
    let response = u32::try_from(response).unwrap();
    gateway.wait_for_metric("sent_bytes_total", response).await;
    gateway
        .wait_for_metric("connections_accepted_total", 3)
        .await;
    gateway.wait_for_metric("connections_max", 65_536).await;
}

#[tokio::test]
async fn failed_tls_handshakes_are_counted_by_reason() {
    let (upstream, certificates) = (Upstream::echo(), Certificates::for_localhost());
    let cert = certificates.cert_file();
    let gateway = Gateway::proxying(&format!(
        "[server]\ntls = {{ cert = \"{}\", key = \"{}\" }}\nhandshake_timeout = \"1s\"",
        cert.display(),
        certificates.key_file().display()
    ))
    .upstream(&upstream)
    .admin()
    .start();
    let series = |reason| format!("tls_handshake_failures_total{{reason=\"{reason}\"}}");
    gateway.client().send_raw("GET / HTTP/1.1\r\n\r\n").await;
    gateway.wait_for_metric(&series("protocol"), 1).await;
    drop(gateway.client().connect().await.unwrap());
    gateway.wait_for_metric(&series("closed"), 1).await;
    let stranger = gateway.tls_client(&Certificates::for_localhost(), &[]);
    stranger.get("/").try_send().await.unwrap_err();
    gateway.wait_for_metric(&series("alert"), 1).await;
    let _silent = gateway.client().connect().await.unwrap();
    gateway.wait_for_metric(&series("timeout"), 1).await;
    let expiry = format!(
        "certificate_expiry_timestamp_seconds{{certificate=\"{}\"}}",
        cert.display()
    );
    // The start of the year 4096.
    let expected = 67_090_118_400.0;
    assert!((gateway.metric(&expiry).await - expected).abs() < f64::EPSILON);
}

#[tokio::test]
async fn the_metrics_name_the_configuration_in_force_and_a_rejected_reload() {
    let config = "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
                  [upstream.api]\nservers = [\"http://127.0.0.1:9\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n";
    let builder = Process::serving(config);
    let gateway = builder.start();
    let admin = gateway.admin();
    let hash = async || admin.get("/admin/v1/config").send().await.json()["hash"].take();
    let state = async || {
        let info = format!("config_info{{hash={}}}", hash().await);
        (
            gateway.metric(&info).await,
            gateway.metric("config_last_reload_successful").await,
        )
    };
    let first = hash().await;
    for (text, successful, changed) in [
        (config.to_owned(), 1, false),
        ("[nonsense]".to_owned(), 0, false),
        (format!("{config}# changed"), 1, true),
    ] {
        builder.write_config(&text);
        admin.post("/admin/v1/reload").send().await;
        assert_eq!(state().await, (1, successful), "{text}");
        assert_eq!(hash().await != first, changed, "{text}");
    }
    let loaded = gateway.metric("config_loaded_timestamp_seconds").await;
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(loaded.abs_diff(now.as_secs()) < 60);
}
