//! Opens S3, and other stores that use the S3 protocol.
//!
//! Settings come from the AWS profile, the environment and `--source-option`. A later of these
//! three origins wins over an earlier one. All parts of a credential come from one origin, so that
//! a token is never combined with the key of another account.

use std::collections::HashMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key, resolve_bucket_region};
use object_store::{ClientConfigKey, ClientOptions};
use tokio::runtime::Handle;
use url::Url;

use super::profile::{self, AwsProfile};
use super::{Env, Scheme, client_options, retry, store_error};
use crate::source::{SourceOptions, run_and_wait};
use crate::{Error, ErrorKind, Result};

const CREDENTIALS_HINT: &str = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; \
     for a public bucket set AWS_SKIP_SIGNATURE=true.";

/// How long to wait for a connection to the metadata service of a cloud machine.
const METADATA_WAIT: Duration = Duration::from_secs(1);

type S3Settings = HashMap<Key, String>;

/// Returns a client for `bucket`.
///
/// # Errors
/// [`ErrorKind::Source`] if credentials are missing, or [`ErrorKind::Usage`] if the endpoint or the
/// profile is invalid.
pub(super) fn open(
    root: &str,
    bucket: &str,
    options: &SourceOptions,
    env: &Env,
    runtime: &Handle,
) -> Result<Arc<dyn ObjectStore>> {
    let (mut settings, profile) = settings(options, env)?;
    check_credentials(root, &settings, &profile, env)?;
    let endpoint = settings.get(&Key::S3Endpoint).or(settings.get(&Key::Endpoint)).cloned();
    if let Some(url) = &endpoint {
        check_endpoint(url)?;
    }
    let plain_http = endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
    if endpoint.is_none() && !settings.contains_key(&Key::Region) {
        // AWS answers requests for a bucket's region without credentials. If that fails, the first
        // read reports the region as the cause.
        let client = ClientOptions::new()
            .with_timeout(options.stall.min(Duration::from_secs(5)))
            .with_connect_timeout(options.stall.min(Duration::from_secs(5)));
        let bucket = bucket.to_owned();
        let region_request = async move { resolve_bucket_region(&bucket, &client).await };
        if let Ok(region) = run_and_wait(runtime, region_request)? {
            settings.insert(Key::Region, region);
        }
    }
    let mut builder = AmazonS3Builder::new()
        .with_client_options(client_options(options, plain_http))
        .with_retry(retry(options));
    for (key, value) in settings {
        builder = builder.with_config(key, value);
    }
    let store = builder.with_bucket_name(bucket).build();
    Ok(Arc::new(store.map_err(|e| store_error(Scheme::S3, root, &e))?))
}

/// Returns the merged settings, and the profile that was read.
fn settings(options: &SourceOptions, env: &Env) -> Result<(S3Settings, AwsProfile)> {
    let option_pairs: Vec<(String, String)> = options
        .store
        .iter()
        .map(|(key, value)| (key.to_ascii_lowercase(), value.clone()))
        .collect();
    let profile_option = option_pairs.iter().rfind(|(key, _)| key == profile::PROFILE_OPTION);
    let profile_name = profile_option.map(|(_, value)| value.as_str());
    let profile = AwsProfile::read(profile_name, env)?;
    let from_profile = profile.settings.iter().filter(|(key, _)| {
        let known = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
        known.contains(&key.as_str()) || matches!(key.as_str(), "region" | "endpoint_url")
    });
    let from_profile =
        parse_settings(from_profile.map(|(key, value)| (key.clone(), value.clone())));
    let from_env = env.iter().filter(|(key, _)| key.starts_with("AWS_"));
    let from_env =
        parse_settings(from_env.map(|(key, value)| (key.to_ascii_lowercase(), value.clone())));
    let mut settings = S3Settings::new();
    // A profile named on the command line wins over the environment.
    if profile_name.is_some() {
        override_settings(&mut settings, from_env);
        override_settings(&mut settings, from_profile);
    } else {
        override_settings(&mut settings, from_profile);
        override_settings(&mut settings, from_env);
    }
    override_settings(&mut settings, parse_settings(option_pairs.into_iter()));
    Ok((settings, profile))
}

