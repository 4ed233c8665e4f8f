//! What a Redis says of itself, and whether it will do.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The oldest version whose scripts can do what ours do.
const OLDEST: (u32, u32) = (7, 0);

/// The format of records in Redis, see `lua/claim.lua`. Format 1 had fingerprints of 16 bytes.
pub(super) const FORMAT: &str = "2";

/// What one server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Portrait {
    /// Another one after every start.
    pub(super) run_id: Arc<str>,
    version: Arc<str>,
    eviction: Arc<str>,
    is_replica: bool,
    append_only: bool,
    /// Whether a change is on disk before it is acknowledged, if it is written down at all.
    pub(super) syncs_always: bool,
}

/// Why a server will not do. Every message ends with a way out.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unfit {
    /// Its scripts cannot do what ours do.
    #[error(
        "it is version {0}, and its scripts cannot do what is asked of them; use Redis 7.0, Valkey 7.2, or a \
         later one"
    )]
    TooOld(Arc<str>),
    /// It drops keys when it is full.
    #[error(
        "its `maxmemory-policy` is `{0}`, so it would forget idempotency keys when it is full, and their \
         requests be carried out again; run `CONFIG SET maxmemory-policy noeviction`, and write it in its \
         configuration"
    )]
    Evicts(Arc<str>),
    /// Another version of the gateway has written its records.
    #[error(
        "its records are in format {0}, and this version uses format {FORMAT}; run the version that \
         wrote them until its keys have expired, then set another `prefix` or database in [store], or delete all keys of \
         the prefix while no gateway runs. If you do so earlier, keys that were used before can execute again"
    )]
    Format(Arc<str>),
    /// It takes no writes.
    #[error("it is a replica and takes no writes; `store.url` must name the primary")]
    Replica,
}

impl Portrait {
    /// What is in the answer to INFO.
    pub(super) fn parse(info: &str) -> Self {
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap_or_default()
                .trim()
        };
        // Valkey names a version of Redis, too: one that it can pass for.
        Self {
            run_id: field("run_id").into(),
            version: field("redis_version").into(),
            eviction: field("maxmemory_policy").into(),
            is_replica: field("role") == "slave",
            append_only: field("aof_enabled") == "1",
            syncs_always: false,
        }
    }

    /// Why it will do for nothing at all.
    pub(super) fn unfit(&self) -> Result<(), Unfit> {
        if self.version() < OLDEST {
            return Err(Unfit::TooOld(Arc::clone(&self.version)));
        }
        if self.is_replica {
            return Err(Unfit::Replica);
        }
        Ok(())
    }

    /// Why it will not do for idempotency keys.
    pub(super) fn unfit_for_records(&self) -> Result<(), Unfit> {
        if self.evicts() {
            return Err(Unfit::Evicts(Arc::clone(&self.eviction)));
        }
        Ok(())
    }

    /// Whether it may drop keys when it is full.
    pub(super) fn evicts(&self) -> bool {
        &*self.eviction != "noeviction"
    }

    /// Whether what it has acknowledged survives its end.
    pub(super) fn is_durable(&self) -> bool {
        self.append_only && self.syncs_always
    }

    fn version(&self) -> (u32, u32) {
        let mut numbers = self
            .version
            .split('.')
            .map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

impl fmt::Display for Portrait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nrun_id:abc\r\n\r\n# Replication\r\nrole:master\r\n\
                        # Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";

    #[test]
    fn a_server_that_is_well_will_do_for_everything() {
        let portrait = Portrait::parse(INFO);
        assert_eq!(&*portrait.run_id, "abc");
        assert_eq!(portrait.unfit(), Ok(()));
        assert_eq!(portrait.unfit_for_records(), Ok(()));
        assert!(!portrait.is_durable(), "it has not said how soon it syncs");
        let syncs_always = true;
        let synced = Portrait {
            syncs_always,
            ..portrait.clone()
        };
        assert!(synced.is_durable());
        assert_eq!(portrait.to_string(), "version 7.2.4");
    }

    #[test]
    fn what_will_not_do_is_told_with_a_way_out() {
        let old = Portrait::parse(&INFO.replace("7.2.4", "6.2.14"));
        let unfit = old.unfit().unwrap_err().to_string();
        assert!(unfit.contains("6.2.14") && unfit.contains("use Redis 7.0"));

        let replica = Portrait::parse(&INFO.replace("role:master", "role:slave"));
        assert_eq!(replica.unfit(), Err(Unfit::Replica));

        let evicting = Portrait::parse(&INFO.replace("noeviction", "allkeys-lru"));
        assert_eq!(evicting.unfit(), Ok(()));
        let unfit = evicting.unfit_for_records().unwrap_err().to_string();
        assert!(unfit.contains("allkeys-lru") && unfit.contains("noeviction"));
    }
}
