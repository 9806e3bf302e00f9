//! A host and a port.

use std::fmt;

/// The address that means this host.
pub(super) const LOOPBACK: &str = "127.0.0.1";

/// Where something listens: a name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Name, IPv4 or IPv6 address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Endpoint {
    /// A port of this host's loopback address.
    pub fn loopback(port: u16) -> Self {
        Self { host: LOOPBACK.to_owned(), port }
    }

    /// Whether only this host can reach it.
    pub(crate) fn is_loopback(&self) -> bool {
        match self.host.parse::<std::net::IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => self.host.eq_ignore_ascii_case("localhost"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Splits `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address; `None` if it is none of them.
pub(super) fn split(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else if text.parse::<std::net::Ipv6Addr>().is_ok() {
        (text, None)
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let port = match port {
        Some(text) => Some(parse_port(text)?),
        None => None,
    };
    is_host(host).then(|| (host.to_owned(), port))
}

/// A decimal port other than 0.
pub(super) fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

/// Whether a text can be a host name or an address: what a resolver may be asked without surprises.
pub(super) fn is_host(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
    v6 || (!text.is_empty() && text.len() <= 253 && !text.starts_with('-') && text.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let host = |text: &str| split(text);
        assert_eq!(host("n1"), Some(("n1".into(), None)));
        assert_eq!(host("n1:80"), Some(("n1".into(), Some(80))));
        assert_eq!(host("job-0.svc.ns:65535"), Some(("job-0.svc.ns".into(), Some(65535))));
        assert_eq!(host("::1"), Some(("::1".into(), None)));
        assert_eq!(host("[::1]:9"), Some(("::1".into(), Some(9))));
        for wrong in [
            "", ":1", "n1:", "n1:0", "n1:65536", "n1:+5", "n1:8:9", "[::1", "[n1]:4", "[::1]x", "a b", "-x",
            "n/1",
        ] {
            assert_eq!(host(wrong), None, "{wrong}");
        }
        assert_eq!(Endpoint { host: "::1".into(), port: 9 }.to_string(), "[::1]:9");
    }
}
