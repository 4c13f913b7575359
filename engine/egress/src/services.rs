//! Services that the engine answers itself: an allow-list grants them by name (`service:NAME`), and the proxy answers plain HTTP requests
//! for `http://NAME.espalier.internal/`. No port of this machine leads to them, and nothing of them is looked up by name servers.

use super::{Allowed, Refused, Target};
pub use espalier_core::service::SERVICE_DOMAIN;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use std::convert::Infallible;
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
/// For the body of a request.
const BODY_MAX: Duration = Duration::from_secs(30);
/// For an answer, where the service does not say another time.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Requests of one sandbox that are answered at once; more wait.
const REQUESTS_MAX: usize = 16;
/// Headers between a service and the proxy that are the proxy's to say.
const OWN: [HeaderName; 5] =
    [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::UPGRADE, header::TRAILER];

/// The body of an answer, whole or as it comes.
pub type ServiceBody = UnsyncBoxBody<Bytes, Infallible>;
/// What a service answers a request with; dropped where it takes longer than the service's time.
pub type ServiceAnswer = Pin<Box<dyn Future<Output = Response<ServiceBody>> + Send>>;
/// An answer that the proxy gives in the service's place: why, as a status and in words.
pub type Refusal = fn(StatusCode, &str) -> Response<ServiceBody>;

/// Answers requests. Their address is path and query, `Host` is the name under which the service was asked, [`Caller`] is among the
/// extensions; all else, headers and a body of up to 16 MiB, is what a program in a sandbox chose.
#[derive(Clone)]
pub struct Service {
    answer: Arc<dyn Fn(Request<Bytes>) -> ServiceAnswer + Send + Sync>,
    /// From a whole request to the head of its answer.
    within: Duration,
    /// Whether it is reached by the proxy's own address too.
    direct: bool,
    /// `None`: the proxy's own form.
    refusal: Option<Refusal>,
}

impl Service {
    /// Whether it is reached at the proxy's own address.
    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// A service whose answers are whole, and take 30 s at most.
    pub fn new<F>(answer: impl Fn(Request<Bytes>) -> F + Send + Sync + 'static) -> Service
    where
        F: Future<Output = Response<Bytes>> + Send + 'static,
    {
        Service::streaming(move |request| {
            let answer = answer(request);
            async move { answer.await.map(|body| Full::new(body).boxed_unsync()) }
        })
    }

    /// A service whose answers may come in pieces: the time holds for their heads alone.
    pub fn streaming<F>(answer: impl Fn(Request<Bytes>) -> F + Send + Sync + 'static) -> Service
    where
        F: Future<Output = Response<ServiceBody>> + Send + 'static,
    {
        let answer = Arc::new(move |request| Box::pin(answer(request)) as ServiceAnswer);
        Service { answer, within: ANSWER_MAX, direct: false, refusal: None }
    }

    /// The same, with this time for an answer.
    pub fn within(self, within: Duration) -> Service {
        Service { within, ..self }
    }

    /// The same, reached at the proxy's own address too: a plain request for `/NAME.espalier.internal/PATH` means `/PATH` of the service.
    /// For clients that know of no proxies; pages of a browser reach it as well, whatever their origin.
    pub fn direct(self) -> Service {
        Service { direct: true, ..self }
    }

    /// The same, with refusals of the proxy (a body that is too long or too late, no answer in time) in the service's own form.
    pub fn refusing(self, refusal: Refusal) -> Service {
        Service { refusal: Some(refusal), ..self }
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("within", &self.within).field("direct", &self.direct).finish()
    }
}

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
    ) -> Result<Response<ServiceBody>, (StatusCode, String)> {
        let answered = self.answer_or_refuse(&service, request).await;
        let mut answer = match (answered, service.refusal) {
            (Err((status, why)), Some(refusal)) => refusal(status, &why),
            (answered, _) => answered?,
        };
        for own in OWN {
            answer.headers_mut().remove(own);
        }
        if service.direct {
            // Its clients keep connections for longer than the proxy does, and would meet one that is just being closed.
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(answer)
    }

    async fn answer_or_refuse(
        &self,
        service: &Service,
        request: Request<Incoming>,
    ) -> Result<Response<ServiceBody>, (StatusCode, String)> {
        let within = service.within;
        let place = timeout(within, self.room.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(too_late(within)) };
        let reading = async {
            let (mut head, body) = request.into_parts();
            let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|error| {
                if error.is::<http_body_util::LengthLimitError>() {
                    (StatusCode::PAYLOAD_TOO_LARGE, format!("a body of more than {BODY_BYTES_MAX} bytes"))
                } else {
                    (StatusCode::BAD_REQUEST, format!("the body: {error}"))
                }
            })?;
            head.extensions.insert(Caller { sandbox: self.sandbox.clone() });
            Ok(Request::from_parts(head, body.to_bytes()))
        };
        let request = timeout(BODY_MAX, reading).await.map_err(|_| too_late(BODY_MAX))??;
        timeout(within, (service.answer)(request)).await.map_err(|_| too_late(within))
    }
}

fn too_late(within: Duration) -> (StatusCode, String) {
    (StatusCode::GATEWAY_TIMEOUT, format!("no answer of the service in {} s", within.as_secs()))
}

/// What a plain request to the proxy's own address means, `/NAME.espalier.internal/PATH`: the address of the service's path.
pub(super) fn direct_address(uri: &Uri) -> Option<Uri> {
    if uri.scheme().is_some() || uri.authority().is_some() {
        return None;
    }
    let target = uri.path_and_query()?.as_str().strip_prefix('/')?;
    let (host, path) = target.split_at(target.find(['/', '?']).unwrap_or(target.len()));
    name_of(host).filter(|name| !name.is_empty())?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    format!("http://{host}{slash}{path}").parse().ok()
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
    fn a_plain_request_to_the_proxy_may_mean_a_service() {
        for (uri, expect) in [
            ("/model.espalier.internal/v1/models?a=b", Some("http://model.espalier.internal/v1/models?a=b")),
            ("/model.espalier.internal", Some("http://model.espalier.internal/")),
            ("/model.espalier.internal?a=/b", Some("http://model.espalier.internal/?a=/b")),
            ("/espalier.internal/v1", None),
            ("/v1/models", None),
            ("/", None),
            ("//model.espalier.internal/v1", None),
            ("http://127.0.0.1:3128/model.espalier.internal/v1", None),
        ] {
            let meant = direct_address(&uri.parse().unwrap()).map(|uri| uri.to_string());
            assert_eq!(meant.as_deref(), expect, "{uri}");
        }
    }

    #[test]
    fn what_was_granted_is_found_and_nothing_else() {
        let services =
            Services::new(|name| (name == "mail").then(|| Service::new(|_| async { Response::default() })));
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
