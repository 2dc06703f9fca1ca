//! HTTP/2: many requests at the same time on one connection.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::run::wait_until;
use crate::scene::ServeScene;

#[test]
fn requests_on_one_connection_are_written_together() {
    let scene = ServeScene::new(&["--connections", "4"]);
    let statuses = Runtime::new().unwrap().block_on(async {
        let stream = TcpStream::connect(scene.process.authority()).await.unwrap();
        let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (client, connection) = shaken.unwrap();
        tokio::spawn(connection);
        let mut calls = JoinSet::new();
        for id in 0..300 {
            let mut client = client.clone();
            let body = format!(r#"{{"id":{},"name":"a"}}"#, id % 299);
            let request =
                hyper::Request::post(format!("{}/tables/account/rows", scene.process.address))
                    .header("content-type", "application/json")
                    .body(Full::new(Bytes::from(body)))
                    .unwrap();
            calls.spawn(async move {
                client.ready().await.unwrap();
                let answer = client.send_request(request).await.unwrap();
                let status = answer.status().as_u16();
                answer.into_body().collect().await.unwrap();
                status
            });
        }
        calls.join_all().await
    });
    // Each record is written once; of the two equal ones, one is refused.
    assert_eq!(statuses.iter().filter(|status| **status == 201).count(), 299);
    assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 1);
    assert_eq!(scene.value("select count(*) from account"), "299");
    let stats = scene.process.get("/stats").json();
    assert_eq!(stats["connections"], 2);
    // Fewer statements than records.
    assert!(stats["writer"]["set_rows"].as_u64() > Some(100), "{stats}");
}

#[test]
fn a_body_that_is_cut_off_without_an_error_is_refused() {
    let scene = ServeScene::new(&[]);
    Runtime::new().unwrap().block_on(async {
        let stream = TcpStream::connect(scene.process.authority()).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        for length in [None, Some("1000")] {
            let address = format!("{}/tables/note/rows", scene.process.address);
            let mut request =
                hyper::Request::post(address).header("content-type", "application/x-ndjson");
            if let Some(length) = length {
                request = request.header("content-length", length);
            }
            let mut client = client.clone().ready().await.unwrap();
            let sent = client.send_request(request.body(()).unwrap(), false).unwrap();
            let (_answer, mut body) = sent;
            body.send_data(Bytes::from("{\"text\":\"half\"}\n"), false).unwrap();
            // The data are sent before the reset only if they have arrived at the server.
            wait_until("the body has begun", || queued_bytes(&scene) > 0);
            body.send_reset(h2::Reason::NO_ERROR);
            wait_until("the body has ended", || queued_bytes(&scene) == 0);
        }
    });
    assert_eq!(scene.process.get("/stats").json()["statuses"]["400"], 2);
    assert_eq!(scene.value("select count(*) from note"), "0");
}

/// A refusal ends its own request, and no other one of the connection.
#[test]
fn a_refused_request_leaves_the_connection_alone() {
    let scene = ServeScene::new(&["--max-body", "100kB"]);
    Runtime::new().unwrap().block_on(async {
        let stream = TcpStream::connect(scene.process.authority()).await.unwrap();
        let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (mut client, connection) = shaken.unwrap();
        tokio::spawn(connection);
        let large = format!(r#"{{"text":"{}"}}"#, "a".repeat(200_000));
        let cases = [
            ("/tables/note/rows", large, 413),
            ("/tables/nothing/rows", r#"{"text":"a"}"#.to_owned(), 404),
            ("/tables/note/rows", r#"{"text":"a"}"#.to_owned(), 201),
        ];
        for (path, body, status) in cases {
            let request = hyper::Request::post(format!("{}{path}", scene.process.address))
                .header("content-type", "application/json")
                .body(Full::new(Bytes::from(body)))
                .unwrap();
            client.ready().await.unwrap();
            let answer = client.send_request(request).await.unwrap();
            assert_eq!(answer.status(), status, "{path}");
        }
    });
    assert_eq!(scene.value("select count(*) from note"), "1");
}

fn queued_bytes(scene: &ServeScene) -> u64 {
    scene.process.get("/stats").json()["queued_bytes"].as_u64().unwrap()
}
