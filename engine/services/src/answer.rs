//! Requests and what is answered: the HTTP contract of the applications, and the files behind it.
//!
//! A request of a page belongs to the rollout whose cookie it carries, and to no other; the `sid` in its URL has to be that of the same
//! rollout. Whoever asks with the engine's key asks by a call of this process, never over HTTP.

use crate::app::{App, AppSession, DEFINITION, INDEX, UPLOAD_BYTES_MAX};
use crate::folder::{Folder, media_type};
use crate::miniwob::{Miniwob, MiniwobSession, Page};
use crate::rollout::{Session, Sessions};
use crate::{RunServices, Served};
use bytes::Bytes;
use espalier_core::host::service::ServiceRequest;
use espalier_core::service::{SERVICE_DOMAIN, SESSION_COOKIE, STATE_BYTES_MAX};
use http::{HeaderMap, Method, Request, StatusCode, header};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Longest body with JSON, bytes.
const JSON_BYTES_MAX: usize = 2 * STATE_BYTES_MAX;

/// What is answered.
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
    /// For `Location`.
    location: Option<String>,
    /// Whether the body is what a page uploaded.
    is_upload: bool,
    /// Its own policy, where it is no page of an application.
    policy: Option<String>,
}

/// What a request was refused with: a word for programs, and a sentence.
struct Refused(StatusCode, &'static str, String);

/// A request, taken apart.
struct Asked<'a> {
    method: &'a Method,
    /// Decoded, without the first `/`.
    path: String,
    query: Vec<(String, String)>,
    body: Bytes,
}

/// Pages of applications run no script but their own files.
const APP_POLICY: &str = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'none'; \
    form-action 'self'; frame-ancestors 'self'";
/// Files of MiniWoB++ that are no pages of the task run none.
const MINIWOB_POLICY: &str = "script-src 'none'; object-src 'none'; base-uri 'none'";

/// Who asks.
enum Asker<'a> {
    /// A page, with the sessions that its cookie names.
    Page(Option<&'a Sessions>),
    /// Whoever scores the rollout.
    Engine(&'a Sessions),
}

impl RunServices {
    /// Answers a request of a page to the service with this name.
    pub fn answer(&self, name: &str, request: Request<Bytes>) -> http::Response<Bytes> {
        let (head, body) = request.into_parts();
        let own = token(&head.headers).and_then(|token| self.rollouts.lock().get(token).map(Arc::clone));
        let answered = match self.served(name) {
            None => {
                Err(Refused(StatusCode::NOT_FOUND, "no-service", format!("there is no service `{name}`")))
            }
            Some(served) => same_origin(name, &head.headers).and_then(|()| {
                let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
                let asked = Asked::new(&head.method, target, body)?;
                let own = own.as_deref();
                served.answer(&asked, &Asker::Page(own), own.and_then(|own| own.of(name)))
            }),
        };
        let policy = match self.served(name) {
            Some(Served::App(_)) => Some(APP_POLICY),
            Some(Served::Miniwob(_)) => Some(MINIWOB_POLICY),
            None => None,
        };
        answered.unwrap_or_else(Refused::response).into_http(policy)
    }
}

/// Answers a request with the engine's key.
pub(crate) fn with_key(
    served: &Served,
    sessions: &Sessions,
    session: &Mutex<Session>,
    request: ServiceRequest,
) -> Response {
    let method = if request.method == "POST" { Method::POST } else { Method::GET };
    let asked = Asked::new(&method, &request.path, Bytes::from(request.body));
    let answered = asked.and_then(|asked| served.answer(&asked, &Asker::Engine(sessions), Some(session)));
    answered.unwrap_or_else(Refused::response)
}

/// The value of the session's cookie.
fn token(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find_map(|(name, value)| (name == SESSION_COOKIE).then_some(value))
}

/// Refuses requests of pages of other origins: services share a domain, so cookies alone do not tell them apart.
fn same_origin(name: &str, headers: &HeaderMap) -> Result<(), Refused> {
    let own = format!("http://{name}.{SERVICE_DOMAIN}");
    match headers.get(header::ORIGIN) {
        Some(origin) if origin.as_bytes() != own.as_bytes() => {
            let origin = String::from_utf8_lossy(origin.as_bytes()).chars().take(200).collect::<String>();
            let message = format!("the origin {origin:?} is not {own}");
            Err(Refused(StatusCode::FORBIDDEN, "other-origin", message))
        }
        _ => Ok(()),
    }
}

impl<'a> Asked<'a> {
    fn new(method: &'a Method, target: &str, body: Bytes) -> Result<Asked<'a>, Refused> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let decode = |text: &str| {
            let decoded =
                percent_decode_str(text).decode_utf8().map_err(|_| bad("the URL is not UTF-8".to_owned()))?;
            Ok(decoded.into_owned())
        };
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(&name.replace('+', " "))?, decode(&value.replace('+', " "))?))
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(pair);
        Ok(Asked {
            method,
            path: decode(path.strip_prefix('/').unwrap_or(path))?,
            query: pairs.collect::<Result<_, Refused>>()?,
            body,
        })
    }

    fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn is(&self, method: &Method) -> Result<(), Refused> {
        if self.method == method {
            return Ok(());
        }
        let message = format!("/{} takes {method} alone", self.path);
        Err(Refused(StatusCode::METHOD_NOT_ALLOWED, "wrong-method", message))
    }

    fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Refused> {
        if self.body.len() > JSON_BYTES_MAX {
            let message = format!("a body of {} bytes, expected {JSON_BYTES_MAX} at most", self.body.len());
            return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message));
        }
        serde_json::from_slice(&self.body).map_err(|error| bad(format!("the body: {error}")))
    }
}

