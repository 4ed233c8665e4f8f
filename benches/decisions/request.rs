//! Cost of parsing a request head, identifying the client, and normalising the path.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::Criterion;
use http::{HeaderMap, HeaderValue};
use tidegate::internals::{HeadLimits, parse_head, read_path};
use tidegate::request::client::Trust;

const SHORT_HEAD: &[u8] = b"GET /api/v2/devices HTTP/1.1\r\nHost: api.example\r\n\r\n";

const BROWSER_HEAD: &[u8] = b"GET /api/v2/devices?page=2&sort=name HTTP/1.1\r\n\
    Host: api.example\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n\
    Accept: application/json, text/plain;q=0.9, */*;q=0.8\r\n\
    Accept-Language: en-GB,en;q=0.7,de;q=0.3\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Referer: https://app.example/devices\r\n\
    Origin: https://app.example\r\n\
    Authorization: Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2ln\r\n\
    X-Forwarded-For: 198.51.100.7, 10.1.2.3\r\n\
    Cookie: session=5f2d7c1e9b3a4e60; theme=dark; consent=1\r\n\
    Connection: keep-alive\r\n\r\n";

pub(crate) fn bench(criterion: &mut Criterion) {
    head(criterion);
    identify(criterion);
    path(criterion);
}

fn head(criterion: &mut Criterion) {
    let limits = HeadLimits {
        bytes: 32 * 1024,
        lines: 100,
    };
    let mut lines = Vec::new();
    let mut group = criterion.benchmark_group("head");
    for (name, bytes) in [("short", SHORT_HEAD), ("browser", BROWSER_HEAD)] {
        assert!(
            matches!(parse_head(bytes, limits, &mut lines), Ok(Some(head)) if head.len == bytes.len()),
            "{name} is a complete head"
        );
        group.bench_function(name, |bencher| {
            bencher.iter(|| parse_head(black_box(bytes), limits, &mut lines));
        });
    }
    group.finish();
}

fn identify(criterion: &mut Criterion) {
    let networks = ["127.0.0.0/8", "10.0.0.0/8", "192.168.0.0/16"];
    let trusted = networks.map(|network| network.parse().expect("a network"));
    let trust = Trust::new(trusted.into(), Vec::new(), 64);
    let mut headers = HeaderMap::new();
    headers.insert(
        "x-forwarded-for",
        HeaderValue::from_static("198.51.100.7, 10.1.2.3, 192.168.4.5"),
    );

    let mut group = criterion.benchmark_group("identify");
    let peers = [
        ("untrusted peer", Ipv4Addr::new(203, 0, 113, 9)),
        ("trusted peer, 3 hops", Ipv4Addr::LOCALHOST),
    ];
    for (name, peer) in peers {
        let peer = IpAddr::V4(peer);
        group.bench_function(name, |bencher| {
            bencher.iter(|| trust.identify(black_box(peer), black_box(&headers)));
        });
    }
    group.finish();
}

fn path(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read_path");
    let paths = [
        ("plain", "/api/v1/tokens/usermetadata"),
        ("escaped", "/api/v1/%74okens/user%40metadata"),
        ("ambiguous", "/api//v1/%74okens/x/../user%40metadata"),
    ];
    for (name, path) in paths {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let path = read_path(black_box(path), None);
                path.map(|path| path.lenient())
            });
        });
    }
    group.finish();
}
