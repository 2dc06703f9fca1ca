//! The clients of the examples and of the how-to pages.

use std::path::Path;
use std::process::Command;

use crate::scene::ServeScene;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns whether a program is installed.
fn has(program: &str) -> bool {
    let is_installed = Command::new(program).arg("--version").output().is_ok();
    if !is_installed {
        eprintln!("skipped: {program} is not installed");
    }
    is_installed
}

#[test]
fn the_client_for_node_writes_each_record_once() {
    if !has("node") {
        return;
    }
    let scene = ServeScene::new(&[]);
    let client = Path::new(ROOT).join("examples/serve_client.mjs");
    let args = [scene.process.address.as_str(), "account", "500", "50"];
    let output = Command::new("node").arg(&client).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("500 records in "), "{text}");
    assert_eq!(scene.value("select count(*) from account"), "500");
    // Another run has other keys, so that its records are refused.
    let again = Command::new("node").arg(&client).args(args).output().unwrap();
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("23505"));
    assert_eq!(scene.value("select count(*) from account"), "500");
}

#[test]
fn the_page_about_queues_runs() {
    if !has("python3") {
        return;
    }
    let sql = "create table event (id int primary key, text text not null)";
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("serve.sock");
    let listen = format!("unix:{}", socket.display());
    let scene = ServeScene::with_sql(sql, &["--table", "event", "--listen", &listen]);
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/how-to/write-from-a-queue.md"));
    let page = page.unwrap();
    let code = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let code = code.replace("/run/pgspate/serve.sock", socket.to_str().unwrap());
    let trial = "
class Message:
    def __init__(self, **body):
        self.body = body

messages = [Message(id=1, text='a'), Message(id=2), Message(id=1, text='again')]
aside = []
print(write(messages, lambda *it: aside.append(it)))
print([(message.body['id'], outcome['code']) for message, outcome in aside])
";
    let code = code + trial;
    let run = || {
        let output = Command::new("python3").args(["-c", &code]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(), "[True, True, True]\n[(2, '23502')]\n");
    let rows = scene.value("select string_agg(id || text, ',') from event");
    assert_eq!(rows, "1a");
    // A fault of the installation is no reason to acknowledge a message, nor to set it aside.
    scene.db.run("alter table event rename to moved");
    assert_eq!(run(), "[False, False, False]\n[]\n");
}
