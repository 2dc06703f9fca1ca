//! Any text as a connection string: neither parsing nor printing the result panics.

use pgspate::target::connect::{Dsn, Environment};

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let environment = Environment { user: Some("tester".to_owned()), ..Environment::default() };
    match Dsn::resolve(Some(text), &environment) {
        Ok(dsn) => drop(format!("{dsn:?}")),
        Err(error) => drop(format!("{error} {error:?}")),
    }
}