impl<'a> Asker<'a> {
    fn has_key(&self) -> bool {
        matches!(self, Asker::Engine(_))
    }

    /// Refuses a request for a session that is not the asker's own. A page has to name it; whoever has the key need not.
    fn check(&self, sid: Option<&str>) -> Result<&'a Sessions, Refused> {
        let not_own = || {
            let message = "the session is not that of this browser, or is over".to_owned();
            Refused(StatusCode::FORBIDDEN, "not-your-session", message)
        };
        match (self, sid) {
            (Asker::Page(_), None) => Err(bad("`sid` is missing in the URL".to_owned())),
            (Asker::Page(Some(own)), Some(sid)) | (Asker::Engine(own), Some(sid)) if own.sid != sid => {
                Err(not_own())
            }
            (Asker::Page(None), Some(_)) => Err(not_own()),
            (Asker::Page(Some(own)), Some(_)) | (Asker::Engine(own), _) => Ok(own),
        }
    }

    fn needs_key(&self, what: &str) -> Result<(), Refused> {
        if self.has_key() {
            return Ok(());
        }
        Err(Refused(
            StatusCode::FORBIDDEN,
            "needs-key",
            format!("{what} needs the engine's key, which no page has"),
        ))
    }
}

impl Served {
    fn answer(
        &self,
        asked: &Asked<'_>,
        asker: &Asker<'_>,
        session: Option<&Mutex<Session>>,
    ) -> Result<Response, Refused> {
        match self {
            Served::App(app) => app.answer(asked, asker, session),
            Served::Miniwob(miniwob) => miniwob.answer(asked, asker, session),
        }
    }
}

/// The body of `POST /post`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Post {
    action: Action,
    #[serde(default)]
    state: Option<Value>,
    #[serde(default)]
    merge: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Set,
    SetCurrent,
    Reset,
}

/// The body of `POST /operation`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Operate {
    name: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

