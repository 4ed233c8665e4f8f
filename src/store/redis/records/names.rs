//! What records are called in Redis.
//!
//! All names of a scope have it in braces, which puts them into one slot of a cluster: a claim looks at
//! a record and counts its scope's keys in one step. The keys of a client are counted in the slot of the client.

use crate::idempotency::{ClientHash, KeyHash, RecordId, ScopeHash};

/// Names the things of one fleet.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Names<'a> {
    pub(in super::super) prefix: &'a str,
}

impl Names<'_> {
    /// A record.
    pub(super) fn record(&self, id: RecordId) -> String {
        format!("{}:{{{}}}:r:{}", self.prefix, id.scope, id.key)
    }

    /// The keys of a scope.
    pub(super) fn scope(&self, scope: ScopeHash) -> String {
        format!("{}:{{{scope}}}:keys", self.prefix)
    }

    /// Returns the name of the set of a client's keys, which has a slot of its own.
    pub(super) fn client(&self, client: ClientHash) -> String {
        format!("{}:{{{:016x}}}:client", self.prefix, client.0)
    }

    /// What calls off the claim with this token.
    pub(super) fn called_off(&self, scope: ScopeHash, owner: OwnerToken) -> String {
        format!(
            "{}:{{{scope}}}:x:{:016x}{:016x}",
            self.prefix, owner.gateway, owner.number
        )
    }

    /// Returns the channel that announces the end of executions for which other gateways wait.
    pub(in super::super) fn channel(&self) -> String {
        format!("{}:ended", self.prefix)
    }

    /// What the names of all records match, or of those of one key.
    pub(super) fn pattern(&self, key: Option<KeyHash>) -> String {
        match key {
            Some(key) => format!("{}:{{*}}:r:{key}", self.prefix),
            None => format!("{}:{{*}}:r:*", self.prefix),
        }
    }

    /// The record that is called this, if it is one.
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

/// Tells a claim from every other claim, of any gateway and at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnerToken {
    /// Who claims: a number that nobody else has drawn.
    pub(super) gateway: u64,
    /// Which of its claims.
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

    const NAMES: Names<'_> = Names { prefix: "t:g" };

    #[test]
    fn a_name_can_be_read_back_and_nothing_else_passes_for_one() {
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
    fn all_names_of_a_scope_lie_in_one_slot() {
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
            NAMES.called_off(scope, owner),
        ];
        assert!(names.iter().all(|name| tag(name) == scope.to_string()));
    }

    #[test]
    fn a_token_comes_back_as_it_was_written() {
        let owner = OwnerToken {
            gateway: u64::MAX - 1,
            number: 3,
        };
        assert_eq!(OwnerToken::from_bytes(&owner.to_bytes()), Some(owner));
        assert_eq!(OwnerToken::from_bytes(b"short"), None);
    }
}
