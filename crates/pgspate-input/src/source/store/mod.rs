//! Object stores: S3, Google Cloud Storage, Azure Blob Storage.
//!
//! Credentials come from the usual places of each service. `--source-option` wins over the
//! environment.

mod aws;
mod errors;
pub(super) mod list;
mod profile;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use tokio::runtime::Handle;

pub(super) use errors::store_error;

use super::SourceOptions;
use crate::{Error, ErrorKind, Result};

/// The object store service that a URL's scheme names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    S3,
    Gcs,
    Azure,
}

impl Scheme {
    /// Returns the service of a URL scheme, if the scheme belongs to an object store.
    pub(super) fn parse(scheme: &str) -> Option<Scheme> {
        match scheme {
            "s3" | "s3a" | "s3n" => Some(Scheme::S3),
            "gs" => Some(Scheme::Gcs),
            "az" | "azure" | "adl" | "abfs" | "abfss" => Some(Scheme::Azure),
            _ => None,
        }
    }

    /// Returns whether this service has the option `--source-option KEY=...`.
    pub(super) fn accepts(self, key: &str) -> bool {
        let key = key.to_ascii_lowercase();
        match self {
            Scheme::S3 => {
                key == profile::PROFILE_OPTION || key.parse::<AmazonS3ConfigKey>().is_ok()
            }
            Scheme::Gcs => key.parse::<GoogleConfigKey>().is_ok(),
            Scheme::Azure => key.parse::<AzureConfigKey>().is_ok(),
        }
    }
}

/// Environment variables. Empty variables count as unset.
pub(super) type Env = BTreeMap<String, String>;

/// Returns this process's environment. Variables that are not UTF-8 are left out.
pub(super) fn environment() -> Env {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// Returns a client for the bucket (or container) of `root`, which is like `s3://bucket/`.
///
/// # Errors
/// [`ErrorKind::Usage`] or [`ErrorKind::Source`] if settings contradict each other or credentials
/// are missing.
pub(super) fn open(
    scheme: Scheme,
    root: &str,
    bucket: &str,
    options: &SourceOptions,
    runtime: &Handle,
) -> Result<Arc<dyn ObjectStore>> {
    super::install_crypto();
    let env = environment();
    match scheme {
        Scheme::S3 => aws::open(root, bucket, options, &env, runtime),
        Scheme::Gcs => open_gcs(root, options, &env),
        Scheme::Azure => open_azure(root, options, &env),
    }
}

fn open_gcs(root: &str, options: &SourceOptions, env: &Env) -> Result<Arc<dyn ObjectStore>> {
    let settings = store_settings::<GoogleConfigKey>(options, env, &["google_"], Scheme::Gcs);
    let http = is_plain_http(settings.iter().map(|(_, value)| value.as_str()));
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_client_options(client_options(options, http))
        .with_retry(retry(options));
    if let Some(path) = env.get("SERVICE_ACCOUNT") {
        builder = builder.with_service_account_path(path);
    }
    for (key, value) in settings {
        builder = builder.with_config(key, value);
    }
    let store = builder.with_url(root).build();
    Ok(Arc::new(store.map_err(|e| store_error(Scheme::Gcs, root, &e))?))
}

fn open_azure(root: &str, options: &SourceOptions, env: &Env) -> Result<Arc<dyn ObjectStore>> {
    let settings = store_settings::<AzureConfigKey>(options, env, &["azure_"], Scheme::Azure);
    let http = is_plain_http(settings.iter().map(|(_, value)| value.as_str()));
    let mut builder = MicrosoftAzureBuilder::new()
        .with_client_options(client_options(options, http))
        .with_retry(retry(options));
    if let Some(endpoint) = env.get("IDENTITY_ENDPOINT") {
        builder = builder.with_msi_endpoint(endpoint);
    }
    for (key, value) in settings {
        builder = builder.with_config(key, value);
    }
    let store = builder.with_url(root).build().map_err(|error| {
        let general_error = store_error(Scheme::Azure, root, &error);
        match error.to_string().contains("Account must be specified") {
            true => {
                Error::new(ErrorKind::Usage, format!("no storage account found for \"{root}\""))
                    .hint(
                        "Set AZURE_STORAGE_ACCOUNT_NAME, or write the account into the URL: \
                     abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.",
                    )
            }
            false => general_error,
        }
    })?;
    Ok(Arc::new(store))
}

/// Returns the settings of a service: environment first and options after it, so that options win.
fn store_settings<K: std::str::FromStr>(
    options: &SourceOptions,
    env: &Env,
    prefixes: &[&str],
    scheme: Scheme,
) -> Vec<(K, String)> {
    let from_env = env.iter().map(|(key, value)| (key.to_ascii_lowercase(), value.clone()));
    let from_env =
        from_env.filter(|(key, _)| prefixes.iter().any(|prefix| key.starts_with(prefix)));
    let from_options = options.store.iter().filter(|(key, _)| scheme.accepts(key));
    let from_options = from_options.map(|(key, value)| (key.to_ascii_lowercase(), value.clone()));
    from_env
        .chain(from_options)
        .filter_map(|(key, value)| Some((key.parse().ok()?, value)))
        .collect()
}

/// Returns whether an endpoint begins with `http://`. If so, the user wants plain HTTP.
fn is_plain_http<'a>(mut values: impl Iterator<Item = &'a str>) -> bool {
    values.any(|value| value.starts_with("http://"))
}

/// Returns the HTTP client's options. A whole request has no time limit, because the network may be
/// slow. The time in which no byte arrives has a limit.
fn client_options(options: &SourceOptions, allow_http: bool) -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_read_timeout(options.stall)
        .with_connect_timeout(options.stall.min(Duration::from_secs(10)))
        .with_allow_http(allow_http)
}

fn retry(options: &SourceOptions) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: 10,
        retry_timeout: options.retry,
    }
}
