//! Worst-case memory of what clients can fill, compared with the memory limit of the process at the start. It does not
//! cover connections, whose buffers depend on the traffic.

use std::fs;
use std::path::Path;

use crate::config::{Backend, Policy};
use crate::store::disk::{BYTES_PER_KEY as DISK_BYTES_PER_KEY, FIXED_BYTES as DISK_FIXED_BYTES};
use crate::store::memory::{BYTES_PER_BUCKET, records::BYTES_PER_KEY};

const MIB: u64 = 1 << 20;

/// Bytes if all bounds are reached.
#[derive(Debug, PartialEq, Eq)]
struct WorstCase {
    keys: u64,
    bodies: u64,
    buckets: u64,
}

pub(super) fn log_worst_case(policy: &Policy) {
    let worst = WorstCase::of(policy);
    let total = worst.total() / MIB;
    let [keys, bodies, buckets] = [worst.keys, worst.bodies, worst.buckets].map(|part| part / MIB);
    match limit(Path::new("/")) {
        Some(limit) if limit < worst.total() => tracing::warn!(
            total_mib = total,
            keys_mib = keys,
            bodies_mib = bodies,
            buckets_mib = buckets,
            limit_mib = limit / MIB,
            "worst-case memory exceeds the memory limit of this process, which can be killed: lower `store.max_keys`, \
             `store.max_bytes`, `store.max_clients` or `server.max_buffered`, or raise the limit"
        ),
        _ => tracing::info!(
            total_mib = total,
            keys_mib = keys,
            bodies_mib = bodies,
            buckets_mib = buckets,
            "worst-case memory of this configuration, without connections"
        ),
    }
}

impl WorstCase {
    fn of(policy: &Policy) -> Self {
        let store = &policy.store;
        let has_keys = policy
            .routes
            .iter()
            .any(|route| route.idempotency.is_some());
        let max_keys = store.capacity.max_keys as u64;
        let (keys, stored) = match store.backend {
            Backend::Memory if has_keys => (
                max_keys.saturating_mul(BYTES_PER_KEY),
                store.capacity.max_bytes,
            ),
            Backend::Disk { .. } => (
                max_keys
                    .saturating_mul(DISK_BYTES_PER_KEY)
                    .saturating_add(DISK_FIXED_BYTES),
                0,
            ),
            _ => (0, 0),
        };
        let buckets = if policy.limits.is_empty() {
            0
        } else {
            (policy.max_clients as u64).saturating_mul(BYTES_PER_BUCKET)
        };
        Self {
            keys,
            bodies: stored.saturating_add(policy.server.buffers.total as u64),
            buckets,
        }
    }

    fn total(&self) -> u64 {
        self.keys
            .saturating_add(self.bodies)
            .saturating_add(self.buckets)
    }
}

/// Returns the smallest limit in bytes: of the cgroup (version 1 or 2), of its ancestors, and of the machine.
fn limit(root: &Path) -> Option<u64> {
    let read = |path: &str| fs::read_to_string(root.join(path.trim_start_matches('/'))).ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let total = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kibibytes: u64 = total.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes * 1024)
    });
    let mut limits = Vec::from_iter(machine);
    for line in read("/proc/self/cgroup").unwrap_or_default().lines() {
        // The format is `ID:CONTROLLERS:PATH`, see cgroups(7). Version 2 has no controllers.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        // The text "max" of version 2 is not a number. Version 1 has a number larger than any machine instead.
        let limit = |group: &Path| {
            let group = group.to_string_lossy();
            let group = group.trim_end_matches('/');
            read(&format!("{mount}{group}/{file}"))?
                .trim()
                .parse::<u64>()
                .ok()
        };
        limits.extend(Path::new(path).ancestors().filter_map(limit));
    }
    limits.into_iter().min()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::config::{Environment, Overrides, parse};

    fn worst_case(text: &str) -> WorstCase {
        let text = format!(
            "{text}\n[upstream.api]\nservers = [\"http://127.0.0.1:9000\"]\n\
             [limit.l]\nrate = \"1/s\"\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"l\"]\nidempotency = {{}}\n"
        );
        let (environment, overrides) = (Environment::default(), Overrides::default());
        WorstCase::of(
            &parse("test.toml", &text, &environment, &overrides)
                .unwrap()
                .policy,
        )
    }

    #[test]
    fn the_worst_case_adds_up_the_bounds_of_the_configuration() {
        let bounds = "max_keys = 1000\nmax_clients = 10";
        let server = "[server]\nmax_buffered = \"64MiB\"";
        let memory = worst_case(&format!(
            "{server}\n[store]\n{bounds}\nmax_bytes = \"1MiB\""
        ));
        let expected = WorstCase {
            keys: 1_000 * BYTES_PER_KEY,
            bodies: 65 * MIB,
            buckets: 10 * BYTES_PER_BUCKET,
        };
        assert_eq!(memory, expected);
        let disk = format!("{server}\n[store]\nbackend = \"disk\"\npath = \"data\"\n{bounds}");
        let expected = WorstCase {
            keys: 1_000 * DISK_BYTES_PER_KEY + DISK_FIXED_BYTES,
            bodies: 64 * MIB,
            ..expected
        };
        assert_eq!(worst_case(&disk), expected);
    }

    #[test]
    fn the_limit_is_the_smallest_of_cgroups_and_machine() {
        const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1 kB\n");
        for (files, expected) in [
            (&[][..], None),
            (&[MEMINFO][..], Some(8 << 30)),
            (
                &[
                    MEMINFO,
                    ("proc/self/cgroup", "0::/a/b\n"),
                    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                    ("sys/fs/cgroup/a/memory.max", "536870912\n"),
                ],
                Some(512 << 20),
            ),
            (
                &[
                    MEMINFO,
                    ("proc/self/cgroup", "0::/\n"),
                    ("sys/fs/cgroup/memory.max", "1048576\n"),
                ],
                Some(1 << 20),
            ),
            (
                &[
                    MEMINFO,
                    ("proc/self/cgroup", "9:cpu:/x\n4:pids,memory:/docker/1\n"),
                    (
                        "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes",
                        "2097152\n",
                    ),
                    (
                        "sys/fs/cgroup/memory/memory.limit_in_bytes",
                        "9223372036854771712\n",
                    ),
                ],
                Some(2 << 20),
            ),
        ] {
            let root = TempDir::new().unwrap();
            for (path, content) in files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            assert_eq!(limit(root.path()), expected, "{files:?}");
        }
    }
}
