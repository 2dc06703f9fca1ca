//! Starts and stops the embedded PostgreSQL.

use std::sync::{Mutex, PoisonError};

use pgspate_embedded as embedded;
use pyo3::prelude::*;

use crate::errors::raise;

/// A temporary server. Stopping it deletes its data.
#[pyclass(frozen, name = "Throwaway", module = "pgspate._pgspate")]
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
        let server = py.detach(|| builder.start(&embedded::silent)).map_err(|e| raise(py, &e))?;
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
        py.detach(|| self.end());
    }
}

impl TemporaryServer {
    fn end(&self) {
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
        self.end();
    }
}

/// Starts the user's embedded server, unless it runs. Returns its connection string, its URL, and
/// whether this call started it.
#[pyfunction]
pub(crate) fn start_server(py: Python<'_>) -> PyResult<(String, String, bool)> {
    let started = py.detach(|| {
        let server = embedded::EmbeddedServer::open()?;
        let ran = server.status()?.state == embedded::ServerState::Running;
        server.start(&embedded::silent)?;
        Ok((server.dsn()?, server.tcp_dsn()?, !ran))
    });
    started.map_err(|error| raise(py, &error))
}

/// Stops the user's embedded server.
#[pyfunction]
pub(crate) fn stop_server(py: Python<'_>) -> PyResult<()> {
    let stopped = py.detach(|| embedded::EmbeddedServer::open()?.stop(&embedded::silent));
    stopped.map(drop).map_err(|error| raise(py, &error))
}
