//! A stream of changes to a table of orders: inserts, updates and deletes.
//!
//! Of five events, three update a row, one inserts a row and one deletes a row. An update or delete
//! always finds its row, and the key of an insert is always absent. So every contender must end
//! with the same table.

use crate::data::{GeneratedRows, NumberedRows, SeededRandom, put};

/// The statement that creates the table.
pub(super) const CREATE: &str = "create table orders (id bigint primary key, customer int, \
                                 status text, amount numeric(12, 2), updated timestamptz, \
                                 note text)";
/// The columns of the table, the key first, and their types.
pub(super) const COLUMNS: [(&str, &str); 6] = [
    ("id", "bigint"),
    ("customer", "int"),
    ("status", "text"),
    ("amount", "numeric"),
    ("updated", "timestamptz"),
    ("note", "text"),
];

const INSERT_PERCENT: f64 = 20.0;
const DELETE_PERCENT: f64 = 20.0;
const STATUS: [&str; 4] = ["new", "paid", "sent", "done"];

/// The values of a row in PostgreSQL's text format.
pub(super) type OrderRow = [String; 6];

/// A change to one row.
#[derive(Debug, Clone)]
pub(super) enum OrderEvent {
    Insert(OrderRow),
    Update(OrderRow),
    /// The key of the deleted row.
    Delete(String),
}

impl OrderEvent {
    pub(super) fn key(&self) -> &str {
        match self {
            OrderEvent::Insert(row) | OrderEvent::Update(row) => &row[0],
            OrderEvent::Delete(key) => key,
        }
    }

    /// Appends the event as JSON for `pgspate apply`, without a newline.
    pub(super) fn json(&self, table: &str, out: &mut Vec<u8>) {
        let op = match self {
            OrderEvent::Insert(_) => "insert",
            OrderEvent::Update(_) => "update",
            OrderEvent::Delete(_) => "delete",
        };
        put(out, format_args!("{{\"op\":\"{op}\",\"table\":\"{table}\","));
        match self {
            OrderEvent::Delete(key) => put(out, format_args!("\"key\":{{\"id\":{key}}}}}")),
            OrderEvent::Insert(row) | OrderEvent::Update(row) => {
                let [id, customer, status, amount, updated, note] = row;
                put(
                    out,
                    format_args!(
                        "\"row\":{{\"id\":{id},\"customer\":{customer},\"status\":\"{status}\",\
                         \"amount\":\"{amount}\",\"updated\":\"{updated}\",\"note\":\"{note}\"}}}}"
                    ),
                );
            }
        }
    }
}

/// Returns the table's rows before the first event: a row for each key below `keys`.
pub(super) fn start(keys: u64, seed: u64) -> impl GeneratedRows {
    NumberedRows::new(0..keys, move |key, out| {
        let row = row(key, &mut SeededRandom::at(seed, 50, key));
        put(out, format_args!("{}\n", row.join("\t")));
    })
}

/// Generates `count` events on a table of `keys` keys.
pub(super) fn events(count: u64, keys: u64, seed: u64) -> Vec<OrderEvent> {
    let mut random = SeededRandom::at(seed, 51, 0);
    let (mut live, mut gone): (Vec<u64>, Vec<u64>) = ((0..keys).collect(), Vec::new());
    let mut next = keys;
    (0..count)
        .map(|_| {
            let pick = random.share() * 100.0;
            if pick < DELETE_PERCENT && live.len() > 1 {
                let at = random.below(live.len() as u64) as usize;
                let key = live.swap_remove(at);
                gone.push(key);
                return OrderEvent::Delete(key.to_string());
            }
            if pick < DELETE_PERCENT + INSERT_PERCENT {
                // Half of the inserts use the key of a deleted row.
                let key = match random.percent(50.0) && !gone.is_empty() {
                    true => gone.swap_remove(random.below(gone.len() as u64) as usize),
                    false => {
                        next += 1;
                        next - 1
                    }
                };
                live.push(key);
                return OrderEvent::Insert(row(key, &mut random));
            }
            let key = live[random.below(live.len() as u64) as usize];
            OrderEvent::Update(row(key, &mut random))
        })
        .collect()
}

fn row(key: u64, random: &mut SeededRandom) -> OrderRow {
    let cents = random.below(10_000_000);
    [
        key.to_string(),
        random.below(50_000).to_string(),
        random.pick(&STATUS).to_owned(),
        format!("{}.{:02}", cents / 100, cents % 100),
        format!(
            "2026-{:02}-{:02} {:02}:{:02}:00+00",
            1 + random.below(12),
            1 + random.below(28),
            random.below(24),
            random.below(60)
        ),
        format!("order {key}"),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn updates_and_deletes_find_their_rows_and_have_their_shares() {
        let mut live: HashSet<String> = (0..500).map(|key: u64| key.to_string()).collect();
        let events = events(20_000, 500, 3);
        let mut counts = [0; 3];
        for event in &events {
            let key = event.key().to_owned();
            match event {
                OrderEvent::Insert(_) => {
                    assert!(live.insert(key));
                    counts[0] += 1;
                }
                OrderEvent::Update(_) => {
                    assert!(live.contains(&key));
                    counts[1] += 1;
                }
                OrderEvent::Delete(_) => {
                    assert!(live.remove(&key));
                    counts[2] += 1;
                }
            }
        }
        let near = |count: i32, percent: i32| (count / 200 - percent).abs() <= 1;
        assert!(near(counts[0], 20) && near(counts[1], 60) && near(counts[2], 20), "{counts:?}");
    }

    #[test]
    fn events_are_json_and_the_same_for_the_same_seed() {
        let text = |seed| {
            let mut out = Vec::new();
            for event in events(300, 50, seed) {
                event.json("pgspate_lab.orders", &mut out);
                out.push(b'\n');
            }
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
        for line in text(1).lines() {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(event["table"], "pgspate_lab.orders");
            let is_delete = event["op"] == "delete";
            assert_eq!(event["key"]["id"].is_u64(), is_delete);
            assert_eq!(event["row"]["id"].is_u64(), !is_delete);
        }
    }
}
