//! Who calls, and bodies, as Orchard's service has them: no key is 401, a wrong one 403; JSON needs no `Content-Type`.

use crate::http::{Api, Json, open};
use crate::keys::{Key, Scope};
use crate::problem::{Code, Problem};
use axum::extract::{FromRequest, FromRequestParts, Request};
use http::request::Parts;
use http::{HeaderName, HeaderValue, header};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// In front of the key, where a client sends it as a subprotocol of its WebSocket.
const PROTOCOL: &str = "api_key.";

/// A caller that may look.
pub(crate) struct Reader(pub(crate) Arc<Key>);
/// A caller that may change.
pub(crate) struct Writer(pub(crate) Arc<Key>);
/// The same of a WebSocket: its key may stand in the query, or among its subprotocols. Refused before there is a socket, so that
/// no key is 403 as well.
pub(crate) struct SocketWriter(pub(crate) Arc<Key>);

/// The key of the headers. One that is empty is none.
fn presented(parts: &Parts) -> Option<String> {
    // A key that is not text is wrong, but it was sent.
    let text = |name: HeaderName| {
        let value: &HeaderValue = parts.headers.get(name)?;
        Some(value.to_str().unwrap_or("?").trim().to_owned()).filter(|value| !value.is_empty())
    };
    let bearer = || {
        let value = text(header::AUTHORIZATION)?;
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim().to_owned())
    };
    text(HeaderName::from_static("x-api-key")).or_else(bearer)
}

async fn caller(parts: &Parts, api: &Api, scope: Scope, key: Option<String>) -> Result<Arc<Key>, Problem> {
    let opened = open(parts, api, scope, key.as_deref()).await;
    opened.map_err(|problem| match problem.code {
        Code::Unauthenticated if key.is_some() => Problem { code: Code::Forbidden, ..problem },
        _ => problem,
    })
}

impl FromRequestParts<Api> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Reader, Problem> {
        caller(parts, api, Scope::Read, presented(parts)).await.map(Reader)
    }
}

impl FromRequestParts<Api> for Writer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Writer, Problem> {
        caller(parts, api, Scope::Write, presented(parts)).await.map(Writer)
    }
}

impl FromRequestParts<Api> for SocketWriter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<SocketWriter, Problem> {
        let pairs = parts.uri.query().unwrap_or_default().split('&');
        let query = pairs.filter_map(|pair| pair.strip_prefix("api_key=")).next();
        let query = query.map(|key| percent_decode_str(key).decode_utf8_lossy().into_owned());
        let protocol = || {
            let named = parts.headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
            let mut named = named.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
            named.find_map(|one| one.trim().strip_prefix(PROTOCOL)).map(str::to_owned)
        };
        let key = query.filter(|key| !key.is_empty()).or_else(protocol).or_else(|| presented(parts));
        let opened = caller(parts, api, Scope::Write, key).await;
        opened.map(SocketWriter).map_err(|problem| match problem.code {
            Code::Unauthenticated => Problem { code: Code::Forbidden, ..problem },
            _ => problem,
        })
    }
}

/// A body of JSON; it need not say so.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = Problem;

    async fn from_request(mut request: Request, api: &Api) -> Result<Body<T>, Problem> {
        let json = HeaderValue::from_static("application/json");
        let headers = request.headers_mut();
        let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or("?").to_lowercase());
        let essence = kind.as_deref().and_then(|kind| kind.split(';').next()).map(str::trim);
        if essence.is_none_or(|kind| kind.starts_with("application/") && kind.ends_with("+json")) {
            headers.insert(header::CONTENT_TYPE, json);
        }
        Json::from_request(request, api).await.map(|Json(body)| Body(body))
    }
}
