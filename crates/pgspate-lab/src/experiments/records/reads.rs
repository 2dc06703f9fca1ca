//! Queries on a growing table, and the measurement of their times.

use std::time::Instant;

use pgspate::Result;
use pgspate::target::connect::Connection;

use super::super::sending::failed;
use crate::data::SeededRandom;
use crate::data::accounts::BankTable;

/// The number of timed runs of each query.
const TIMES: u64 = 5;

/// The names of the queries in results.
pub(super) const QUERIES: [&str; 4] = ["30 rows", "filtered", "count", "group by"];

/// The note in results of trials that ran each query once before timing. Older results lack it.
pub(super) const NOTE: &str = "Each query was asked once before it was timed.";

/// Returns the words for a query within a sentence.
pub(super) fn said(query: &str) -> &'static str {
    match query {
        "30 rows" => "the next 30 rows of a key",
        "filtered" => "the rows of a day",
        "count" => "a count of all rows",
        _ => "sums by group",
    }
}

/// Returns each query's mean time in milliseconds, after one run that is not timed. The first run
/// sets hint bits for the later ones. The table has keys up to `end`.
pub(super) async fn measure(
    connection: &Connection,
    table: BankTable,
    end: u64,
) -> Result<Vec<(&'static str, f64)>> {
    let (mut random, mut before) = (SeededRandom::at(end, 60, 0), SeededRandom::at(end, 60, 1));
    let mut means = Vec::new();
    let ask = async |sql: String| {
        let rows = connection.client.query(&sql, &[]).await;
        rows.map(drop).map_err(failed(connection, "read from the table"))
    };
    for query in QUERIES {
        ask(sql(table, query, end, &mut before)).await?;
        let mut seconds = 0.0;
        for _ in 0..TIMES {
            let sql = sql(table, query, end, &mut random);
            let began = Instant::now();
            ask(sql).await?;
            seconds += began.elapsed().as_secs_f64();
        }
        means.push((query, seconds * 1000.0 / TIMES as f64));
    }
    Ok(means)
}

fn sql(table: BankTable, query: &str, end: u64, random: &mut SeededRandom) -> String {
    let id = 1 + random.below(end);
    let day = 1 + random.below(360);
    match (table, query) {
        (BankTable::Transaction, "30 rows") => format!(
            "select * from transaction where account >= {id} order by account, booked limit 30"
        ),
        (BankTable::Transaction, "filtered") => format!(
            "select id, amount from transaction where booked >= '2025-{day:03} 00:00+00' \
             and booked < '2025-{:03} 00:00+00' and amount > 5000",
            day + 1
        ),
        (BankTable::Transaction, "count") => "select count(*) from transaction".to_owned(),
        (BankTable::Transaction, _) => {
            "select kind, count(*), sum(amount) from transaction group by kind".to_owned()
        }
        (BankTable::Account, "30 rows") => {
            format!("select * from account where id >= {id} order by id limit 30")
        }
        (BankTable::Account, "filtered") => format!(
            "select id, balance from account where opened >= '2025-{day:03} 00:00+00' \
             and opened < '2025-{:03} 00:00+00' and balance > 500000",
            day + 1
        ),
        (BankTable::Account, "count") => "select count(*) from account".to_owned(),
        (BankTable::Account, _) => {
            "select currency, count(*), sum(balance) from account group by currency".to_owned()
        }
    }
}
