//! Starts and stops temporary servers and the embedded server.

use std::sync::{Mutex, PoisonError};

use pgspate_embedded as embedded;
use pyo3::prelude::*;

use crate::errors::to_exception;

/// A temporary server. Stopping it deletes its data.
#[pyclass(frozen, module = "pgspate._pgspate")]
pub(crate) struct TemporaryServer {
    server: Mutex<Option<embedded::ThrowawayServer>>,
    dsn: String,
    url: String,
    /// The process that started the server. A forked process must not stop it.
    pid: u32,
}

#[pymethods]
impl TemporaryServer {
    #[new]
    fn new(py: Python<'_>, settings: &str) -> PyResult<TemporaryServer> {
        let builder = embedded::ThrowawayServer::builder().conf(settings);
        let server =
            py.detach(|| builder.start(&embedded::silent)).map_err(|e| to_exception(py, &e))?;
        let (dsn, url) = (server.passfile_dsn(), server.tcp_dsn_for("postgres"));
        let pid = std::process::id();
        Ok(TemporaryServer { server: Mutex::new(Some(server)), dsn, url, pid })
    }

    #[getter]
    fn dsn(&self) -> &str {
        &self.dsn
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// Stops the server and deletes its data.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.stop_in_own_process());
    }
}

impl TemporaryServer {
    /// Stops the server, unless this process is a fork of the process that started it.
    fn stop_in_own_process(&self) {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.pid == std::process::id() {
            drop(server);
        } else {
            std::mem::forget(server);
        }
    }
}

impl Drop for TemporaryServer {
    fn drop(&mut self) {
        self.stop_in_own_process();
    }
}

/// Starts the user's embedded server, unless it is running. Returns the server's connection string
/// and URL, and whether this call started the server.
#[pyfunction]
pub(crate) fn start_server(py: Python<'_>) -> PyResult<(String, String, bool)> {
    let started = py.detach(|| {
        let server = embedded::EmbeddedServer::open()?;
        let was_running = server.status()?.state == embedded::ServerState::Running;
        server.start(&embedded::silent)?;
        Ok((server.dsn()?, server.tcp_dsn()?, !was_running))
    });
    started.map_err(|error| to_exception(py, &error))
}

/// Stops the user's embedded server.
#[pyfunction]
pub(crate) fn stop_server(py: Python<'_>) -> PyResult<()> {
    let stopped = py.detach(|| embedded::EmbeddedServer::open()?.stop(&embedded::silent));
    stopped.map(drop).map_err(|error| to_exception(py, &error))
}