impl App {
    fn answer(
        &self,
        asked: &Asked<'_>,
        asker: &Asker<'_>,
        session: Option<&Mutex<Session>>,
    ) -> Result<Response, Refused> {
        let sid = asked.query("sid");
        let own = |sid: Option<&str>| asker.check(sid).and_then(|_| session.ok_or_else(no_session));
        match asked.path.as_str() {
            "post" => {
                asked.is(&Method::POST)?;
                let post: Post = asked.json()?;
                with_app(own(sid)?, |session| self.post(session, asker, &post))
            }
            "operation" => {
                asked.is(&Method::POST)?;
                let Operate { name, arguments } = asked.json()?;
                with_app(own(sid)?, |session| {
                    self.operate(session, &name, &arguments).map_err(|why| refused("refused", why))
                })
            }
            "state" => {
                asked.is(&Method::GET)?;
                with_app(own(sid)?, |session| Ok(session.current.clone()))
            }
            "go" => {
                asked.is(&Method::GET)?;
                asker.needs_key("what has changed")?;
                with_app(own(sid)?, |session| Ok(session.go()))
            }
            "upload" => {
                asked.is(&Method::POST)?;
                let name =
                    asked.query("name").ok_or_else(|| bad("`name` is missing in the URL".to_owned()))?;
                if asked.body.len() > UPLOAD_BYTES_MAX {
                    let message = format!("{} bytes, expected {UPLOAD_BYTES_MAX} at most", asked.body.len());
                    return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message));
                }
                with_app(own(sid)?, |session| {
                    session.upload(name, asked.body.clone()).map_err(|why| refused("refused", why))
                })
            }
            path => {
                asked.is(&Method::GET)?;
                if let Some((sid, name)) = path.strip_prefix("files/").and_then(|rest| rest.split_once('/')) {
                    let mut session = own(Some(sid))?.lock();
                    let Session::App(session) = &mut *session else { return Err(no_session()) };
                    return session.file(name).map(Response::upload).ok_or_else(|| no_file(path));
                }
                file(&self.folder, if path.is_empty() { INDEX } else { path }, &[DEFINITION])
            }
        }
    }

    fn post(&self, session: &mut AppSession, asker: &Asker<'_>, post: &Post) -> Result<Value, Refused> {
        let state = || post.state.clone().ok_or_else(|| bad("`state` is missing".to_owned()));
        match post.action {
            Action::Set => {
                asker.needs_key("`set`")?;
                let set = session.set(state()?);
                set.map_err(|why| Refused(StatusCode::CONFLICT, "refused", why))?;
            }
            Action::Reset => {
                asker.needs_key("`reset`")?;
                session.reset();
            }
            Action::SetCurrent => {
                if self.has_operations() {
                    asker.needs_key("`set_current` of an application with operations")?;
                }
                session.set_current(state()?, post.merge).map_err(|why| refused("refused", why))?;
            }
        }
        Ok(json!({ "state": session.current }))
    }
}

fn with_app(
    session: &Mutex<Session>,
    work: impl FnOnce(&mut AppSession) -> Result<Value, Refused>,
) -> Result<Response, Refused> {
    match &mut *session.lock() {
        Session::App(session) => work(session).map(|value| Response::json(StatusCode::OK, &value)),
        Session::Miniwob(_) => Err(no_session()),
    }
}

impl Miniwob {
    fn answer(
        &self,
        asked: &Asked<'_>,
        asker: &Asker<'_>,
        session: Option<&Mutex<Session>>,
    ) -> Result<Response, Refused> {
        let with = |work: &dyn Fn(&mut MiniwobSession) -> Result<Value, Refused>| {
            asker.check(asked.query("sid"))?;
            match session.map(Mutex::lock).as_deref_mut() {
                Some(Session::Miniwob(session)) => {
                    work(session).map(|value| Response::json(StatusCode::OK, &value))
                }
                _ => Err(no_session()),
            }
        };
        match asked.path.as_str() {
            "report" => {
                asked.is(&Method::POST)?;
                with(&|session| {
                    session.report(&asked.body).map_err(|why| refused("refused", why))?;
                    Ok(json!({}))
                })
            }
            "state" => {
                asked.is(&Method::GET)?;
                with(&|session| Ok(session.state()))
            }
            path => {
                asked.is(&Method::GET)?;
                // Pages of tasks lead to others without the id: the cookie is enough to see them.
                let (Some(session), Asker::Page(Some(own))) = (session, asker) else {
                    return match path {
                        "" => Err(no_session()),
                        path => file(&self.folder, path, &[]),
                    };
                };
                let Session::Miniwob(session) = &*session.lock() else { return Err(no_session()) };
                let page = self.page(&session.task).ok_or_else(no_session)?;
                if path.is_empty() {
                    asker.check(asked.query("sid"))?;
                    return Ok(Response::redirect(format!("/{page}?sid={}", own.sid)));
                }
                if path == page {
                    // Other parameters make another task of it.
                    if asked.query.len() != 1 || asked.query("sid") != Some(&own.sid) {
                        return Ok(Response::redirect(format!("/{page}?sid={}", own.sid)));
                    }
                    return self.episode(session, &own.sid).map(Response::page).ok_or_else(no_session);
                }
                if media_type(path).starts_with("text/html") {
                    return self.beside(session, path).map(Response::page).ok_or_else(|| no_file(path));
                }
                file(&self.folder, path, &[])
            }
        }
    }
}

