//! Converts errors of object stores into pgspate's, with a hint.
//!
//! The client's messages contain the service's XML response. The error code in the response decides
//! the message.

use object_store::Error as StoreError;

use super::Scheme;
use crate::source::remote::object_changed_error;
use crate::source::{root_cause, source_error};
use crate::{Error, ErrorKind};

/// Returns the error for a failed request about `name`.
pub(in crate::source) fn store_error(scheme: Scheme, name: &str, error: &StoreError) -> Error {
    if let StoreError::Precondition { .. } | StoreError::NotModified { .. } = error {
        return object_changed_error(name);
    }
    let text = root_cause(error);
    let code = xml_element(&text, "Code").unwrap_or_default();
    if let Some((message, hint)) = error_of_code(scheme, name, code, &text) {
        return with_hint(source_error(name, message), hint);
    }
    match error {
        StoreError::NotFound { .. } => {
            let hint =
                "Check the spelling of the key. Keys are case-sensitive and have no leading /.";
            source_error(name, format!("\"{name}\" does not exist")).hint(hint)
        }
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            access_denied_error(scheme, name, code)
        }
        StoreError::InvalidPath { .. } => {
            Error::new(ErrorKind::Usage, format!("\"{name}\" is not a supported key"))
                .hint("Keys with empty parts (//), `.` or `..` between slashes are not supported.")
                .because(text)
        }
        _ => {
            let summary = match xml_element(&text, "Message") {
                Some(message) if code.is_empty() => message.to_owned(),
                Some(message) => format!("{code}: {message}"),
                None => text.lines().next().unwrap_or_default().to_owned(),
            };
            let error =
                source_error(name, format!("could not read \"{name}\" from {}", service(scheme)));
            let hint = unreachable_hint(scheme, &text);
            with_hint(error, hint).because(summary)
        }
    }
}

fn with_hint(error: Error, hint: Option<&str>) -> Error {
    error.hint_if(hint)
}

/// Returns the message and the hint for a known error code of a service.
fn error_of_code(
    scheme: Scheme,
    name: &str,
    code: &str,
    text: &str,
) -> Option<(String, Option<&'static str>)> {
    let root = name.split('/').nth(2).unwrap_or(name);
    let region = "Set AWS_REGION to the region of the bucket.";
    let endpoint =
        "Check the bucket's name. For a store that is not Amazon's, set AWS_ENDPOINT_URL.";
    Some(match code {
        "NoSuchBucket" => {
            let hint = if scheme == Scheme::S3 { Some(endpoint) } else { None };
            (format!("bucket \"{root}\" does not exist"), hint)
        }
        "ContainerNotFound" => (format!("container \"{root}\" does not exist"), None),
        "InvalidAccessKeyId" => (
            format!("access to \"{name}\" was denied: the service does not know the access key"),
            Some(
                "Check AWS_ACCESS_KEY_ID. For a store that is not Amazon's, set AWS_ENDPOINT_URL.",
            ),
        ),
        "SignatureDoesNotMatch" => (
            format!(
                "access to \"{name}\" was denied: the secret key does not belong to the access key"
            ),
            Some("Check AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN for temporary keys."),
        ),
        "ExpiredToken" | "TokenRefreshRequired" | "InvalidToken" => (
            format!("access to \"{name}\" was denied: the credentials have expired"),
            Some("Renew the credentials, and set AWS_SESSION_TOKEN together with the new keys."),
        ),
        "RequestTimeTooSkewed" => (
            format!("access to \"{name}\" was denied: this machine's clock is wrong"),
            Some("Correct the clock. The signature of a request includes the time."),
        ),
        "PermanentRedirect"
        | "AuthorizationHeaderMalformed"
        | "IllegalLocationConstraintException" => {
            (format!("bucket \"{root}\" is in another region"), Some(region))
        }
        _ if text.contains("incorrectly configured region") => {
            (format!("bucket \"{root}\" is in another region"), Some(region))
        }
        _ => return None,
    })
}

/// Returns the error for a request that the credentials do not permit.
fn access_denied_error(scheme: Scheme, name: &str, code: &str) -> Error {
    let code = if code.is_empty() { String::new() } else { format!(" ({code})") };
    source_error(name, format!("access to \"{name}\" was denied{code}")).hint(match scheme {
        Scheme::S3 => {
            "Check that the credentials may read the object (s3:GetObject, and s3:ListBucket for \
             folders and patterns), and that AWS_PROFILE names the right account. Without \
             s3:ListBucket access to a missing key is denied, too."
        }
        Scheme::Gcs => {
            "Check that GOOGLE_APPLICATION_CREDENTIALS names an account that may read the object \
             (storage.objects.get, and storage.objects.list for folders and patterns)."
        }
        Scheme::Azure => {
            "Check AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or the signed-in identity. \
             The identity needs the role Storage Blob Data Reader."
        }
    })
}

/// Returns a hint if the error's text says that the service could not be reached.
fn unreachable_hint(scheme: Scheme, text: &str) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let signs = ["refused", "dns", "lookup", "connect", "timed out", "unreachable", "https only"];
    let is_unreachable = signs.iter().any(|sign| text.contains(sign));
    let certificate = text.contains("certificate");
    match scheme {
        _ if certificate => {
            Some("Install the system's CA certificates, or set SSL_CERT_FILE to a bundle.")
        }
        Scheme::S3 if is_unreachable => Some(
            "Check the network, and AWS_ENDPOINT_URL if the store is not Amazon's. An http:// \
             endpoint is used without TLS.",
        ),
        _ if is_unreachable => Some("Check the network and the endpoint."),
        _ => None,
    }
}

fn service(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => "S3",
        Scheme::Gcs => "Google Cloud Storage",
        Scheme::Azure => "Azure Blob Storage",
    }
}

/// Returns the text of the first XML element `name`.
fn xml_element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_found(body: &str) -> StoreError {
        StoreError::NotFound { path: "k".into(), source: body.into() }
    }

    #[test]
    fn the_error_code_decides_the_message() {
        let body = "Server returned non-2xx status code: 404 Not Found: \
                    <Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>";
        let error = store_error(Scheme::S3, "s3://b/k", &not_found(body));
        assert_eq!(error.to_string(), "bucket \"b\" does not exist");
        assert!(error.hint_text().unwrap().contains("AWS_ENDPOINT_URL"));
        let error = store_error(Scheme::S3, "s3://b/k", &not_found("404"));
        assert_eq!(error.to_string(), "\"s3://b/k\" does not exist");
    }

    #[test]
    fn an_unknown_error_code_is_quoted_in_one_line() {
        let body = "<Error><Code>Odd</Code><Message>very odd</Message></Error>";
        let error = StoreError::Generic { store: "S3", source: body.into() };
        let error = store_error(Scheme::Gcs, "gs://b/k", &error);
        assert_eq!(error.to_string(), "could not read \"gs://b/k\" from Google Cloud Storage");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "Odd: very odd");
    }
}
