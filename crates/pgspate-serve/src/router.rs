//! The addresses that are served.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::routing::{get, post};

use crate::fault::RequestFault;
use crate::insert::insert;
use crate::state::{LiveCount, ServeState};
use crate::{metrics, stats};

/// The live page, which has its style and its script in itself.
const PAGE: &str = include_str!("page.html");
/// The page loads nothing, and no other page may show it in a frame.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
                           script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'";

/// Returns the router.
pub(crate) fn router(state: Arc<ServeState>) -> Router {
    Router::new()
        .route("/tables/{name}/rows", post(post_rows))
        .route("/stats", get(get_stats))
        .route("/metrics", get(get_metrics))
        .route("/", get(async || text("text/html; charset=utf-8", PAGE.to_owned())))
        .route("/healthz", get(async || text("text/plain", "ok\n".to_owned())))
        .route("/readyz", get(get_ready))
        .fallback(async || not_found().into_response())
        .method_not_allowed_fallback(async || wrong_method().into_response())
        .layer(from_fn_with_state(Arc::clone(&state), check_access))
        .with_state(state)
}

/// Checks who sends a request, and counts its answer.
async fn check_access(
    State(state): State<Arc<ServeState>>,
    request: Request,
    next: Next,
) -> Response<Body> {
    let _live = LiveCount::of(&state.counters.in_flight);
    let (parts, body) = request.into_parts();
    let is_public = matches!(parts.uri.path(), "/" | "/healthz" | "/readyz");
    let mut checked = state.access.check_origin(&parts);
    if !is_public {
        checked = checked.and_then(|()| state.access.check_token(&parts));
    }
    let response = match checked {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(refused) => refused.into_response(),
    };
    state.counters.count_answer(response.status().as_u16());
    response
}

async fn post_rows(
    State(state): State<Arc<ServeState>>,
    Path(name): Path<String>,
    request: Request,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    insert(&state, &name, &parts, body).await.unwrap_or_else(RequestFault::into_response)
}

async fn get_stats(State(state): State<Arc<ServeState>>) -> Response<Body> {
    text("application/json", stats::page(&state))
}

async fn get_metrics(State(state): State<Arc<ServeState>>) -> Response<Body> {
    text("text/plain; version=0.0.4; charset=utf-8", metrics::page(&state))
}

async fn get_ready(State(state): State<Arc<ServeState>>) -> Response<Body> {
    match state.check_ready() {
        Ok(()) => text("text/plain", "ready\n".to_owned()),
        Err(refused) => {
            let closes = state.is_stopping.load(Ordering::Relaxed);
            RequestFault { closes, ..refused }.into_response()
        }
    }
}

fn not_found() -> RequestFault {
    let fault = RequestFault::new(StatusCode::NOT_FOUND, "not_found", "there is no such page");
    fault.hint("Records are sent to /tables/NAME/rows.").closing()
}

fn wrong_method() -> RequestFault {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    RequestFault::new(status, "wrong_method", "the page does not take this method").closing()
}

fn text(media: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    let no_sniff = HeaderName::from_static("x-content-type-options");
    headers.insert(no_sniff, HeaderValue::from_static("nosniff"));
    response
}