fn file(folder: &Folder, path: &str, hidden: &[&str]) -> Result<Response, Refused> {
    let content = folder.file(path).filter(|_| !hidden.contains(&path)).ok_or_else(|| no_file(path))?;
    Ok(Response::new(StatusCode::OK, media_type(path), content.clone()))
}

fn bad(message: String) -> Refused {
    Refused(StatusCode::BAD_REQUEST, "bad-request", message)
}

fn refused(code: &'static str, message: String) -> Refused {
    Refused(StatusCode::UNPROCESSABLE_ENTITY, code, message)
}

fn no_session() -> Refused {
    let message = "this browser has no session of the service, or it is over".to_owned();
    Refused(StatusCode::FORBIDDEN, "no-session", message)
}

fn no_file(path: &str) -> Refused {
    let path: String = path.chars().take(200).collect();
    Refused(StatusCode::NOT_FOUND, "not-found", format!("there is no /{path}"))
}

impl Refused {
    fn response(self) -> Response {
        let Refused(status, code, message) = self;
        Response::json(status, &json!({ "error": { "code": code, "message": message } }))
    }
}

impl Response {
    fn new(status: StatusCode, content_type: &'static str, body: Bytes) -> Response {
        Response { status, content_type, body, location: None, is_upload: false, policy: None }
    }

    fn page(page: Page) -> Response {
        let Page { text, policy } = page;
        let html = Response::new(StatusCode::OK, "text/html; charset=utf-8", Bytes::from(text));
        Response { policy: Some(policy), ..html }
    }

    fn json(status: StatusCode, value: &Value) -> Response {
        Response::new(status, "application/json", Bytes::from(value.to_string()))
    }

    fn upload(body: Bytes) -> Response {
        Response { is_upload: true, ..Response::new(StatusCode::OK, "application/octet-stream", body) }
    }

    fn redirect(location: String) -> Response {
        let body = Bytes::from_static(b"");
        Response {
            location: Some(location),
            ..Response::new(StatusCode::FOUND, "text/plain; charset=utf-8", body)
        }
    }

    /// With the headers that keep pages to what is theirs.
    fn into_http(self, policy: Option<&'static str>) -> http::Response<Bytes> {
        let mut response = http::Response::builder()
            .status(self.status)
            .header(header::CONTENT_TYPE, self.content_type)
            .header(header::CACHE_CONTROL, "no-store")
            .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
            .header(header::REFERRER_POLICY, "no-referrer");
        if let Some(policy) = self.policy.as_deref().or(policy) {
            response = response.header(header::CONTENT_SECURITY_POLICY, policy);
        }
        if self.is_upload {
            response = response.header(header::CONTENT_DISPOSITION, "attachment");
        }
        if let Some(location) = self.location {
            response = response.header(header::LOCATION, location);
        }
        response.body(self.body).unwrap_or_else(|_| {
            let mut failed = http::Response::new(Bytes::new());
            *failed.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            failed
        })
    }
}

#[cfg(test)]
mod tests;
