//! Throwaway servers: starts, crashes, restarts, and complete removal.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pgspate_embedded::{ThrowawayServer, clone_data_folder, locate, silent, testing};
use tokio_postgres::NoTls;

/// Runs one query and returns the first value of its first row.
fn ask(dsn: &str, sql: &str) -> Result<String, tokio_postgres::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
        tokio::spawn(connection);
        for message in client.simple_query(sql).await? {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                return Ok(row.get(0).unwrap_or_default().to_string());
            }
        }
        Ok(String::new())
    })
}

/// Waits until the condition is true. Panics after a minute.
fn wait_for(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether any process has this folder in its command line.
fn is_in_use(folder: &Path) -> bool {
    let output = Command::new("ps").args(["-A", "-o", "args="]).output().unwrap();
    let folder = folder.to_str().unwrap();
    String::from_utf8_lossy(&output.stdout).contains(folder)
}

#[test]
fn an_installation_is_found() {
    let found = locate(&silent).unwrap();
    assert!(found.major >= 13);
    assert!(found.version.starts_with(&found.major.to_string()));
    assert!(found.program("initdb").is_file() && found.program("pg_ctl").is_file());
}

#[test]
fn a_server_accepts_connections_and_is_removed_completely() {
    let server = testing::server("work_mem = '7MB'");
    assert_eq!(ask(&server.dsn(), "show work_mem").unwrap(), "7MB");
    assert_eq!(ask(&server.dsn(), "show fsync").unwrap(), "off");
    let url = server.tcp_dsn_for("template1");
    assert_eq!(ask(&url, "select current_database()").unwrap(), "template1");
    let wrong = url.replace(server.password(), "wrong");
    let error = ask(&wrong, "select 1").unwrap_err();
    assert_eq!(error.code().unwrap().code(), "28P01");
    let (folder, pid) = (server.folder().to_path_buf(), server.pid().unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&server.socket_folder()), 0o700);
    assert_eq!(mode(&server.data_folder()), 0o700);
    assert_eq!(mode(&folder) & 0o066, 0);
    assert!(is_in_use(&folder));
    drop(server);
    assert!(!folder.exists());
    assert!(!Path::new(&format!("/proc/{pid}/cwd")).join("PG_VERSION").exists());
    wait_for("its processes end", || !is_in_use(&folder));
}

#[test]
fn a_stop_and_a_restart_keep_port_and_rows() {
    let server = testing::server("");
    ask(&server.dsn(), "create table t as select 42 as n").unwrap();
    server.stop().unwrap();
    assert_eq!(server.pid(), None);
    assert!(ask(&server.dsn(), "select 1").is_err());
    server.stop().unwrap();
    server.restart().unwrap();
    assert_eq!(ask(&server.dsn(), "select n from t").unwrap(), "42");
    assert_eq!(ask(&server.tcp_dsn_for("postgres"), "select n from t").unwrap(), "42");
}

#[test]
fn a_restart_waits_until_its_port_is_free() {
    let server = testing::server("");
    server.stop().unwrap();
    let taken = TcpListener::bind(("127.0.0.1", server.port())).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let log = || fs::read_to_string(server.log()).unwrap();
            wait_for("the server cannot bind its port", || log().contains("could not bind"));
            drop(taken);
        });
        server.restart().unwrap();
    });
    assert_eq!(ask(&server.dsn(), "select 1").unwrap(), "1");
}

#[test]
fn a_killed_server_recovers_committed_rows() {
    let server = testing::server("");
    ask(&server.dsn(), "create table t as select generate_series(1, 1000) as n").unwrap();
    for round in 0..2 {
        let pid = server.pid().unwrap();
        server.kill().unwrap();
        assert!(server.kill().is_err(), "a second kill must fail, because the server is dead");
        assert!(server.data_folder().join("postmaster.pid").exists());
        server.restart().unwrap();
        assert_ne!(server.pid(), Some(pid));
        assert_eq!(ask(&server.dsn(), "select count(*) from t").unwrap(), "1000", "{round}");
    }
    // A killed server is removed completely too.
    server.kill().unwrap();
    let folder = server.folder().to_path_buf();
    drop(server);
    assert!(!folder.exists());
}

#[test]
fn a_stale_process_id_of_another_running_process_is_ignored() {
    let server = testing::server("");
    server.kill().unwrap();
    let path = server.data_folder().join("postmaster.pid");
    // `sleep` runs as the server's user, so the server could take the process for another server.
    let owner = fs::metadata(&path).unwrap();
    let mut command = Command::new("sleep");
    if owner.uid() != fs::metadata("/proc/self").map_or(owner.uid(), |own| own.uid()) {
        std::os::unix::process::CommandExt::uid(&mut command, owner.uid());
    }
    let mut sleeper = command.arg("600").current_dir("/").spawn().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    fs::write(&path, format!("{}\n{rest}", sleeper.id())).unwrap();
    let restarted = server.restart();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    restarted.unwrap();
    assert_eq!(ask(&server.dsn(), "select 1").unwrap(), "1");
}

