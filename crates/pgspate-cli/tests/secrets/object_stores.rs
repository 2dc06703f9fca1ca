//! Keys of object stores, given in the environment, in options and in a profile. The store repeats
//! the request in its errors.

use std::net::TcpListener;

use crate::recording_server::{RecordedRequest, RecordingServer, WebAnswer};
use crate::scene::SecretScene;

/// Returns the error of a store, which repeats the whole request.
fn refusal(status: &'static str, code: &str, request: &RecordedRequest) -> WebAnswer {
    let told = request.text().replace('<', " ");
    let body = format!(
        "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message>\
         <StringToSign>{told}</StringToSign><Resource>m4rk</Resource></Error>"
    );
    (status, String::new(), body)
}

/// Returns the error that belongs to the name of the requested object.
fn answer(request: &RecordedRequest) -> WebAnswer {
    match request.path.split('?').next().unwrap_or_default().rsplit('/').next() {
        Some("denied.csv") => refusal("403 Forbidden", "AccessDenied", request),
        Some("signature.csv") => refusal("403 Forbidden", "SignatureDoesNotMatch", request),
        Some("expired.csv") => refusal("400 Bad Request", "ExpiredToken", request),
        Some("odd.csv") => refusal("400 Bad Request", "Odd", request),
        Some("broken.csv") => ("400 Bad Request", String::new(), String::new()),
        _ => ("404 Not Found", String::new(), String::new()),
    }
}

const PATHS: [&str; 6] =
    ["denied.csv", "signature.csv", "expired.csv", "odd.csv", "broken.csv", "none.csv"];

#[test]
fn errors_of_s3_show_no_keys() {
    let mut scene = SecretScene::new();
    let web = RecordingServer::start(answer);
    let (dsn, endpoint) = (scene.server.dsn(), web.url(""));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{free}");
    let profile = "[default]\naws_access_key_id=K\naws_secret_access_key=m4rk\n\
                   aws_session_token=m4rk-token\n";
    let profile = scene.put_secret("credentials", profile);
    let token = scene.put_secret("token", "m4rk-token\n");
    let keys = |token: &str| format!("access_key_id=K secret_access_key=m4rk token={token}");
    let places: Vec<(String, Vec<(&str, &str)>)> = vec![
        (keys("m4rk-token"), vec![]),
        (keys(&format!("@{token}")), vec![]),
        (keys("env:TOKEN"), vec![("TOKEN", "m4rk-token")]),
        (
            String::new(),
            vec![
                ("AWS_ACCESS_KEY_ID", "K"),
                ("AWS_SECRET_ACCESS_KEY", "m4rk"),
                ("AWS_SESSION_TOKEN", "m4rk-token"),
            ],
        ),
        (String::new(), vec![("AWS_SHARED_CREDENTIALS_FILE", &profile)]),
    ];
    for (nth, (options, variables)) in places.iter().enumerate() {
        // An unreachable store is tried only with the first place, because that takes long.
        for endpoint in [&endpoint, &nobody].into_iter().take(if nth == 0 { 2 } else { 1 }) {
            for page in PATHS.iter().take(if endpoint == &nobody { 1 } else { PATHS.len() }) {
                let source = format!("s3://bucket/{page}");
                let mut command = scene.command(&["load", &source, "--table", "t", "--to", &dsn]);
                let endpoint = format!("endpoint={endpoint}");
                let options = options.split_whitespace();
                for option in options.chain([endpoint.as_str(), "region=us-east-1"]) {
                    command.args(["--source-option", option]);
                }
                command.envs(variables.iter().copied());
                let run = scene.run(&mut command);
                assert_eq!(run.status, Some(2), "{page}: {}", run.stderr);
            }
        }
        // All requests were made with the keys.
        let asked = web.take();
        let token =
            |request: &RecordedRequest| request.header("x-amz-security-token").map(str::to_owned);
        assert!(asked.iter().all(|it| token(it).as_deref() == Some("m4rk-token")), "{asked:?}");
        assert!(!asked.is_empty());
    }
    scene.assert_no_secret_left();
}

#[test]
fn errors_of_azure_show_no_signature() {
    let scene = SecretScene::new();
    let web = RecordingServer::start(answer);
    let (dsn, endpoint) = (scene.server.dsn(), web.url(""));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{free}");
    for endpoint in [&endpoint, &nobody] {
        for page in PATHS.iter().take(if endpoint == &nobody { 1 } else { PATHS.len() }) {
            let source = format!("az://bucket/{page}");
            let mut command = scene.command(&["load", &source, "--table", "t", "--to", &dsn]);
            let endpoint = format!("azure_storage_endpoint={endpoint}");
            command.args(["--source-option", "azure_storage_account_name=account"]);
            command.args(["--source-option", &endpoint]);
            command.env("AZURE_STORAGE_SAS_TOKEN", "sv=2022&sig=m4rk&se=2030");
            let run = scene.run(&mut command);
            assert_eq!(run.status, Some(2), "{page}: {}", run.stderr);
        }
    }
    let asked = web.take();
    assert!(!asked.is_empty() && asked.iter().all(|it| it.path.contains("sig=m4rk")), "{asked:?}");
    scene.assert_no_secret_left();
}
