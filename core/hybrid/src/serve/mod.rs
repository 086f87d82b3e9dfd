//! The engine as an OpenAI-compatible server: the desk-side "cloud" for development and tests.
//!
//! `GET /v1/models`, `POST /v1/chat/completions` (streaming and not), `GET /health`. Requests wait in a bounded queue; when it is full they
//! get 429, while shutting down 503, both with `Retry-After`. A client that goes away cancels its generation.
//!
//! It is for one machine: bound to loopback unless a key is set. Web pages cannot use it: requests must be JSON (which needs a
//! preflight that is never granted), and on loopback the `Host` must be loopback too (against DNS rebinding).

mod answer;
mod api;
mod error;
mod http;
mod queue;
mod stream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pannier::model::Forward;
use pannier::session::Model;
use thiserror::Error;
use tokio::net::TcpListener;

use crate::openai::Secret;

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Where to listen; port 0 picks one.
    pub address: SocketAddr,
    /// The name of the model for clients.
    pub model: String,
    /// Clients must show this key. Needed to listen anywhere but on loopback.
    pub key: Option<Secret>,
    /// Generations at the same time; they take turns on the model.
    pub parallel: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// The most bytes of a request.
    pub max_body: usize,
    /// How long running answers may go on after a shutdown was asked for.
    pub grace: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            model: "pannier".into(),
            key: None,
            parallel: 2,
            queue: 16,
            max_body: 4 << 20,
            grace: Duration::from_secs(10),
        }
    }
}

/// Why the server did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Anyone in the network could use it.
    #[error("{address} is not loopback: set a key to listen there")]
    NeedsKey {
        /// The address.
        address: SocketAddr,
    },
    /// The model cannot chat.
    #[error(transparent)]
    Model(#[from] pannier::Error),
    /// The system gave no threads.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

/// A server that listens, but does not answer yet.
pub struct Server<F: Forward> {
    listener: TcpListener,
    state: Arc<http::State<F>>,
}

impl<F: Forward + Send + 'static> Server<F>
where
    F::Seq: Send,
{
    /// Takes the address. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind(model: Arc<Model<F>>, options: ServeOptions) -> Result<Self, ServeError> {
        model.tokenizer()?;
        model.template()?;
        let address = options.address;
        if !address.ip().is_loopback() && options.key.is_none() {
            return Err(ServeError::NeedsKey { address });
        }
        let listener =
            TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
        Ok(Self { listener, state: Arc::new(http::State::new(model, options)) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not tell.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `shutdown` is ready. Then: no new connections, 503 for what waits, and [`ServeOptions::grace`] for what runs.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        http::run(self.listener, self.state, shutdown).await;
    }
}

/// Serves on a runtime of its own; blocks until `shutdown` is ready. `ready` is told the address.
///
/// # Errors
/// [`ServeError`].
pub fn serve_blocking<F>(
    model: Arc<Model<F>>,
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError>
where
    F: Forward + Send + 'static,
    F::Seq: Send,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("pannier-serve")
        .enable_all()
        .build()
        .map_err(ServeError::Runtime)?;
    let result = runtime.block_on(async {
        let server = Server::bind(model, options).await?;
        let mut shutdown = std::pin::pin!(shutdown);
        // Looked at once before anybody is told: a signal that comes right after that must find its handler installed.
        tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            () = std::future::ready(()) => {}
        }
        ready(server.address().map_err(ServeError::Runtime)?);
        server.run(shutdown).await;
        Ok(())
    });
    // What still runs was cancelled; nobody waits for it.
    runtime.shutdown_timeout(Duration::from_secs(2));
    result
}

/// Ready at the first Ctrl-C or SIGTERM.
pub async fn signals() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = interrupt.await;
}
