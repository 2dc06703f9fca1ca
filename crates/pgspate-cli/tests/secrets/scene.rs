//! A server that logs everything, a folder for commands, and a search for secrets in both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgspate_embedded::ThrowawayServer;
use pgspate_embedded::testing;
use tempfile::TempDir;

use crate::run::{Run, ask, command, finish, session, spawn};

/// The mark that every secret contains.
pub(crate) const MARK: &str = "m4rk";
/// The password of the role that commands run as.
pub(crate) const PASSWORD: &str = "m4rk-p@ss'word";

const CONF: &str = "log_statement = all\nlog_min_duration_statement = 0\nlog_connections = on\n\
                    log_line_prefix = '%a %u '\nlog_min_messages = debug1\nwal_level = logical";

/// The server and the folder of the commands. Both are removed when the value is dropped.
pub(crate) struct SecretScene {
    pub(crate) server: ThrowawayServer,
    folder: TempDir,
    /// Files with secrets that the test itself wrote.
    own_secrets: Vec<PathBuf>,
}

impl SecretScene {
    pub(crate) fn new() -> SecretScene {
        let server = testing::server(CONF);
        let quoted = PASSWORD.replace('\'', "''");
        // The server must not log the statement in which the test sets the password.
        let (runtime, client) = session(&server.dsn());
        for sql in [
            "set log_statement = 'none'; set log_min_duration_statement = -1",
            &format!("create role app login superuser password '{quoted}'"),
            "create table public.t (id int primary key, name text)",
        ] {
            runtime.block_on(client.batch_execute(sql)).unwrap();
        }
        let scene = SecretScene {
            server,
            folder: TempDir::with_prefix("pgspate-").unwrap(),
            own_secrets: vec![],
        };
        scene.put("good.csv", "id,name\n1,a\n2,b\n");
        scene.put("bad.csv", "id,name\n3,c\nx,d\n");
        scene.put(
            "good.json",
            "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":7,\"name\":\"g\"}}\n",
        );
        scene.put("bad.json", "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":\"x\"}}\n");
        scene
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file into the folder.
    pub(crate) fn put(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Writes a file with a secret into the folder. Only its owner may read the file.
    pub(crate) fn put_secret(&mut self, name: &str, content: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.put(name, content);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let text = path.to_str().unwrap().to_owned();
        self.own_secrets.push(path);
        text
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        command(self.folder(), args)
    }

    /// Runs a command. Its output must not contain the mark.
    #[track_caller]
    pub(crate) fn run(&self, command: &mut Command) -> Run {
        let run = finish(spawn(command));
        let said = format!("{}{}", run.stdout, run.stderr);
        assert_clean("the command's output", &said);
        run
    }

    /// Returns the value that a query returns.
    pub(crate) fn value(&self, sql: &str) -> String {
        ask(&self.server.dsn(), sql)
    }

    /// Fails if the mark is in the folder's files, in a table of the user or of the ledger, or in
    /// the server's log.
    #[track_caller]
    pub(crate) fn assert_no_secret_left(&self) {
        let mut folders = vec![self.folder().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if !self.own_secrets.contains(&path) {
                    let content = fs::read(&path).unwrap();
                    assert_clean(&path.display().to_string(), &String::from_utf8_lossy(&content));
                }
            }
        }
        let tables = "select string_agg(format('%I.%I', schemaname, tablename), ' ') \
                      from pg_tables where schemaname in ('pgspate', 'public')";
        let tables = self.value(tables);
        for table in tables.split_whitespace() {
            let rows = self.value(&format!("select string_agg(it::text, ' ') from {table} it"));
            assert_clean(table, &rows);
        }
        let log = fs::read(self.server.log()).unwrap();
        assert_clean("the server's log", &String::from_utf8_lossy(&log));
    }
}

/// Fails if a text contains the mark, also in base64.
#[track_caller]
pub(crate) fn assert_clean(what: &str, text: &str) {
    // Base64 writes "m4rk" in three ways, depending on its offset in a group of three bytes.
    for mark in [MARK, "bTRya", "00cm", "tNHJr"] {
        if let Some(at) = text.find(mark) {
            let from = text[..at].rfind('\n').map_or(0, |at| at + 1);
            let line = text[from..].lines().next().unwrap_or_default();
            panic!("{what} holds a secret: {line}");
        }
    }
}
