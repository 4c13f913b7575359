//! Clients of one registry, and what they show to it.
//!
//! Where strangers named the image, all connections go through guards that check each address when it is connected to. Where
//! credentials are shown, they are shown through a guard that lets nothing else through than the registry they are for; the token
//! that they are changed for is all that the other clients know.

use crate::ImageError;
use crate::registry::{Waits, chain};
use espalier_egress::{Allowed, Guard, GuardRules, Hosts, Shared};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a token is shown before the next is asked for: none is good for less than a minute.
const TOKEN_AGE_MAX: Duration = Duration::from_secs(50);
/// Bytes of one connection that brings tokens and manifests.
const SMALL_BYTES_MAX: u64 = 8 << 20;
/// Services of tokens on another host than their registry's, or one above it.
const REALMS: [(&str, &str); 3] = [
    ("index.docker.io", "auth.docker.io"),
    ("registry-1.docker.io", "auth.docker.io"),
    ("registry.digitalocean.com", "api.digitalocean.com"),
];

/// Clients that have logged in.
#[derive(Clone)]
pub(super) struct Session {
    /// For manifests.
    pub(super) small: Client,
    /// For blobs.
    pub(super) large: Client,
    pub(super) auth: RegistryAuth,
}

/// What sessions are made of.
pub(super) struct Sessions {
    image: Reference,
    auth: RegistryAuth,
    plain: bool,
    waits: Waits,
    guards: Option<Guards>,
    /// The present one, and until when it is good.
    now: tokio::sync::Mutex<Option<(Session, Option<Instant>)>>,
}

struct Guards {
    login: Guard,
    small: Guard,
    large: Guard,
}

impl Sessions {
    pub(super) async fn new(
        image: &Reference,
        auth: RegistryAuth,
        plain: bool,
        waits: Waits,
        strangers: Option<&Allowed>,
        all: &Shared,
    ) -> Result<Sessions, ImageError> {
        let place = image.resolve_registry().to_owned();
        let secret = auth != RegistryAuth::Anonymous;
        let guards = if strangers.is_some() || secret && !has_proxy() {
            let failed = |error| ImageError::Unreachable {
                place: place.clone(),
                what: "connection".to_owned(),
                attempts: 1,
                said: format!("listening on 127.0.0.1: {error}"),
            };
            let rules = GuardRules {
                addresses: strangers.cloned().unwrap_or_else(Allowed::any),
                hosts: None,
                answer_bytes_max: SMALL_BYTES_MAX,
            };
            let hosts = secret.then(|| meant_for(&place, plain));
            let rules = GuardRules { hosts, ..rules };
            let login = Guard::start(rules.clone(), all).await.map_err(failed)?;
            let small = Guard::start(rules.clone(), all).await.map_err(failed)?;
            let large = Guard::start(GuardRules { answer_bytes_max: u64::MAX, ..rules }, all)
                .await
                .map_err(failed)?;
            Some(Guards { login, small, large })
        } else {
            None
        };
        Ok(Sessions { image: image.clone(), auth, plain, waits, guards, now: tokio::sync::Mutex::default() })
    }

    /// Clients that may be asked now. Holds up others that want one until it has logged in.
    pub(super) async fn get(&self) -> Result<Session, OciDistributionError> {
        let mut now = self.now.lock().await;
        if let Some((session, until)) = &*now
            && until.is_none_or(|until| Instant::now() < until)
        {
            return Ok(session.clone());
        }
        let (session, until) = match &self.guards {
            Some(guards) => self.log_in(guards).await?,
            None => {
                let client = self.client(None)?;
                (Session { small: client.clone(), large: client, auth: self.auth.clone() }, None)
            }
        };
        let place = self.image.resolve_registry();
        for client in [&session.small, &session.large] {
            client.store_auth_if_needed(place, &session.auth).await;
        }
        *now = Some((session.clone(), until));
        Ok(session)
    }

