//! Who is calling?

use ipnet::IpNet;

/// Whose word is taken on who is calling: `[client]` of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    trusted: Vec<IpNet>,
    exempt: Vec<IpNet>,
    ipv6_prefix: u8,
}

impl Trust {
    /// Believes `X-Forwarded-For` from `trusted` peers, never throttles `exempt` clients, and takes an
    /// IPv6 client for its network of `ipv6_prefix` bits.
    pub fn new(trusted: Vec<IpNet>, exempt: Vec<IpNet>, ipv6_prefix: u8) -> Self {
        Self {
            trusted,
            exempt,
            ipv6_prefix,
        }
    }
}
