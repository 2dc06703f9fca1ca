//! Tests of syncs whose temporary space is too small or runs out.

use insta::assert_snapshot;
use pgspate_embedded::testing;

use crate::disk::Disk;
use crate::finish;
use crate::run::{ask, command, spawn};
use crate::support::redact;

#[test]
fn a_sync_fails_if_the_temporary_tablespace_is_too_small() {
    let server = testing::server("");
    let Some(disk) = Disk::mount(server.folder().join("small"), &server.data_folder()) else {
        println!("not tested: only root may mount a small disk");
        return;
    };
    let dsn = server.dsn();
    ask(&dsn, "create table t (id int primary key, note text); insert into t values (1, 'old')");
    ask(&dsn, &format!("create tablespace small location '{}'", disk.path().display()));
    ask(&dsn, "alter role postgres set temp_tablespaces = small");
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<_> = (0..100_000).map(|id| format!("{id},{:>200}\n", "a note")).collect();
    let args = ["sync", "t.csv", "--to", &dsn, "--scope", "all", "--quiet"];
    let sync = |text: &[u8], name: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        let args: Vec<_> =
            args.iter().map(|arg| if *arg == "t.csv" { name } else { arg }).collect();
        let args = [args, vec!["--table", "t", "--header", "no"]].concat();
        let run = finish(spawn(&mut command(folder.path(), &args)));
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert_eq!(ask(&dsn, "select string_agg(note, ' ') from t"), "old");
        // Newer servers also name the function that failed.
        let file = regex_lite::Regex::new(r#""pg_tblspc[^"]*"( with \w+\(\))?"#).unwrap();
        redact(&file.replace_all(&run.stderr, "[FILE]"))
    };
    let text = rows.concat();
    assert_snapshot!(sync(text.as_bytes(), "t.csv"), @"
    error: could not sync public.t
      caused by: staging and comparing need about 20 MiB of temporary space, but 8 MiB are
          … free

    hint: Set temp_tablespaces to a tablespace with more room, or sync fewer rows at a time
          … with `--scope`.
    ");
    // The decompressed size is unknown before staging.
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, text.as_bytes()).unwrap();
    let error = sync(&packed.finish().unwrap(), "t.csv.gz");
    // How much fits depends on the order in which the sessions extend their stages.
    let size = regex_lite::Regex::new(r"\b\d+ MiB").unwrap();
    assert_snapshot!(size.replace_all(&error, "[SIZE]"), @r#"
    error: could not sync public.t with "t.csv.gz"
      caused by: could not extend file [FILE]: No space left on device (SQLSTATE 53100)

    hint: The stage has [SIZE], and comparing may need another [SIZE]. Free space in the
          … tablespaces that temp_tablespaces names. If temp_tablespaces is not set, free
          … space in the database's own tablespace. The table is unchanged.
    "#);
}
