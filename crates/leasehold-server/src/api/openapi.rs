//! Every route in one list, and their description, which is generated from the code.

use super::{
    App, artifacts, catalog, decisions, events,
    guard::bounded,
    health, inbox, mcp, orders,
    problem::{Problem, Shown},
    questions, runs, start,
};
use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode, Uri, header},
    middleware::from_fn_with_state,
    response::IntoResponse as _,
    routing::get,
};
use std::sync::Arc;
use utoipa::{
    Modify, OpenApi, PartialSchema as _, ToSchema as _,
    openapi::{
        Components, ContentBuilder, Ref, RefOr, ResponseBuilder,
        security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

#[derive(OpenApi)]
#[openapi(
    info(title = "leasehold", description = "A durable runtime for AI agents that write.", license(name = "Apache-2.0", identifier = "Apache-2.0")),
    modifiers(&Common),
    security(("token" = []))
)]
struct Described;

/// What every operation has.
struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_with(Components::new);
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
        let mut nested = Vec::new();
        Shown::schemas(&mut nested);
        components.schemas.insert(Shown::name().into_owned(), Shown::schema());
        components.schemas.extend(nested);
    }
}

/// Every refusal is described alike.
fn with_refusals(mut document: utoipa::openapi::OpenApi) -> utoipa::openapi::OpenApi {
    let refusal = |description: &str| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(Shown::name()))).build();
        RefOr::T(ResponseBuilder::new().description(description).content("application/problem+json", content).build())
    };
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            responses.insert("4XX".into(), refusal("Refused: nothing has changed"));
            responses.insert("5XX".into(), refusal("No answer from the store, too much at once, or something broke"));
        }
    }
    document
}

/// A browser that wants a page.
fn reads_pages(uri: &Uri, headers: &HeaderMap) -> bool {
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepts.contains("text/html") && !uri.path().starts_with("/api/")
}

/// All routes.
pub(super) fn routes(app: &Arc<App>) -> Router {
    let bounded = from_fn_with_state(Arc::clone(app), bounded);
    let short = OpenApiRouter::new()
        .routes(routes!(runs::list))
        .routes(routes!(runs::show_run))
        .routes(routes!(artifacts::list))
        .routes(routes!(artifacts::content))
        .routes(routes!(questions::answer))
        .routes(routes!(orders::cancel))
        .routes(routes!(orders::resolve))
        .routes(routes!(orders::redrive))
        .routes(routes!(orders::discard))
        .routes(routes!(inbox::inbox))
        .routes(routes!(catalog::agents))
        .routes(routes!(catalog::tools))
        .routes(routes!(mcp::servers))
        .routes(routes!(mcp::acknowledge))
        .routes(routes!(mcp::switch))
        .routes(routes!(mcp::logout))
        .route_layer(bounded.clone());
    // These stream or wait.
    let long = OpenApiRouter::new()
        .routes(routes!(start::start))
        .routes(routes!(decisions::decide))
        .routes(routes!(decisions::input))
        .routes(routes!(events::events))
        .routes(routes!(mcp::probe))
        .routes(routes!(mcp::import));
    let api = OpenApiRouter::with_openapi(Described::openapi())
        .nest("/api/v1", short.merge(long))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz));
    let (router, document) = api.split_for_parts();
    // A document of strings and lists has no value that JSON does not.
    let document = Bytes::from(with_refusals(document).to_json().unwrap_or_default());
    let router: Router<Arc<App>> = router
        .merge(crate::ui::routes().route_layer(bounded))
        .route("/openapi.json", get(|| async move { ([(header::CONTENT_TYPE, "application/json")], document) }))
        .fallback(|uri: Uri, headers: HeaderMap| async move {
            if reads_pages(&uri, &headers) {
                return crate::ui::nothing_here();
            }
            Problem::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here").into_response()
        })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this is not done here in this way")
        });
    router.with_state(Arc::clone(app))
}