/// Parses the settings of one origin. Keys that S3 does not have are left out.
fn parse_settings(pairs: impl Iterator<Item = (String, String)>) -> S3Settings {
    let mut settings: S3Settings =
        pairs.filter_map(|(key, value)| Some((key.parse().ok()?, value))).collect();
    if let Some(region) = settings.remove(&Key::DefaultRegion) {
        settings.entry(Key::Region).or_insert(region);
    }
    settings
}

/// Adds the settings of `layer`. If `layer` has a part of the credentials, all older credentials
/// are removed. Endpoints are treated alike.
fn override_settings(settings: &mut S3Settings, layer: S3Settings) {
    const CREDENTIALS: [Key; 3] = [Key::AccessKeyId, Key::SecretAccessKey, Key::Token];
    const ENDPOINTS: [Key; 2] = [Key::Endpoint, Key::S3Endpoint];
    for group in [&CREDENTIALS[..], &ENDPOINTS[..]] {
        if group.iter().any(|key| layer.contains_key(key)) {
            group.iter().for_each(|key| drop(settings.remove(key)));
        }
    }
    settings.extend(layer);
}

/// Checks the endpoint, because the S3 client does not check it.
fn check_endpoint(url: &str) -> Result<()> {
    match Url::parse(url) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(()),
        _ => Err(Error::new(ErrorKind::Usage, "the S3 endpoint is not an http:// or https:// URL")
            .hint("Set AWS_ENDPOINT_URL to a URL such as http://localhost:9000.")),
    }
}

/// Checks that credentials are available. Without keys, the S3 client asks the metadata service of
/// a cloud machine. On other machines this service does not exist, and retries would take a minute
/// before an unclear error.
fn check_credentials(
    root: &str,
    settings: &S3Settings,
    profile: &AwsProfile,
    env: &Env,
) -> Result<()> {
    let has = |key: &Key| settings.contains_key(key);
    let skips_signature = settings.get(&Key::SkipSignature).is_some_and(|value| is_true(value));
    if skips_signature
        || has(&Key::AccessKeyId)
        || has(&Key::SecretAccessKey)
        || (has(&Key::WebIdentityTokenFile) && has(&Key::RoleArn))
        || has(&Key::ContainerCredentialsRelativeUri)
        || has(&Key::ContainerCredentialsFullUri)
    {
        return Ok(());
    }
    let missing = Error::new(ErrorKind::Source, format!("no credentials found for \"{root}\""));
    if profile.is_indirect() {
        let name = &profile.name;
        return Err(missing.hint(format!(
            "The profile \"{name}\" gets its keys by sign-in, from a role or from a program. Put \
             them into the environment first: `eval \"$(aws configure export-credentials \
             --profile {name} --format env)\"`."
        )));
    }
    let disabled = env.get("AWS_EC2_METADATA_DISABLED").is_some_and(|value| is_true(value));
    let has_proxy = has(&Key::Client(ClientConfigKey::ProxyUrl));
    let service = settings.get(&Key::MetadataEndpoint).map_or("http://169.254.169.254", |url| url);
    if disabled || !(has_proxy || accepts_connections(service)) {
        return Err(missing.hint(CREDENTIALS_HINT));
    }
    Ok(())
}

fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "on" | "yes" | "y" | "t")
}

