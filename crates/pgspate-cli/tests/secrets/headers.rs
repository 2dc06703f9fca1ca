//! Headers, and user names and passwords in URLs, reach only the server that they are for.

use std::sync::{Arc, Mutex};

use crate::recording_server::{RecordingServer, WebAnswer};
use crate::scene::SecretScene;

const CSV_ROWS: &str = "id,name\n1,a\n2,b\n";

/// Returns a response with two rows.
fn response_with_rows() -> WebAnswer {
    ("200 OK", "ETag: \"1\"\r\n".to_owned(), CSV_ROWS.to_owned())
}

/// Returns two servers with rows, and a URL to set later. The first server redirects requests for
/// `/moved` to that URL.
fn servers() -> (RecordingServer, RecordingServer, Arc<Mutex<String>>) {
    let place = Arc::<Mutex<String>>::default();
    let shared = Arc::clone(&place);
    let first = RecordingServer::start(move |request| match request.path.as_str() {
        path if path.starts_with("/moved") => {
            ("302 Found", format!("Location: {}\r\n", shared.lock().unwrap()), String::new())
        }
        _ => response_with_rows(),
    });
    (first, RecordingServer::start(|_| response_with_rows()), place)
}

#[test]
fn a_redirect_to_another_server_gets_no_header() {
    let scene = SecretScene::new();
    let (first, other, place) = servers();
    let dsn = scene.server.dsn();
    let load = |url: &str| {
        let args = ["load", url, "--table", "t", "--to", &dsn, "--replace", "--source-option"];
        let mut command = scene.command(&args);
        command.args(["header.X-Api-Key=m4rk", "--source-option", "header.Cookie=m4rk-too"]);
        let run = scene.run(&mut command);
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        assert_eq!(scene.value("select count(*) from t"), "2");
    };
    let user = first.url("/moved.csv?sig=m4rk").replace("http://", "http://u:m4rk-3@");
    // Redirects to another server, to the same server under another name, and to a URL without a
    // scheme.
    let by_name = format!("http://localhost:{}/t.csv", first.address.port());
    for to in [other.url("/t.csv"), by_name, format!("//{}/t.csv", other.address)] {
        place.lock().unwrap().clone_from(&to);
        for url in [&first.url("/moved.csv?sig=m4rk"), &user] {
            load(url);
            let (asked, elsewhere) = (first.take(), other.take());
            let moved: Vec<_> = asked.iter().filter(|it| it.path.starts_with("/moved")).collect();
            assert!(!moved.is_empty());
            for request in moved {
                assert_eq!(request.header("x-api-key"), Some("m4rk"));
                assert_eq!(request.header("cookie"), Some("m4rk-too"));
                assert_eq!(request.header("authorization").is_some(), *url == user);
            }
            let rest = asked.iter().filter(|it| !it.path.starts_with("/moved"));
            for request in elsewhere.iter().chain(rest) {
                crate::scene::assert_clean("a request to another server", &request.text());
                assert_eq!(request.header("authorization"), None, "{to}");
                assert_eq!(request.header("referer"), None, "{to}");
            }
        }
    }
    // A redirect within the server keeps the headers.
    for to in ["/t.csv".to_owned(), first.url("/t.csv")] {
        place.lock().unwrap().clone_from(&to);
        load(&user);
        let asked = first.take();
        let found = asked.iter().filter(|it| it.path == "/t.csv");
        let found: Vec<_> = found.map(|it| it.header("x-api-key")).collect();
        assert!(!found.is_empty() && found.iter().all(|it| *it == Some("m4rk")), "{asked:?}");
        assert!(asked.iter().all(|it| it.header("authorization").is_some()), "{asked:?}");
        assert!(asked.iter().all(|it| it.header("referer").is_none()), "{asked:?}");
    }
    scene.assert_no_secret_left();
}

