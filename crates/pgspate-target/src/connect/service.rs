//! Reads the connection service file: named groups of connection parameters.
//!
//! The user's own file comes first, then the system's file. Messages never contain a parameter's
//! value.

use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::keyword;
use super::parameters::{ConnectionParameters, ParameterOrigin, unknown_parameter};
use crate::{Error, ErrorKind, InputPlace, Result};

/// Adds the parameters of service `name` to `settings`. Existing values are kept.
pub(super) fn read(
    name: &str,
    settings: &mut ConnectionParameters,
    env: &Environment,
) -> Result<()> {
    let mut searched = Vec::new();
    for path in service_files(settings, env) {
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => continue,
        };
        if read_text(&text, name, &path, settings)? {
            return Ok(());
        }
        searched.push(format!("\"{}\"", path.display()));
    }
    let error = Error::new(ErrorKind::Usage, format!("definition of service \"{name}\" not found"));
    Err(error.hint(if searched.is_empty() {
        "There is no service file. Set PGSERVICEFILE, or create ~/.pg_service.conf with a section \
         header `[NAME]` for the service."
            .to_owned()
    } else {
        format!("pgspate searched for the service in {}.", searched.join(" and "))
    }))
}

/// Returns the paths of service files, in the order in which they are searched.
fn service_files(settings: &ConnectionParameters, env: &Environment) -> Vec<PathBuf> {
    let named = settings.get("servicefile").or_else(|| env.variable("PGSERVICEFILE"));
    let own = match named {
        Some(path) => Some(PathBuf::from(path)),
        None => env.home.as_ref().map(|home| home.join(".pg_service.conf")),
    };
    let dirs = match env.variable("PGSYSCONFDIR") {
        Some(dir) => vec![PathBuf::from(dir)],
        None => env.sysconf_dirs.clone(),
    };
    own.into_iter().chain(dirs.into_iter().map(|dir| dir.join("pg_service.conf"))).collect()
}

/// Adds the parameters of the service if `text` defines it, and returns whether it does.
fn read_text(
    text: &str,
    name: &str,
    path: &Path,
    settings: &mut ConnectionParameters,
) -> Result<bool> {
    let mut found = false;
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            if found {
                return Ok(true);
            }
            found = section.split_once(']').is_some_and(|(section, _)| section == name);
        } else if found {
            let place = InputPlace {
                source: Some(path.display().to_string()),
                line: Some(number),
                ..InputPlace::default()
            };
            add_parameter(line, name, path, settings).map_err(|error| error.at(place))?;
        }
    }
    Ok(found)
}

/// Adds the parameter that one line of the service `name` sets.
fn add_parameter(
    line: &str,
    name: &str,
    path: &Path,
    settings: &mut ConnectionParameters,
) -> Result<()> {
    if line.starts_with("ldap") {
        return Err(Error::new(
            ErrorKind::Usage,
            "could not look up the service: LDAP is not supported",
        ));
    }
    let Some((key, value)) = line.split_once('=') else {
        return Err(Error::new(
            ErrorKind::Usage,
            "syntax error in service file, expected key=value",
        ));
    };
    let Some(known) = keyword::find(key) else {
        return Err(unknown_parameter(key, true, &format!("service \"{name}\"")));
    };
    if matches!(known.name, "service" | "servicefile") {
        return Err(Error::new(ErrorKind::Usage, "a service cannot name another service"));
    }
    settings.add(
        known.name,
        value.to_owned(),
        ParameterOrigin::Service(name.to_owned(), path.to_owned()),
    );
    Ok(())
}
