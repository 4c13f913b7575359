//! The routes, and the document that describes them.

pub(crate) mod checkpoints;
pub(crate) mod commands;
pub(crate) mod files;
pub(crate) mod orchard;
pub(crate) mod ports;
pub(crate) mod sandboxes;
pub(crate) mod service;
pub(crate) mod shells;
pub(crate) mod stream;

use crate::http::Api;
use crate::problem::{Code, Document, Problem};
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{Content, OpenApi as Described, RefOr, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Espalier",
        description = "Sandboxes for programs. Every answer that is no success is a problem document (RFC 9457) with a hint.",
        license(name = "Apache-2.0")
    ),
    components(schemas(Document<'_>, commands::OutputStream, sandboxes::Awaited)),
    tags(
        (name = "service", description = "The service itself"),
        (name = "sandboxes", description = "Make, find and end them"),
        (name = "commands", description = "Run commands; each runs once, whatever the network does"),
        (name = "shells", description = "Stateful shells"),
        (name = "files", description = "Files as raw bytes"),
        (name = "ports", description = "What listens inside"),
        (name = "checkpoints", description = "File systems that are kept, and forks"),
        (name = "orchard", description = "The routes of Orchard's environment service")
    )
)]
struct Base;

/// What needs no key.
const OPEN: [&str; 5] = ["/", "/health", "/ready", "/openapi.json", "/docs"];

/// All routes, and their description.
pub(crate) fn all() -> (axum::Router<Api>, Described) {
    let router = OpenApiRouter::<Api>::with_openapi(Base::openapi())
        .routes(routes!(service::root))
        .routes(routes!(service::health))
        .routes(routes!(service::ready))
        .routes(routes!(service::resources))
        .routes(routes!(service::metrics))
        .routes(routes!(service::openapi))
        .routes(routes!(service::own_key))
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::get, sandboxes::change, sandboxes::delete))
        .routes(routes!(sandboxes::wait))
        .routes(routes!(sandboxes::heartbeat))
        .routes(routes!(sandboxes::fork))
        .routes(routes!(checkpoints::create))
        .routes(routes!(checkpoints::list))
        .routes(routes!(checkpoints::get, checkpoints::delete))
        .routes(routes!(commands::create, commands::list))
        .routes(routes!(commands::get, commands::delete))
        .routes(routes!(commands::output))
        .routes(routes!(commands::input))
        .routes(routes!(commands::signal))
        .routes(routes!(commands::resize))
        .routes(routes!(stream::stream))
        .routes(routes!(shells::create, shells::list))
        .routes(routes!(shells::delete))
        .routes(routes!(files::get, files::put, files::delete))
        .routes(routes!(files::stat))
        .routes(routes!(files::list, files::make))
        .routes(routes!(files::move_to))
        .routes(routes!(files::patch::patch))
        .routes(routes!(ports::tunnel))
        .routes(routes!(orchard::create, orchard::list))
        .routes(routes!(orchard::get, orchard::delete))
        .routes(routes!(orchard::wait))
        .routes(routes!(orchard::heartbeat))
        .routes(routes!(orchard::jobs::exec))
        .routes(routes!(orchard::pty::pty))
        .routes(routes!(orchard::files::apply_patch))
        .routes(routes!(orchard::files::upload, orchard::files::download))
        .routes(routes!(orchard::files::list_files))
        .routes(routes!(orchard::jobs::job))
        .routes(routes!(orchard::jobs::wait_for_job));
    let (router, mut described) = router.split_for_parts();
    let router = router
        // Every method goes through, so it has no entry of its own in the description.
        .route("/v1/sandboxes/{id}/ports/{port}", axum::routing::any(ports::root))
        .route("/v1/sandboxes/{id}/ports/{port}/", axum::routing::any(ports::root))
        .route("/v1/sandboxes/{id}/ports/{port}/{*path}", axum::routing::any(ports::proxy))
        .fallback(|uri: http::Uri| async move {
            Problem::new(Code::NotFound, format!("there is no route {}", crate::http::shown(uri.path())))
                .hint("`GET /openapi.json` lists all routes")
        })
        .method_not_allowed_fallback(|method: http::Method| async move {
            Problem::new(Code::MethodNotAllowed, format!("this path has no method {method}"))
                .hint("the header `Allow` names those that it has")
        });
    finish(&mut described);
    (router, described)
}

/// What all operations have in common.
fn finish(described: &mut Described) {
    let components = described.components.get_or_insert_default();
    let schemes = &mut components.security_schemes;
    schemes.insert("bearer".to_owned(), RefOr::T(SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer))));
    schemes.insert(
        "key".to_owned(),
        RefOr::T(SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new("X-API-Key")))),
    );
    let none: [&str; 0] = [];
    for (path, item) in &mut described.paths.paths {
        let operations: [&mut Option<Operation>; 6] =
            [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch, &mut item.head];
        for operation in operations.into_iter().flatten() {
            let problem = Response::builder()
                .description("Why there is no other answer")
                .content(
                    "application/problem+json",
                    Content::new(Some(utoipa::openapi::Ref::from_schema_name("Problem"))),
                )
                .build();
            operation.responses.responses.insert("default".to_owned(), RefOr::T(problem));
            if !OPEN.contains(&path.as_str()) {
                operation.security = Some(vec![
                    SecurityRequirement::new("bearer", none),
                    SecurityRequirement::new("key", none),
                ]);
            }
        }
    }
}
