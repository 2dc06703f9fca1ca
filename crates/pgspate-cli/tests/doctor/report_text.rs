//! Reports of `doctor`, compared word for word.

use insta::assert_snapshot;
use pgspate_embedded::testing;

use crate::run::{ask, session};
use crate::support::redact;
use crate::{doctor, wait_for_finding};

/// Returns the text without parts that differ between servers.
fn redact_server(text: &str) -> String {
    let version = regex_lite::Regex::new(r"PostgreSQL \S+( \([^)]*\))?, database \S+ role \S+;");
    // The first line may be wrapped.
    let (server, findings) = text.split_once("\n\n").unwrap();
    let text = format!("{}\n\n{findings}", server.replace('\n', " "));
    redact(&version.unwrap().replace(&text, "[SERVER];"))
}

#[test]
fn the_report_of_a_healthy_server_lists_the_checks() {
    let server = testing::server("fsync = on\nfull_page_writes = on\nsynchronous_commit = on");
    let (runtime, client) = session(&server.dsn());
    let sql = "create table t (id int primary key, v text); \
               insert into t select g, 'x' from generate_series(1, 20000) g";
    runtime.block_on(client.batch_execute(sql)).unwrap();
    runtime.block_on(client.batch_execute("vacuum (analyze) t")).unwrap();
    let run = doctor(&server.dsn(), "--watch 100ms");
    if ask(&server.dsn(), "show server_version_num").as_str() < "140000" {
        // This server does not report the composition of its WAL. It reports everything else.
        assert_eq!(run.stdout.matches("cannot see").count(), 3, "{}", run.stdout);
        assert!(run.stdout.contains("25 checks found nothing: "), "{}", run.stdout);
        assert_eq!(run.status, Some(0), "{}", run.stdout);
        return;
    }
    assert_snapshot!(redact_server(&run.stdout), @"
    [SERVER]; sampled for [TIME]

    28 checks found nothing: autovacuum, bloat, checkpoints, dead-rows,
    duplicate-indexes, foreign-key-indexes, fsync, full-page-images,
    full-page-writes, held-back, hot-updates, io-times, maintenance-work-mem,
    never-vacuumed, not-put-back, oversized-indexes, page-writes, partitioning,
    primary-keys, row-by-row, sequences, storage-waits, synchronous-commit,
    temporary-files, unlogged-tables, unused-indexes, wal-buffers, wal-compression
    ");
    assert_eq!(run.status, Some(0), "{}", run.stdout);
}

#[test]
fn the_report_of_findings_has_evidence_and_remedies() {
    let db = testing::database();
    db.run(
        "create table a (id int primary key); insert into a select generate_series(1, 1500); \
         create table b (id int, a int references a) with (autovacuum_enabled = off); \
         insert into b select g, g from generate_series(1, 1500) g; \
         create table seq (id smallserial); select setval('seq_id_seq', 32000)",
    );
    wait_for_finding(&db.dsn(), "primary-keys", "");
    let run = doctor(&db.dsn(), "--watch 100ms --table b");
    assert_eq!(run.status, Some(1));
    assert_snapshot!(redact_server(&run.stdout), @"
    [SERVER]; sampled for [TIME]

    note       foreign-key-indexes  public.b
               b_a_fkey references public.a: each delete in public.a would read
               1,500 rows of this table
               Each update of the referenced key reads them, too.
                 create index concurrently on public.b (a);

    note       primary-keys  public.b
               1,500 rows, 81.9 kB
               Without one, equal rows cannot be told apart, and updates and deletes
               cannot be replicated. Run this only if id identifies a row. Adding
               the constraint blocks readers and writers while it scans the table
               once, because id may be null.
                 create unique index concurrently b_pkey on public.b (id);
                 alter table public.b add primary key using index b_pkey;

    14 checks found nothing: bloat, dead-rows, duplicate-indexes, hot-updates,
    maintenance-work-mem, never-vacuumed, not-put-back, oversized-indexes,
    partitioning, row-by-row, sequences, storage-waits, unlogged-tables,
    unused-indexes
    ");
    let run = doctor(&db.dsn(), "--watch 100ms --table seq");
    assert_snapshot!(redact_server(&run.stdout), @"
    [SERVER]; sampled for [TIME]

    warning    sequences  public.seq_id_seq
               at 32,000 of 32,767 (97.7 %)
               Changing the column's type rewrites the table and blocks all readers
               and writers meanwhile.
                 alter table public.seq alter column id type bigint;
                 alter sequence public.seq_id_seq as bigint;

    15 checks found nothing: bloat, dead-rows, duplicate-indexes,
    foreign-key-indexes, hot-updates, maintenance-work-mem, never-vacuumed,
    not-put-back, oversized-indexes, partitioning, primary-keys, row-by-row,
    storage-waits, unlogged-tables, unused-indexes
    ");
}

#[test]
fn the_error_for_a_missing_table_shows_how_to_write_its_name() {
    let db = testing::database();
    let run = doctor(&db.dsn(), "--table nowhere");
    assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""));
    assert_snapshot!(run.stderr, @r#"
    error: there is no table nowhere

    hint: Write the name as in SQL, with its schema: `--table sales."Order"`.
    "#);
}

#[test]
fn a_view_is_refused_with_the_names_of_its_tables() {
    let db = testing::database();
    db.run(
        "create table t (id int); create table u (id int); \
            create view v as select t.id from t join u using (id)",
    );
    let run = doctor(&db.dsn(), "--table v");
    assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""));
    assert_snapshot!(run.stderr, @"
    error: v is a view, and doctor checks tables

    hint: Name a table. The view reads public.t, public.u.
    ");
}
