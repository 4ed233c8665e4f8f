//! Names of the Redis keys of idempotency records.
//!
//! All Redis keys of a scope contain the scope in braces, so a cluster puts them into one slot, and one script can read
//! a record and count the keys of its scope. The keys of a client are counted in another slot.

use crate::idempotency::{ClientHash, KeyHash, RecordId, ScopeHash};

#[derive(Clone, Copy, Debug)]
pub(super) struct RecordNames<'a> {
    pub(super) prefix: &'a str,
}

impl RecordNames<'_> {
    pub(super) fn record(&self, id: RecordId) -> String {
        format!("{}:{{{}}}:r:{}", self.prefix, id.scope, id.key)
    }

    /// Sorted set of all idempotency keys of a scope.
    pub(super) fn scope(&self, scope: ScopeHash) -> String {
        format!("{}:{{{scope}}}:keys", self.prefix)
    }

    /// Sorted set of all idempotency keys of a client.
    pub(super) fn client(&self, client: ClientHash) -> String {
        format!("{}:{{{:016x}}}:client", self.prefix, client.0)
    }

    /// Marker that cancels the claim `owner`.
    pub(super) fn cancellation(&self, scope: ScopeHash, owner: OwnerToken) -> String {
        format!(
            "{}:{{{scope}}}:x:{:016x}{:016x}",
            self.prefix, owner.gateway, owner.number
        )
    }

    /// SCAN pattern of the records of a key in all scopes, or of all records.
    pub(super) fn pattern(&self, key: Option<KeyHash>) -> String {
        match key {
            Some(key) => format!("{}:{{*}}:r:{key}", self.prefix),
            None => format!("{}:{{*}}:r:*", self.prefix),
        }
    }

    /// Returns `None` if `name` is not the Redis key of a record.
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

/// Identifies a claim among the claims of all gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnerToken {
    pub(super) gateway: u64,
    pub(super) number: u64,
}

impl OwnerToken {
    pub(super) fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.gateway) << 64 | u128::from(self.number)).to_be_bytes()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (gateway, number) = bytes.split_first_chunk()?;
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
