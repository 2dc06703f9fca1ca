//! The embedded PostgreSQL.

use std::sync::{Mutex, PoisonError};

use pgspate_embedded as embedded;
use pyo3::prelude::*;

use crate::errors::raise;

/// A server that is gone, with its data, when it is stopped.
#[pyclass(frozen, module = "pgspate._pgspate")]
pub(crate) struct Throwaway {
    server: Mutex<Option<embedded::Throwaway>>,
    dsn: String,
    url: String,
    /// The process that started it: a fork of it must not stop it.
    pid: u32,
}

#[pymethods]
impl Throwaway {
    #[new]
    fn new(py: Python<'_>, settings: &str) -> PyResult<Throwaway> {
        let builder = embedded::Throwaway::builder().conf(settings);
        let server = py.detach(|| builder.start(&embedded::silent)).map_err(|e| raise(py, &e))?;
        let (dsn, url) = (server.passfile_dsn(), server.tcp_dsn_for("postgres"));
        let pid = std::process::id();
        Ok(Throwaway { server: Mutex::new(Some(server)), dsn, url, pid })
    }

    #[getter]
    fn dsn(&self) -> &str {
        &self.dsn
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// Stops it and removes its data.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.end());
    }
}

impl Throwaway {
    fn end(&self) {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        if self.pid == std::process::id() {
            drop(server);
        } else {
            std::mem::forget(server);
        }
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts the user's own embedded server, unless it runs: its conninfo, its URL, and whether it was
/// started here.
#[pyfunction]
pub(crate) fn start_server(py: Python<'_>) -> PyResult<(String, String, bool)> {
    let started = py.detach(|| {
        let server = embedded::Server::open()?;
        let ran = server.status()?.state == embedded::State::Running;
        server.start(&embedded::silent)?;
        Ok((server.dsn()?, server.tcp_dsn()?, !ran))
    });
    started.map_err(|error| raise(py, &error))
}

/// Stops it.
#[pyfunction]
pub(crate) fn stop_server(py: Python<'_>) -> PyResult<()> {
    let stopped = py.detach(|| embedded::Server::open()?.stop(&embedded::silent));
    stopped.map(drop).map_err(|error| raise(py, &error))
}