#[test]
fn endless_and_invalid_redirects_are_refused() {
    let scene = SecretScene::new();
    let (first, _, place) = servers();
    for (to, expected) in [
        ("/moved.csv?sig=m4rk", "sent more than 10 redirects"),
        ("file:///etc/m4rk", "a redirect without a valid http:// or https:// URL"),
        ("", "sent more than 10 redirects"),
        ("http://[m4rk", "a redirect without a valid http:// or https:// URL"),
    ] {
        to.clone_into(&mut place.lock().unwrap());
        let url = first.url("/moved.csv?sig=m4rk");
        let args = ["load", &url, "--table", "t", "--to", &scene.server.dsn()];
        let run = scene.run(&mut scene.command(&args));
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}

#[test]
fn a_header_must_name_its_server_if_there_are_several() {
    let scene = SecretScene::new();
    let (first, other, _) = servers();
    let (one, two) = (first.url("/1.csv"), other.url("/2.csv"));
    let load = |options: &[&str]| {
        let mut command = scene.command(&["load", &one, &two, "--table", "t"]);
        command.args(["--to", &scene.server.dsn()]);
        for option in options {
            command.args(["--source-option", option]);
        }
        scene.run(&mut command)
    };
    let run = load(&["header.X-Key=m4rk"]);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("does not name its server, and the sources are on 2"),
        "{}",
        run.stderr
    );
    let hint = format!("'{}/:header.NAME=VALUE'", first.url(""));
    assert!(run.stderr.replace("\n      … ", " ").contains(&hint), "{}", run.stderr);
    assert!(first.take().is_empty() && other.take().is_empty());
    let option = format!("{}/:header.X-Key=m4rk", other.url(""));
    // Both servers have the same rows, so the second file violates the primary key.
    let run = load(&[&option]);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("duplicate key"), "{}", run.stderr);
    assert!(first.take().iter().all(|request| request.header("x-key").is_none()));
    let asked = other.take();
    assert!(!asked.is_empty());
    assert!(asked.iter().all(|request| request.header("x-key") == Some("m4rk")), "{asked:?}");
    scene.assert_no_secret_left();
}

#[test]
fn a_header_comes_from_a_file_or_a_variable() {
    let mut scene = SecretScene::new();
    let web = RecordingServer::start(|request| match request.header("authorization") {
        Some("Bearer m4rk=") => response_with_rows(),
        _ => ("401 Unauthorized", String::new(), "m4rk".to_owned()),
    });
    let file = scene.put_secret("token", "Bearer m4rk=\n");
    let (dsn, url) = (scene.server.dsn(), web.url("/t.csv"));
    let load = |option: &str, status: i32| {
        let args = ["load", &url, "--table", "t", "--to", &dsn, "--replace"];
        let mut command = scene.command(&args);
        command.args(["--source-option", option]).env("TOKEN", "Bearer m4rk=");
        let run = scene.run(&mut command);
        assert_eq!(run.status, Some(status), "{option}: {}", run.stderr);
        run.stderr
    };
    for option in [&format!("@{file}"), "env:TOKEN", "@token", "Bearer m4rk="] {
        load(&format!("header.authorization={option}"), 0);
    }
    let said = load("header.authorization=Bearer m4rk-2", 2);
    assert!(said.contains("was denied (HTTP status 401)"), "{said}");
    assert!(said.contains("header.authorization=@FILE"), "{said}");
    for (option, expected) in [
        ("header.authorization=env:NO_SUCH", "environment variable \"NO_SUCH\" is not set"),
        ("header.authorization=@no-such", "could not read file \"no-such\""),
        // This is the form that curl accepts.
        ("header.authorization: Bearer m4rk", "expected KEY=VALUE"),
        ("header.authorization: Bearer m4rk=", "is not a valid header"),
        ("authorization: Bearer m4rk=", "no source of this command has an option \"...\""),
        ("header.authorization=Bearer\nm4rk", "is not a valid header"),
    ] {
        let said = load(option, 2);
        assert!(said.contains(expected), "{option}: {said}");
    }
    scene.assert_no_secret_left();
}