#[test]
fn hba_rules_and_files_of_the_builder_are_used() {
    let rules = "local all all trust\nhost all all 127.0.0.1/32 reject\n";
    let server = testing::builder().hba(rules).file("extra.key", "secret").start(&silent).unwrap();
    let path = server.data_folder().join("extra.key");
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "secret");
    assert_eq!(metadata.mode() & 0o777, 0o600);
    assert_eq!(metadata.uid(), fs::metadata(server.data_folder()).unwrap().uid());
    assert_eq!(ask(&server.dsn(), "select 1").unwrap(), "1");
    let error = ask(&server.tcp_dsn_for("postgres"), "select 1").unwrap_err();
    assert_eq!(error.code().unwrap().code(), "28000");
    let error = testing::builder().file("../outside", "").start(&silent).unwrap_err();
    assert_eq!(error.to_string(), "\"../outside\" is not a plain file name");
}

#[test]
fn the_error_for_an_invalid_setting_quotes_the_log() {
    let error = testing::builder().conf("no_such_setting = 1").start(&silent).unwrap_err();
    assert!(error.to_string().starts_with("could not start PostgreSQL"));
    let chain = error.chain();
    assert!(chain.contains("unrecognized configuration parameter \"no_such_setting\""), "{chain}");
}

#[test]
fn a_clone_is_independent_of_the_original() {
    let server = testing::server("");
    ask(&server.dsn(), "create table t as select 1 as n").unwrap();
    let temp = tempfile::tempdir().unwrap();
    let copy = temp.path().join("copy");
    let error = clone_data_folder(&server.data_folder(), &copy).unwrap_err();
    assert!(error.to_string().ends_with("its server is running"));
    assert!(error.hint_text().is_some() && !copy.exists());
    server.stop().unwrap();
    assert!(clone_data_folder(&server.data_folder(), &copy).unwrap() > 500);
    server.restart().unwrap();
    ask(&server.dsn(), "update t set n = 2").unwrap();
    let other = testing::builder().data_from(&copy).start(&silent).unwrap();
    assert_eq!(ask(&other.dsn(), "select n from t").unwrap(), "1");
    assert_eq!(ask(&other.tcp_dsn_for("postgres"), "select n from t").unwrap(), "1");
    assert_eq!(ask(&server.dsn(), "select n from t").unwrap(), "2");
}

#[test]
fn each_test_gets_a_database_that_is_dropped_at_the_end() {
    let (one, two) = (testing::database(), testing::database());
    assert_ne!(one.name(), two.name());
    one.run("create table t (n int); insert into t values (1), (null)");
    let rows = one.query("select n from t order by n");
    assert_eq!(rows, [vec![Some("1".to_string())], vec![None]]);
    assert_eq!(ask(&two.dsn(), "select to_regclass('t') is null").unwrap(), "t");
    let name = one.name().to_string();
    // An open session must not prevent the drop.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (_client, connection) = tokio_postgres::connect(&one.dsn(), NoTls).await.unwrap();
        tokio::spawn(connection);
        drop(one);
    });
    let sql = format!("select count(*) from pg_database where datname = '{name}'");
    assert_eq!(ask(&testing::server_dsn(), &sql).unwrap(), "0");
}

/// Not a test: the process that the next test kills.
#[test]
fn helper_that_waits_to_be_killed() {
    if std::env::var_os("PGSPATE_TEST_HELPER").is_none() {
        return;
    }
    let server = ThrowawayServer::start(&silent).unwrap();
    println!("\nfolder={}", server.folder().display());
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn the_watchdog_stops_the_server_of_a_killed_process() {
    use std::io::{BufRead, BufReader};
    let mut helper = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_that_waits_to_be_killed", "--nocapture"])
        .env("PGSPATE_TEST_HELPER", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    let folder = lines
        .map_while(Result::ok)
        .find_map(|line| Some(line.strip_prefix("folder=")?.to_string()))
        .unwrap();
    let folder = Path::new(&folder);
    assert!(folder.join("data/postmaster.pid").exists());
    helper.kill().unwrap();
    helper.wait().unwrap();
    wait_for("the folder is removed", || !folder.exists());
    wait_for("the server ends", || !is_in_use(folder));
}
