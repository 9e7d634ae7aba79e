//! What every request passes: a bounded head, a place, a host of ours, no other site behind a browser; and what every answer has.

use super::{App, limits, listen::Connection, problem::Problem};
use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderValue, StatusCode, header, uri::Authority},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse as _, Response},
};
use std::{any::Any, net::IpAddr, sync::Arc, time::Instant};
use tower_http::{
    catch_panic::CatchPanicLayer,
    csrf::{CsrfLayer, ProtectionError},
};

/// In this order, from the outside: the answer's headers and the log, panics, who may speak, the head, the host, the browser.
pub(super) fn around(app: &Arc<App>, router: Router) -> Router {
    let mut csrf = CsrfLayer::new();
    if let Some(url) = &app.server.public_url.value {
        // An origin that is read from a URL is one.
        match csrf.clone().add_trusted_origin(url.origin()) {
            Ok(with) => csrf = with,
            Err(error) => tracing::warn!("[server] public_url is not taken as an origin: {error}"),
        }
    }
    router
        .layer(DefaultBodyLimit::max(limits::BODY_BYTES_MAX))
        .layer(csrf.with_rejection_response(|_: ProtectionError| cross_origin()))
        .layer(from_fn_with_state(Arc::clone(app), host))
        .layer(from_fn_with_state(Arc::clone(app), peer))
        .layer(from_fn(head))
        .layer(CatchPanicLayer::custom(|_: Box<dyn Any + Send + 'static>| Problem::internal().into_response()))
        .layer(from_fn(finish))
}

fn cross_origin() -> Response {
    Problem::new(StatusCode::FORBIDDEN, "cross_origin", "a page of another site may not order this").into_response()
}

/// Who may speak here at all.
async fn peer(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, Problem> {
    let peer = request.extensions().get::<Connection>().map(|connection| connection.peer.ip());
    if peer.is_some_and(|peer| !app.server.lets_in(app.listen, peer)) {
        let detail = "this is reached through what ends TLS in front of it, see [server] trusted_proxies";
        return Err(Problem::new(StatusCode::FORBIDDEN, "not_through_proxy", detail));
    }
    Ok(next.run(request).await)
}

async fn head(request: Request, next: Next) -> Result<Response, Problem> {
    let bytes: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let uri = request.uri().path_and_query().map_or(0, |text| text.as_str().len());
    if bytes + uri > limits::HEADER_BYTES_MAX {
        let detail = format!("the head of the request is longer than {} bytes", limits::HEADER_BYTES_MAX);
        return Err(Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", detail));
    }
    Ok(next.run(request).await)
}

/// A name that a browser may have been led to by somebody else's DNS is not ours.
fn is_ours(app: &App, name: &str) -> bool {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = name.parse::<IpAddr>() {
        // An address is no name, so nobody's DNS leads to it.
        return address.is_loopback() || !app.listen.ip().is_loopback();
    }
    let public = app.server.public_url.value.as_ref().map(|url| url.host());
    name.eq_ignore_ascii_case("localhost") || public.is_some_and(|host| host.eq_ignore_ascii_case(name))
}

async fn host(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, Problem> {
    let header = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    let named = request.uri().authority().cloned().or_else(|| header.and_then(|text| text.parse::<Authority>().ok()));
    if named.is_some_and(|authority| is_ours(&app, authority.host())) {
        return Ok(next.run(request).await);
    }
    let detail = "this server has another name: see [server] public_url";
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "foreign_host", detail))
}

/// A place for a request, and its time. Not for what may stream or wait: that takes the place that it needs itself.
pub(super) async fn bounded(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, Problem> {
    let _place = app.request_place()?;
    match tokio::time::timeout(limits::REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => Ok(response),
        Err(_) => {
            let detail = "this took too long; an order may have been taken, and the same order again gets the same answer";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timed_out", detail).retry(2))
        }
    }
}

/// Headers of every answer, and a line in the log without the query.
async fn finish(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let since = Instant::now();
    let mut response = next.run(request).await;
    let (status, ms) = (response.status().as_u16(), since.elapsed().as_millis());
    tracing::info!(%method, path, status, ms, "{method} {path}: {status} in {ms} ms");
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
