//! Names of the Redis keys and channels for idempotency records.
//!
//! A scope separates the idempotency keys of different callers. All Redis keys of a scope contain the scope in braces,
//! so a cluster puts them into one slot. One script can therefore read a record and count the idempotency keys of its
//! scope. The idempotency keys of a client are counted in another slot, which depends on the client.

use crate::idempotency::{ClientHash, KeyHash, RecordId, ScopeHash};

/// Names of the Redis keys and channels of one fleet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct RecordNames<'a> {
    pub(in super::super) prefix: &'a str,
}

impl RecordNames<'_> {
    /// Returns the Redis key of an idempotency record.
    pub(super) fn record(&self, id: RecordId) -> String {
        format!("{}:{{{}}}:r:{}", self.prefix, id.scope, id.key)
    }

    /// Returns the Redis key of the sorted set of all idempotency keys of a scope.
    pub(super) fn scope(&self, scope: ScopeHash) -> String {
        format!("{}:{{{scope}}}:keys", self.prefix)
    }

    /// Returns the Redis key of the sorted set of all idempotency keys of a client. Its slot depends on the client
    /// only.
    pub(super) fn client(&self, client: ClientHash) -> String {
        format!("{}:{{{:016x}}}:client", self.prefix, client.0)
    }

    /// Returns the Redis key of the marker that cancels the claim with the token `owner`.
    pub(super) fn cancellation(&self, scope: ScopeHash, owner: OwnerToken) -> String {
        format!(
            "{}:{{{scope}}}:x:{:016x}{:016x}",
            self.prefix, owner.gateway, owner.number
        )
    }

    /// Returns the channel on which gateways announce that an execution has ended.
    pub(in super::super) fn channel(&self) -> String {
        format!("{}:ended", self.prefix)
    }

    /// Returns the SCAN pattern for the records of the idempotency key `key` in all scopes, or for all records if `key`
    /// is `None`.
    pub(super) fn pattern(&self, key: Option<KeyHash>) -> String {
        match key {
            Some(key) => format!("{}:{{*}}:r:{key}", self.prefix),
            None => format!("{}:{{*}}:r:*", self.prefix),
        }
    }

    /// Parses the Redis key of a record into the id of the record. Returns `None` if `name` is not the Redis key of a
    /// record.
    pub(super) fn parse(&self, name: &[u8]) -> Option<RecordId> {
        let name = std::str::from_utf8(name).ok()?;
        let rest = name.strip_prefix(self.prefix)?.strip_prefix(":{")?;
        let (scope, key) = rest.split_once("}:r:")?;
        let key: ScopeHash = key.parse().ok()?;
        Some(RecordId {
            key: KeyHash(key.0),
            scope: scope.parse().ok()?,
        })
    }
}

/// A token that identifies a claim among the claims of all gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnerToken {
    /// Random number of the gateway process.
    pub(super) gateway: u64,
    /// Number of the claim within the gateway process.
    pub(super) number: u64,
}

impl OwnerToken {
    pub(super) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.gateway.to_be_bytes());
        bytes[8..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (gateway, number) = bytes.split_first_chunk::<8>()?;
        Some(Self {
            gateway: u64::from_be_bytes(*gateway),
            number: u64::from_be_bytes(number.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: RecordNames<'_> = RecordNames { prefix: "t:g" };

    #[test]
    fn only_the_name_of_a_record_is_parsed_as_one() {
        let id = RecordId {
            key: KeyHash([0xab; 16]),
            scope: ScopeHash([0x01; 16]),
        };
        let name = NAMES.record(id);
        assert_eq!(NAMES.parse(name.as_bytes()), Some(id));
        for other in [
            NAMES.scope(id.scope),
            NAMES.client(ClientHash(7)),
            name.replace("t:g", "t"),
            name[..name.len() - 1].to_owned(),
            format!("{name}0"),
            String::new(),
        ] {
            assert_eq!(NAMES.parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn all_names_of_a_scope_are_in_one_slot() {
        let scope = ScopeHash([7; 16]);
        let id = RecordId {
            key: KeyHash([1; 16]),
            scope,
        };
        let owner = OwnerToken {
            gateway: 1,
            number: 2,
        };
        let tag = |name: &str| {
            let (_, rest) = name.split_once('{').unwrap();
            rest.split_once('}').unwrap().0.to_owned()
        };
        let names = [
            NAMES.record(id),
            NAMES.scope(scope),
            NAMES.cancellation(scope, owner),
        ];
        assert!(names.iter().all(|name| tag(name) == scope.to_string()));
    }

    #[test]
    fn a_token_survives_encoding_and_decoding() {
        let owner = OwnerToken {
            gateway: u64::MAX - 1,
            number: 3,
        };
        assert_eq!(OwnerToken::from_bytes(&owner.to_bytes()), Some(owner));
        assert_eq!(OwnerToken::from_bytes(b"short"), None);
    }
}
