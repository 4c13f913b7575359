//! Services that the engine answers itself: an allow-list grants them by name (`service:NAME`), and the proxy answers plain HTTP requests
//! for `http://NAME.espalier.internal/`. No port of this machine leads to them, and nothing of them is looked up by name servers.

use super::{Allowed, Refused, Target};
pub use espalier_core::service::SERVICE_DOMAIN;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName};
use hyper::{Request, Response, StatusCode};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Their only port.
const PORT: u16 = 80;
/// Longest body of a request.
const BODY_BYTES_MAX: usize = 16 << 20;
/// For the body of a request, and for its answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Requests of one sandbox that are answered at once; more wait.
const REQUESTS_MAX: usize = 16;
/// Headers between a service and the proxy that are the proxy's to say.
const OWN: [HeaderName; 5] =
    [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::UPGRADE, header::TRAILER];

/// What a service answers a request with; dropped where it takes longer than 30 s.
pub type ServiceAnswer = Pin<Box<dyn Future<Output = Response<Bytes>> + Send>>;
/// Answers requests. Their address is path and query, `Host` is the name under which the service was asked, [`Caller`] is among the
/// extensions; all else, headers and a body of up to 16 MiB, is what a program in a sandbox chose.
pub type Service = Arc<dyn Fn(Request<Bytes>) -> ServiceAnswer + Send + Sync>;

/// The sandbox that a request came from: an extension of the request, which nothing inside can forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Id of the sandbox.
    pub sandbox: String,
}

/// Finds a service by its name.
type Find = dyn Fn(&str) -> Option<Service> + Send + Sync;

/// The services of an engine, found by name. Clones share them; by default there are none.
#[derive(Clone)]
pub struct Services(Arc<Find>);

impl Services {
    /// `find` is asked with each request, for names that were granted alone; it must not block.
    pub fn new(find: impl Fn(&str) -> Option<Service> + Send + Sync + 'static) -> Services {
        Services(Arc::new(find))
    }

    fn find(&self, name: &str) -> Option<Service> {
        (self.0)(name)
    }
}

impl Default for Services {
    fn default() -> Services {
        Services::new(|_| None)
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Services(..)")
    }
}

/// The services that one sandbox may be granted.
pub(super) struct Granted {
    pub(super) services: Services,
    pub(super) sandbox: String,
    room: Semaphore,
}

impl Granted {
    pub(super) fn new(services: Services, sandbox: String) -> Granted {
        Granted { services, sandbox, room: Semaphore::new(REQUESTS_MAX) }
    }

    /// The service that a target means; `None`: it means an address. What is below the domain never does.
    pub(super) fn find(&self, target: &Target, allowed: &Allowed) -> Option<Result<Service, Refused>> {
        let name = name_of(&target.host)?;
        let (host, port) = (&target.host, target.port);
        let refused = |forbidden, why| Some(Err(Refused { forbidden, why }));
        if port != PORT || !allowed.grants(&name) {
            return refused(true, format!("{host}:{port} is not in the sandbox's allow-list"));
        }
        if target.tunnel {
            return refused(true, format!("{host}:{port} takes plain HTTP requests, and no tunnel"));
        }
        match self.services.find(&name) {
            Some(service) => Some(Ok(service)),
            None => refused(false, format!("this engine has no service `{name}`")),
        }
    }

    /// The service's answer to a request whose headers and address are as it may see them.
    pub(super) async fn answer(
        &self,
        service: Service,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, (StatusCode, String)> {
        let answering = async {
            let Ok(_place) = self.room.acquire().await else { return Err(too_late()) };
            let (mut head, body) = request.into_parts();
            let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    (StatusCode::PAYLOAD_TOO_LARGE, format!("a body of more than {BODY_BYTES_MAX} bytes"))
                } else {
                    (StatusCode::BAD_REQUEST, format!("the body: {error}"))
                }
            })?;
            head.extensions.insert(Caller { sandbox: self.sandbox.clone() });
            Ok(service(Request::from_parts(head, body.to_bytes())).await)
        };
        let mut answer = timeout(ANSWER_MAX, answering).await.map_err(|_| too_late())??;
        for own in OWN {
            answer.headers_mut().remove(own);
        }
        Ok(answer.map(Full::new))
    }
}

fn too_late() -> (StatusCode, String) {
    (StatusCode::GATEWAY_TIMEOUT, format!("no answer of the service in {} s", ANSWER_MAX.as_secs()))
}

/// The name of a service, of a host below the domain; empty for the domain itself.
pub(super) fn name_of(host: &str) -> Option<String> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let name = host.strip_suffix(SERVICE_DOMAIN)?;
    match name.strip_suffix('.') {
        Some(name) => Some(name.to_owned()),
        None => name.is_empty().then(String::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_below_the_domain_are_services() {
        for (host, expect) in [
            ("mail.espalier.internal", Some("mail")),
            ("MAIL.Espalier.Internal.", Some("mail")),
            ("a.mail.espalier.internal", Some("a.mail")),
            ("espalier.internal", Some("")),
            ("xespalier.internal", None),
            ("mail.espalier.internal.org", None),
            ("127.0.0.1", None),
        ] {
            assert_eq!(name_of(host).as_deref(), expect, "{host}");
        }
    }

    #[test]
    fn what_was_granted_is_found_and_nothing_else() {
        let services = Services::new(|name| {
            (name == "mail").then(|| -> Service { Arc::new(|_| Box::pin(async { Response::default() })) })
        });
        let granted = Granted::new(services, "s1".to_owned());
        let rules = ["service:mail", "service:gone", "*.espalier.internal:80", "shop.espalier.internal:80"];
        let allowed = Allowed::parse(&rules.map(str::to_owned)).unwrap();
        let found = |host: &str, port, tunnel| {
            let target = Target { host: host.to_owned(), port, tunnel };
            granted.find(&target, &allowed).map(|found| found.map(drop).map_err(|refused| refused.why))
        };
        let refused = |why: &str| Some(Err(why.to_owned()));
        assert_eq!(found("mail.espalier.internal", 80, false), Some(Ok(())));
        assert_eq!(found("example.org", 80, false), None);
        let no_tunnel = "mail.espalier.internal:80 takes plain HTTP requests, and no tunnel";
        assert_eq!(found("mail.espalier.internal", 80, true), refused(no_tunnel));
        assert_eq!(found("gone.espalier.internal", 80, false), refused("this engine has no service `gone`"));
        for (host, port) in
            [("mail.espalier.internal", 443), ("shop.espalier.internal", 80), ("espalier.internal", 80)]
        {
            let expect = format!("{host}:{port} is not in the sandbox's allow-list");
            assert_eq!(found(host, port, false), refused(&expect));
        }
    }
}