    async fn log_in(&self, guards: &Guards) -> Result<(Session, Option<Instant>), OciDistributionError> {
        let login = self.client(Some(&guards.login))?;
        let token = login.auth(&self.image, &self.auth, RegistryOperation::Pull).await?;
        let (small, large) = (self.client(Some(&guards.small))?, self.client(Some(&guards.large))?);
        let Some(token) = token else {
            if matches!(self.auth, RegistryAuth::Basic(..)) {
                // Shown to the registry itself with each request, and to nobody who is asked for a token later.
                for client in [&small, &large] {
                    client.auth(&self.image, &self.auth, RegistryOperation::Pull).await?;
                }
            }
            self.open(guards);
            return Ok((Session { small, large, auth: self.auth.clone() }, None));
        };
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(OciDistributionError::AuthenticationFailure("its token is not text".to_owned()));
        }
        self.open(guards);
        let until = Instant::now() + TOKEN_AGE_MAX;
        Ok((Session { small, large, auth: RegistryAuth::Bearer(token) }, Some(until)))
    }

    /// What follows shows no credentials but to the registry: blobs may be elsewhere.
    fn open(&self, guards: &Guards) {
        guards.small.set_hosts(None);
        guards.large.set_hosts(None);
    }

    /// Why a connection was refused since this was asked last: whether for good, and in words.
    pub(super) fn take_refusal(&self) -> Option<(bool, String)> {
        let guards = self.guards.as_ref()?;
        let refused = [&guards.login, &guards.small, &guards.large].map(Guard::take_refusal);
        let found = refused.into_iter().flatten().max_by_key(|refused| refused.forbidden);
        found.map(|refused| (refused.forbidden, refused.why))
    }

    fn client(&self, guard: Option<&Guard>) -> Result<Client, OciDistributionError> {
        let proxy = guard.map(|guard| guard.url().to_owned());
        let config = ClientConfig {
            protocol: if self.plain { ClientProtocol::Http } else { ClientProtocol::Https },
            connect_timeout: Some(self.waits.connect),
            read_timeout: Some(self.waits.idle),
            user_agent: concat!("espalier/", env!("CARGO_PKG_VERSION")),
            http_proxy: proxy.clone(),
            https_proxy: proxy,
            ..ClientConfig::default()
        };
        Client::try_from(config)
    }

    /// A client that cannot be made is not the fault of the registry.
    pub(super) fn check(&self) -> Result<(), ImageError> {
        self.client(None).map(drop).map_err(|error| ImageError::Credentials {
            registry: self.image.resolve_registry().to_owned(),
            place: "client".to_owned(),
            why: chain(&error),
        })
    }
}

/// Whether this process has a proxy of its own, which then makes the connections.
fn has_proxy() -> bool {
    let names = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    names.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Hosts that credentials of a registry may be shown to.
fn meant_for(registry: &str, plain: bool) -> Arc<Hosts> {
    let registry = registry.to_owned();
    Arc::new(move |host, port, tls| {
        if is_meant(&registry, plain, host, port, tls) {
            return Ok(());
        }
        Err(format!("it leads to {host}:{port}; credentials for {registry} are not sent to another host"))
    })
}

/// The registry itself, by TLS also another port of it, a host above it (`registry.example.org` asks `example.org`), or one that is
/// known for it.
fn is_meant(registry: &str, plain: bool, host: &str, port: u16, tls: bool) -> bool {
    let bare = |host: &str| host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    let bracket = registry.rfind(']').unwrap_or(0);
    let (own, own_port) = match registry[bracket..].rfind(':') {
        Some(at) => (&registry[..bracket + at], registry[bracket + at + 1..].parse().ok()),
        None => (registry, Some(if plain { 80 } else { 443 })),
    };
    let (own, host) = (bare(own), bare(host));
    if plain {
        return host == own && Some(port) == own_port && !tls;
    }
    let above = host.contains('.')
        && own.parse::<std::net::IpAddr>().is_err()
        && own.strip_suffix(&*host).is_some_and(|rest| rest.ends_with('.'));
    tls && (host == own || above || REALMS.contains(&(&*own, &*host)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_for_their_registry() {
        for (registry, plain, host, port, tls, expect) in [
            ("r.org", false, "r.org", 443, true, true),
            ("r.org", false, "R.org.", 443, true, true),
            ("r.org:5050", false, "r.org", 443, true, true),
            ("r.org", false, "r.org", 80, false, false),
            ("registry.git.org", false, "git.org", 443, true, true),
            ("registry.git.org", false, "evil.git.org", 443, true, false),
            ("registry.git.org", false, "org", 443, true, false),
            ("r.org", false, "xr.org", 443, true, false),
            ("r.org", false, "a.r.org", 443, true, false),
            ("r.org", false, "other.org", 443, true, false),
            ("index.docker.io", false, "auth.docker.io", 443, true, true),
            ("r.org", false, "auth.docker.io", 443, true, false),
            ("10.0.0.1", false, "0.0.1", 443, true, false),
            ("127.0.0.1:5000", true, "127.0.0.1", 5000, false, true),
            ("127.0.0.1:5000", true, "127.0.0.1", 5001, false, false),
            ("127.0.0.1:5000", true, "localhost", 5000, false, false),
            ("[::1]:5000", true, "[::1]", 5000, false, true),
            ("localhost", true, "localhost", 80, false, true),
        ] {
            assert_eq!(is_meant(registry, plain, host, port, tls), expect, "{registry} {host}:{port} {tls}");
        }
    }
}
