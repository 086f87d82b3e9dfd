//! Connections and routes.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Body, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use pannier::model::Forward;
use pannier::session::Model;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::ServeOptions;
use super::answer::{self, Piece, Sessions};
use super::api;
use super::error::ApiError;
use super::queue::Queue;
use super::stream::{Head, unix_time};

type Reply = Response<BoxBody<Bytes, std::io::Error>>;

/// A client that does not send its headers in this time is dropped.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// A client that does not send its body in this time, too.
const BODY_TIME: Duration = Duration::from_secs(60);
/// Accepting fails when file descriptors run out; trying again at once would only burn.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all connections share.
pub(super) struct State<F: Forward> {
    sessions: Arc<Sessions<F>>,
    queue: Queue,
    options: ServeOptions,
    started: u64,
}

impl<F: Forward> State<F> {
    pub fn new(model: Arc<Model<F>>, options: ServeOptions) -> Self {
        Self {
            sessions: Arc::new(Sessions::new(model)),
            queue: Queue::new(options.parallel, options.queue),
            options,
            started: unix_time(),
        }
    }
}

pub(super) async fn run<F>(listener: TcpListener, state: Arc<State<F>>, shutdown: impl Future<Output = ()>)
where
    F: Forward + Send + 'static,
    F::Seq: Send,
{
    let mut shutdown = pin!(shutdown);
    let graceful = GracefulShutdown::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        // Tokens are small packets; each should leave at once.
        let _ = stream.set_nodelay(true);
        let state = Arc::clone(&state);
        let service = service_fn(move |request| {
            let state = Arc::clone(&state);
            async move { Ok::<_, Infallible>(handle(&state, request).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        // A connection that breaks has dropped its answer, which cancels the generation.
        tokio::spawn(async move {
            let _ = connection.await;
        });
    }
    drop(listener);
    state.queue.close();
    if tokio::time::timeout(state.options.grace, graceful.shutdown()).await.is_err() {
        // What still runs is cut: closing the model cancels every generation.
        state.sessions.model().close();
    }
}

async fn handle<F>(state: &Arc<State<F>>, request: Request<Incoming>) -> Reply
where
    F: Forward + Send + 'static,
    F::Seq: Send,
{
    match route(state, request).await {
        Ok(reply) => reply,
        Err(error) => {
            let mut reply = whole(error.status, &error.body());
            if let Some(seconds) = error.retry_after {
                reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            if error.status == StatusCode::METHOD_NOT_ALLOWED {
                reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST"));
            }
            reply
        }
    }
}

async fn route<F>(state: &Arc<State<F>>, request: Request<Incoming>) -> Result<Reply, ApiError>
where
    F: Forward + Send + 'static,
    F::Seq: Send,
{
    check_host(state, request.headers())?;
    let path = request.uri().path().trim_end_matches('/').to_owned();
    if path == "/health" && request.method() == Method::GET {
        return Ok(whole(StatusCode::OK, &json!({ "status": "ok" })));
    }
    check_key(state, request.headers())?;
    match (request.method(), path.as_str()) {
        (&Method::GET, "/v1/models") => {
            Ok(whole(StatusCode::OK, &json!({ "object": "list", "data": [entry(state)] })))
        }
        (&Method::GET, path) if path.starts_with("/v1/models/") => {
            let name = path.trim_start_matches("/v1/models/");
            if name == state.options.model {
                Ok(whole(StatusCode::OK, &entry(state)))
            } else {
                Err(ApiError::unknown_model(name))
            }
        }
        (&Method::POST, "/v1/chat/completions") => chat(state, request).await,
        (_, "/v1/models" | "/v1/chat/completions" | "/health") => {
            Err(ApiError::invalid(None, "this method is not allowed here")
                .with_status(StatusCode::METHOD_NOT_ALLOWED))
        }
        (_, path) => {
            Err(ApiError::invalid(None, format!("there is no {path:?} here"))
                .with_status(StatusCode::NOT_FOUND))
        }
    }
}

fn entry<F: Forward>(state: &State<F>) -> Value {
    json!({ "id": state.options.model, "object": "model", "created": state.started, "owned_by": "pannier" })
}

/// On loopback, a page of another host name must not reach us by pointing that name here.
fn check_host<F: Forward>(state: &State<F>, headers: &HeaderMap) -> Result<(), ApiError> {
    if !state.options.address.ip().is_loopback() {
        return Ok(());
    }
    let host = headers.get(HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    if name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) {
        return Ok(());
    }
    Err(ApiError::invalid(None, "this host name is not served").with_status(StatusCode::FORBIDDEN))
}

fn check_key<F: Forward>(state: &State<F>, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(key) = &state.options.key else { return Ok(()) };
    let given = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok());
    let given = given.and_then(|v| v.strip_prefix("Bearer ")).unwrap_or_default();
    if key.equals(given) { Ok(()) } else { Err(ApiError::unauthorized()) }
}

async fn chat<F>(state: &Arc<State<F>>, request: Request<Incoming>) -> Result<Reply, ApiError>
where
    F: Forward + Send + 'static,
    F::Seq: Send,
{
    let kind = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !kind.trim_start().to_ascii_lowercase().starts_with("application/json") {
        return Err(ApiError::invalid(None, "the content type must be application/json")
            .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let limit = state.options.max_body;
    let too_large = || {
        ApiError::invalid(None, format!("the request has more than {limit} bytes"))
            .with_status(StatusCode::PAYLOAD_TOO_LARGE)
    };
    if request.body().size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let body = tokio::time::timeout(BODY_TIME, Limited::new(request.into_body(), limit).collect())
        .await
        .map_err(|_| {
            ApiError::invalid(None, "the request took too long").with_status(StatusCode::REQUEST_TIMEOUT)
        })?
        .map_err(|_| too_large())?
        .to_bytes();
    let wire = api::parse(&body)?;
    if let Some(name) = wire.model.as_deref().filter(|name| *name != state.options.model) {
        return Err(ApiError::unknown_model(name));
    }
    let request = wire.check()?;
    let permit = state.queue.enter().await?;
    let tokenizer = Arc::clone(state.sessions.model().tokenizer().map_err(|e| ApiError::from_engine(&e))?);
    let head = Head::new(&state.options.model, tokenizer, request.logprobs, request.include_usage);
    let stream = request.stream;
    let mut answer = answer::start(&state.sessions, request, permit);
    if !stream {
        return Ok(whole(StatusCode::OK, &head.whole(answer).await?));
    }
    // The status is sent with the first piece: what is wrong before it is a proper refusal.
    let first = match answer.pieces.recv().await {
        Some(Piece::Failed(error)) => return Err(error),
        Some(piece) => piece,
        None => return Err(ApiError::closing()),
    };
    let (to, frames) = tokio::sync::mpsc::channel(16);
    tokio::spawn(head.stream(first, answer, to));
    let body = StreamBody::new(Frames(frames));
    let mut reply = Response::new(BodyExt::boxed(body));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(reply)
}

/// A channel as a stream.
struct Frames(tokio::sync::mpsc::Receiver<Result<hyper::body::Frame<Bytes>, std::io::Error>>);

impl futures_core::Stream for Frames {
    type Item = Result<hyper::body::Frame<Bytes>, std::io::Error>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

fn whole(status: StatusCode, value: &Value) -> Reply {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {});
    let mut reply = Response::new(BodyExt::boxed(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}
