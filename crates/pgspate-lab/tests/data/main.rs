//! Generated data on a real server: the rows fit their tables, and have the sizes that the data set
//! states.

use pgspate_embedded::testing;
use pgspate_lab::data::{NumberedRows, accounts, copy, imdb, meters, tpch};
use tokio_postgres::{Client, NoTls};

/// Runs `work` in a new session, and then closes the session.
fn with_client<T>(dsn: &str, work: impl AsyncFnOnce(&Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        let done = work(&client).await;
        drop(client);
        connection.await.unwrap().unwrap();
        done
    })
}

async fn query_number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[test]
fn imdb_shaped_rows_fit_their_tables_and_keys() {
    let database = testing::database();
    with_client(&database.dsn(), async |client| {
        for table in &imdb::TABLES {
            client.batch_execute(table.create).await.unwrap();
            let rows = copy(client, table.name, &mut *table.all(0.0002, 1)).await.unwrap();
            assert_eq!(rows, table.rows_at(0.0002), "{}", table.name);
            for index in table.indexes {
                client.batch_execute(index).await.unwrap();
            }
        }
        // Every principal must refer to an existing title and an existing person.
        let lost = "select count(*) from title_principals p \
                    left join title_basics t using (tconst) left join name_basics n using (nconst) \
                    where t.tconst is null or n.nconst is null";
        assert_eq!(query_number(client, lost).await, 0);
    });
}

#[test]
fn accounts_and_transactions_have_the_published_row_sizes_and_indexes() {
    let database = testing::database();
    with_client(&database.dsn(), async |client| {
        let rows = accounts::BankAccounts::new(1);
        for (table, indexes) in accounts::TABLES.iter().zip([1, 4]) {
            client.batch_execute(&table.create("")).await.unwrap();
            let mut some = NumberedRows::new(1..2001, |id, out| rows.text(*table, id, 500, out));
            assert_eq!(copy(client, table.name(), &mut some).await.unwrap(), 2000);
            let stored = format!("select avg(pg_column_size(t))::int8 from {} t", table.name());
            let bytes = query_number(client, &stored).await.unsigned_abs();
            let near = table.row_bytes() - 20..table.row_bytes() + 20;
            assert!(near.contains(&bytes), "{}: {bytes} bytes", table.name());
            for columns in table.indexes() {
                client.batch_execute(&table.create_index(columns)).await.unwrap();
            }
            let counted =
                format!("select count(*) from pg_indexes where tablename = '{}'", table.name());
            assert_eq!(query_number(client, &counted).await, indexes);
        }
    });
}

#[test]
fn meters_fit_their_table() {
    let database = testing::database();
    with_client(&database.dsn(), async |client| {
        client.batch_execute(meters::CREATE).await.unwrap();
        let mut nights = meters::NightlyPredictions::new(3, 100, 1);
        nights.advance();
        assert_eq!(copy(client, meters::TABLE, &mut nights.text()).await.unwrap(), 300);
    });
}

/// The foreign keys: a table, its columns, the referenced table, and the referenced columns.
const TPCH_REFERENCES: [[&str; 4]; 9] = [
    ["lineitem", "l_orderkey", "orders", "o_orderkey"],
    ["lineitem", "l_partkey, l_suppkey", "partsupp", "ps_partkey, ps_suppkey"],
    ["orders", "o_custkey", "customer", "c_custkey"],
    ["partsupp", "ps_partkey", "part", "p_partkey"],
    ["partsupp", "ps_suppkey", "supplier", "s_suppkey"],
    ["customer", "c_nationkey", "nation", "n_nationkey"],
    ["supplier", "s_nationkey", "nation", "n_nationkey"],
    ["nation", "n_regionkey", "region", "r_regionkey"],
    ["lineitem", "l_suppkey", "supplier", "s_suppkey"],
];

#[test]
fn tpch_rows_fit_their_tables_and_keys() {
    let database = testing::database();
    with_client(&database.dsn(), async |client| {
        // These scale factors are below the benchmark's smallest, but keys must be unique.
        for factor in [tpch::factor(0.000_02), tpch::factor(0.0025)] {
            for table in &tpch::TABLES {
                client.batch_execute(table.create).await.unwrap();
                let rows = copy(client, table.name, &mut *table.all(factor, 1)).await.unwrap();
                assert_eq!(rows, table.rows_at(factor), "{}", table.name);
                client.batch_execute(&table.indexes.join("; ")).await.unwrap();
            }
            for [table, columns, to, key] in TPCH_REFERENCES {
                let sql = format!(
                    "alter table {table} add foreign key ({columns}) references {to} ({key})"
                );
                client.batch_execute(&sql).await.unwrap();
            }
            let bytes = "select avg(pg_column_size(l))::int8 from lineitem l";
            assert!((120..170).contains(&query_number(client, bytes).await));
            let names = tpch::TABLES.map(|table| table.name).join(", ");
            client.batch_execute(&format!("drop table {names}")).await.unwrap();
        }
    });
}

#[test]
fn the_error_for_a_refused_row_names_the_table() {
    let database = testing::database();
    with_client(&database.dsn(), async |client| {
        client.batch_execute("create table t (id int)").await.unwrap();
        let mut rows = NumberedRows::new(0..2, |_, out| out.extend_from_slice(b"word\n"));
        let error = copy(client, "t", &mut rows).await.unwrap_err();
        assert_eq!(error.to_string(), "could not fill t");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("invalid input syntax for type integer"), "{cause}");
    });
}
