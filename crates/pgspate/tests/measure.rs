//! The server's counters, measured before and after known work.

use pgspate::measure::Measurement;
use pgspate_embedded::testing;
use tokio_postgres::{Client, NoTls};

const CREATE_TABLES: &str = "\
create table t (id int, part int, v text, primary key (id, part)) partition by list (part);
create table t1 partition of t for values in (1) with (fillfactor = 50);
create table t2 partition of t for values in (2)";

async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn oid(client: &Client, table: &str) -> u32 {
    let row = client.query_one("select $1::text::regclass::oid", &[&table]).await.unwrap();
    row.get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn work_on_partitions_counts_for_their_table() {
    let db = testing::database();
    db.run(CREATE_TABLES);
    let client = connect(&db.dsn()).await;
    let table = [oid(&client, "t").await];
    let before = Measurement::take(&client, &table).await;
    let work = "insert into t select g, 1, repeat('y', 100) from generate_series(1, 1000) g; \
                update t set v = 'z' where id = 7; delete from t where id > 990";
    client.batch_execute(work).await.unwrap();
    let after = Measurement::take(&client, &table).await;
    let difference = after.since(&before);
    let tables = difference.tables.as_ref().unwrap();
    let counted = &tables.counted;
    assert_eq!(counted.rows_inserted, Some(1000));
    assert_eq!((counted.rows_updated, counted.rows_updated_hot), (Some(1), Some(1)));
    assert_eq!(counted.rows_deleted, Some(10));
    assert_eq!(tables.before.rows_dead, Some(0));
    assert_eq!(tables.after.rows_dead, Some(11));
    assert!(tables.after.table_bytes > tables.before.table_bytes);
    assert!(tables.after.index_bytes > tables.before.index_bytes);
    assert!(counted.index_blocks_hit > Some(0) && counted.toast_blocks_read == Some(0));
    assert!(difference.seconds > 0.0);
    let rows = difference.database.rows_inserted.unwrap();
    assert!(rows >= 1000, "{rows}");
    let wal = difference.wal_bytes.unwrap();
    assert!(wal > 100_000, "{wal}");
    let bill = difference.bill(1e6).unwrap();
    assert_eq!(bill.writes, wal.div_ceil(4096));
    assert!(bill.cost >= bill.writes as f64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_measurement_has_the_counters_of_the_servers_version() {
    let db = testing::database();
    db.run(CREATE_TABLES);
    let client = connect(&db.dsn()).await;
    let table = [oid(&client, "t").await];
    let it = Measurement::take(&client, &table).await;
    let version = it.server_version;
    assert!(version >= 130_000);
    assert!(it.checkpoints.timed.is_some() && it.checkpoints.buffers_written.is_some());
    assert_eq!(it.checkpoints.buffers_by_sessions.is_some(), version < 170_000);
    assert_eq!(it.wal.bytes.is_some(), version >= 140_000);
    assert_eq!(it.wal.writes.is_some(), version >= 140_000);
    assert_eq!(it.wal.write_ms, None, "the server does not measure I/O times");
    assert_eq!(it.io.read_bytes.is_some(), version >= 160_000);
    assert_eq!(it.io_sessions.evictions.is_some(), version >= 160_000);
    assert_eq!(it.io_sessions.writes_normal.is_some(), version >= 160_000);
    assert_eq!(it.io_temporary.writes.is_some(), version >= 160_000);
    assert_eq!((it.io.read_ms, it.database.read_ms), (None, None));
    let (counted, state) = it.tables.unwrap();
    assert_eq!(counted.rows_inserted, Some(0));
    assert_eq!(counted.rows_updated_newpage.is_some(), version >= 160_000);
    assert_eq!((state.rows_live, state.table_bytes), (Some(0), Some(0)));
    assert_eq!(it.database.temp_bytes, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_that_the_role_cannot_see_are_none() {
    let db = testing::database();
    let role = db.name();
    db.run(&format!(
        "create table t (id int); create role \"{role}\" login; \
         revoke execute on function pg_current_wal_insert_lsn() from public; \
         revoke select on pg_stat_bgwriter from public"
    ));
    let own = connect(&db.dsn()).await;
    let table = [oid(&own, "t").await];
    let client = connect(&db.dsn()).await;
    client.batch_execute(&format!("set role \"{role}\"")).await.unwrap();
    let before = Measurement::take(&client, &table).await;
    assert_eq!(before.wal_position, None);
    assert_eq!(before.checkpoints.buffers_cleaned, None);
    assert_eq!(before.tables.as_ref().unwrap().1.table_bytes, Some(0));
    // The counters of a dropped table are none, not zero.
    own.batch_execute("drop table t").await.unwrap();
    let after = Measurement::take(&client, &table).await;
    let (counted, state) = after.tables.as_ref().unwrap();
    assert_eq!((counted.rows_inserted, state.table_bytes), (None, None));
    let difference = after.since(&before);
    assert_eq!((difference.wal_bytes, difference.bill(0.2)), (None, None));
    drop((own, client));
    db.run(&format!("drop role \"{role}\""));
}

#[tokio::test(flavor = "multi_thread")]
async fn differences_across_a_reset_are_none() {
    let db = testing::database();
    db.run("create table t (id int)");
    let client = connect(&db.dsn()).await;
    let before = Measurement::take(&client, &[]).await;
    client.batch_execute("select pg_stat_reset(); insert into t values (1)").await.unwrap();
    let after = Measurement::take(&client, &[]).await;
    assert_eq!(after.since(&before).database.rows_inserted, None);
    let later = Measurement::take(&client, &[]).await;
    assert_eq!(later.since(&after).database.rows_inserted, Some(0));
}
