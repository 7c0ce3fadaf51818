//! Who asks, as far as it matters before there are keys: whose prompts may be found in a cache by whom.
//!
//! Each caller has a salt of its own, and an engine finds a prompt in its cache only for the salt it was computed with. So
//! nobody learns from the time an answer takes, or from `cached_tokens`, what somebody else has asked. A caller is told by the
//! key it sends, without one by its address: on a router that serves its own machine only, all callers without a key are one.
//!
//! **Invariant:** a salt cannot be computed outside of the router that made it, and is another after its restart.

use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Makes salts, keyed with random numbers of this router.
#[derive(Debug, Clone, Default)]
pub struct CacheSalts {
    // SipHash, keyed by the system's source of random numbers.
    keys: RandomState,
}

impl CacheSalts {
    /// The same for the same caller as long as the router runs.
    pub fn of(&self, headers: &HeaderMap, peer: Option<Peer>) -> u64 {
        let key = headers.get(AUTHORIZATION).or_else(|| headers.get(API_KEY)).map(|value| value.as_bytes());
        // The port is another for each connection.
        let address = peer.filter(|_| key.is_none()).map(|peer| peer.0.ip());
        self.keys.hash_one((key, address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())])
    }

    fn peer(address: &str) -> Option<Peer> {
        Some(Peer(address.parse().unwrap()))
    }

    #[test]
    fn a_caller_is_known_again_by_its_key_or_its_address() {
        let salts = CacheSalts::default();
        let of = |headers: &HeaderMap, address| salts.of(headers, peer(address));
        let (none, key) = (HeaderMap::new(), headers("authorization", "Bearer one"));
        assert_eq!(of(&key, "10.0.0.1:1"), of(&key, "10.0.0.2:2"));
        assert_ne!(of(&key, "10.0.0.1:1"), of(&headers("authorization", "Bearer two"), "10.0.0.1:1"));
        assert_ne!(of(&key, "10.0.0.1:1"), of(&headers("x-api-key", "two"), "10.0.0.1:1"));
        assert_ne!(of(&key, "10.0.0.1:1"), of(&none, "10.0.0.1:1"));
        assert_eq!(of(&none, "10.0.0.1:1"), of(&none, "10.0.0.1:2"));
        assert_ne!(of(&none, "10.0.0.1:1"), of(&none, "10.0.0.2:1"));
    }

    #[test]
    fn another_router_makes_other_salts() {
        let none = HeaderMap::new();
        let of = || CacheSalts::default().of(&none, peer("10.0.0.1:1"));
        assert_ne!(of(), of());
    }
}