/// Returns whether a server accepts connections at the host and port of `url`.
fn accepts_connections(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    let Ok(addresses) = (host.as_str(), port).to_socket_addrs() else { return false };
    addresses.take(2).any(|address| TcpStream::connect_timeout(&address, METADATA_WAIT).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(dir: &std::path::Path, pairs: &[(&str, &str)]) -> Env {
        std::fs::write(
            dir.join("credentials"),
            "[default]\naws_access_key_id=file\naws_secret_access_key=s\naws_session_token=t\n\
             [other]\naws_access_key_id=other\naws_secret_access_key=o\nregion=eu-north-1\n",
        )
        .unwrap();
        let mut env: Env =
            pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let path = dir.join("credentials").to_str().unwrap().to_owned();
        env.insert("AWS_SHARED_CREDENTIALS_FILE".into(), path);
        env.insert("AWS_CONFIG_FILE".into(), dir.join("none").to_str().unwrap().into());
        env
    }

    fn options_of(pairs: &[(&str, &str)]) -> SourceOptions {
        let store = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        SourceOptions { store, ..SourceOptions::default() }
    }

    #[test]
    fn credentials_of_different_origins_are_never_mixed() {
        let dir = tempfile::tempdir().unwrap();
        let env = env(
            dir.path(),
            &[("AWS_ACCESS_KEY_ID", "env"), ("AWS_SECRET_ACCESS_KEY", "e"), ("AWS_PAGER", "less")],
        );
        let (merged, _) = settings(&options_of(&[]), &env).unwrap();
        assert_eq!(merged[&Key::AccessKeyId], "env");
        assert!(!merged.contains_key(&Key::Token));
        let (merged, _) = settings(&options_of(&[("profile", "other")]), &env).unwrap();
        assert_eq!(merged[&Key::AccessKeyId], "other");
        assert_eq!(merged[&Key::Region], "eu-north-1");
        let options = options_of(&[
            ("profile", "other"),
            ("ACCESS_KEY_ID", "mine"),
            ("secret_access_key", "m"),
        ]);
        let (merged, _) = settings(&options, &env).unwrap();
        assert_eq!(merged[&Key::AccessKeyId], "mine");
        assert_eq!(merged[&Key::SecretAccessKey], "m");
    }

    #[test]
    fn an_endpoint_option_wins_over_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let env = env(
            dir.path(),
            &[("AWS_ENDPOINT_URL_S3", "http://a"), ("AWS_DEFAULT_REGION", "eu-west-3")],
        );
        let (merged, _) = settings(&options_of(&[]), &env).unwrap();
        assert_eq!(merged[&Key::S3Endpoint], "http://a");
        assert_eq!(merged[&Key::Region], "eu-west-3");
        let (merged, _) = settings(&options_of(&[("endpoint_url", "http://b")]), &env).unwrap();
        assert_eq!(merged[&Key::Endpoint], "http://b");
        assert!(!merged.contains_key(&Key::S3Endpoint));
    }

    #[test]
    fn an_endpoint_must_be_a_url() {
        for url in ["none", "localhost:9000", "ftp://h", "http://", ""] {
            assert_eq!(check_endpoint(url).unwrap_err().kind(), ErrorKind::Usage, "{url}");
        }
        check_endpoint("http://localhost:9000").unwrap();
    }

    #[test]
    fn missing_credentials_are_an_error_before_any_request() {
        let none = S3Settings::new();
        let env = Env::from([("AWS_EC2_METADATA_DISABLED".into(), "true".into())]);
        let profile = AwsProfile::default();
        let error = check_credentials("s3://b/", &none, &profile, &env).unwrap_err();
        assert_eq!(error.to_string(), "no credentials found for \"s3://b/\"");
        assert!(error.hint_text().unwrap().contains("AWS_SKIP_SIGNATURE=true"));
        let skip = S3Settings::from([(Key::SkipSignature, "TRUE".into())]);
        check_credentials("s3://b/", &skip, &profile, &env).unwrap();
        let nobody = "http://127.0.0.1:1".to_owned();
        let metadata = S3Settings::from([(Key::MetadataEndpoint, nobody)]);
        assert!(check_credentials("s3://b/", &metadata, &profile, &Env::new()).is_err());
        let mut role = AwsProfile { name: "corp".into(), ..AwsProfile::default() };
        role.settings.insert("role_arn".into(), "arn".into());
        let error = check_credentials("s3://b/", &none, &role, &env).unwrap_err();
        assert!(error.hint_text().unwrap().contains("--profile corp"));
    }
}
