//! A process with Debezium's engine. It writes the records of several connectors to files.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::run::PATIENCE;

/// Returns the folder that `make test-debezium` built, or `None` in a plain test run.
pub(crate) fn engine_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("PGSPATE_TEST_DEBEZIUM")?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    assert!(folder.join("lib").exists(), "{} has no lib/", folder.display());
    Some(folder)
}

/// A connector's name and settings.
pub(crate) struct ConnectorConfig {
    pub(crate) name: String,
    pub(crate) settings: Vec<(String, String)>,
}

/// The engine's process, which is killed when the value is dropped.
pub(crate) struct DebeziumEngine {
    child: Child,
    said: Receiver<String>,
    log: PathBuf,
}

impl DebeziumEngine {
    /// Starts the connectors. Each connector writes to the file of its name in `folder`.
    pub(crate) fn start(
        built: &Path,
        folder: &Path,
        connectors: &[&ConnectorConfig],
    ) -> DebeziumEngine {
        let log = folder.join("engine.log");
        let mut command = Command::new("java");
        command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn").arg("-Xmx1g").arg("-cp");
        let jars = format!("{0}/records-1.jar:{0}/lib/*", built.display());
        command.arg(jars).arg("Records");
        for connector in connectors {
            let file = folder.join(format!("{}.properties", connector.name));
            let mut settings = File::create(&file).unwrap();
            let records = folder.join(&connector.name);
            writeln!(settings, "name={}\nrecords.file={}", connector.name, records.display())
                .unwrap();
            for (name, value) in &connector.settings {
                writeln!(settings, "{name}={value}").unwrap();
            }
            command.arg(file);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let (sender, said) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        DebeziumEngine { child, said, log }
    }

    /// Waits until the connectors together have written `count` markers.
    pub(crate) fn wait_for_markers(&self, count: usize) {
        for _ in 0..count {
            match self.said.recv_timeout(PATIENCE) {
                Ok(line) if line.starts_with("marker ") => {}
                Ok(line) => panic!("{line}\n{}", self.end_of_log()),
                Err(error) => panic!("the engine wrote no marker: {error}\n{}", self.end_of_log()),
            }
        }
    }

    /// Ends the connectors and waits for the process.
    pub(crate) fn finish(mut self) {
        drop(self.child.stdin.take());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.end_of_log());
    }

    /// Returns the last lines of the log, without stack traces.
    fn end_of_log(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("\tat ")).collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for DebeziumEngine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
