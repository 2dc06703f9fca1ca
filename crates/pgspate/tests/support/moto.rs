//! A real S3 server on loopback: the Python program moto. The first test that needs moto installs
//! it into a virtual environment below the build folder.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

const MOTO: &str = "moto[server]==5.2.5";

/// A Python program that serves until its standard input closes. The input also closes when the
/// test process is killed.
const SERVE: &str = "\
import sys, os
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False)
server.start()
print('port', server.get_host_and_port()[1], flush=True)
sys.stdin.read()
os._exit(0)
";

/// Returns the Python of the virtual environment with moto. Installs moto if it is missing.
///
/// Several test processes may need moto at the same time. A file lock lets only one of them install
/// moto.
fn python_with_moto() -> PathBuf {
    let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../test-tools");
    fs::create_dir_all(&tools).unwrap();
    let lock = File::create(tools.join("moto.lock")).unwrap();
    lock.lock().unwrap();
    let (folder, mark) = (tools.join("moto"), tools.join("moto.installed"));
    let python = folder.join("bin/python3");
    if fs::read_to_string(&mark).is_ok_and(|version| version == MOTO) {
        return python;
    }
    let _ = fs::remove_dir_all(&folder);
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", MOTO]));
    fs::write(&mark, MOTO).unwrap();
    python
}

fn run(command: &mut Command) {
    let needs = "the S3 tests need python3 with venv and pip, and the Python package index";
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|e| panic!("{needs}; could not run {command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{needs}; {command:?}: {said}");
}

/// A running server. The server ends when its standard input closes, at the latest with the test
/// process.
pub(crate) struct Moto {
    pub(crate) endpoint: String,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Moto {
    pub(crate) fn start(env: &[(&str, &str)]) -> Moto {
        let mut child = Command::new(python_with_moto())
            .args(["-c", SERVE])
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| line.unwrap().strip_prefix("port ").map(str::to_owned));
        let port = port.expect("moto must print its port");
        Moto { endpoint: format!("http://127.0.0.1:{port}"), child, stdin }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        drop(self.stdin.take());
        self.child.wait().unwrap();
    }
}
