//! A web server on loopback that records its requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The path and the headers of a request. Header names are in lower case.
#[derive(Debug, Clone)]
pub(crate) struct RecordedRequest {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl RecordedRequest {
    /// Returns the value of a header. The name must be in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the whole request as text.
    pub(crate) fn text(&self) -> String {
        format!("{self:?}")
    }
}

/// A response: status, additional headers, body.
pub(crate) type WebAnswer = (&'static str, String, String);

/// The server, which runs until the process ends.
pub(crate) struct RecordingServer {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl RecordingServer {
    pub(crate) fn start(
        handler: impl Fn(&RecordedRequest) -> WebAnswer + Send + Sync + 'static,
    ) -> RecordingServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<RecordedRequest>>>::default();
        let (shared, handler) = (Arc::clone(&asked), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (asked, handler) = (Arc::clone(&shared), Arc::clone(&handler));
                // A client may leave at any time.
                std::thread::spawn(move || drop(serve(&stream.unwrap(), &asked, &*handler)));
            }
        });
        RecordingServer { address, asked }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns the requests since the last call.
    pub(crate) fn take(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn serve(
    mut stream: &TcpStream,
    asked: &Mutex<Vec<RecordedRequest>>,
    handler: &dyn Fn(&RecordedRequest) -> WebAnswer,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    while let Some(line) = lines.next().transpose()?.filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let request = RecordedRequest { path, headers };
    asked.lock().unwrap().push(request.clone());
    let (status, headers, body) = handler(&request);
    let len = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    )
}
