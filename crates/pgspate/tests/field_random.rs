//! Generated spellings of values, compared with the server. Some match a regular expression, others
//! are mutations of known spellings.
//!
//! `PROPTEST_CASES` is the number of batches for each type.

#[path = "support/field_compare.rs"]
mod field_compare;
#[path = "support/field_server.rs"]
mod field_server;
#[path = "support/field_spellings.rs"]
mod field_spellings;

use field_compare::{Column, SESSIONS, TYPES, TYPES_SQL, session};
use field_server::FieldServer;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

/// The number of spellings in a batch.
const BATCH: usize = 400;

/// Regular expressions for spellings that are probably valid.
const SHAPES: &[&str] = &[
    "[-+]?[0-9]{1,20}",
    "[-+]?[0-9]{1,9}\\.[0-9]{0,9}",
    "[-+]?[0-9]{0,40}\\.[0-9]{1,40}",
    "-?[0-9]{1,6}\\.[0-9]{2}",
    "-?0{0,12}[0-9]{0,12}\\.0{0,12}[0-9]{1,12}",
    "-?[1-9]0{0,20}\\.0{0,20}[1-9]?0{0,5}",
    "[-+]?[0-9]{1,12}(\\.[0-9]{1,12})?[eE][-+]?[0-9]{1,3}",
    "-?[0-9]\\.[0-9]{1,20}e[-+]?[0-3]?[0-9]{1,2}",
    "[0-9]{4}-[01][0-9]-[0-3][0-9]",
    "[0-9]{4}-(0[1-9]|1[012])-(0[1-9]|[12][0-9]|3[01])",
    "[12][0-9]{3}-(0[1-9]|1[012])-(0[1-9]|[12][0-9])[ T]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]",
    "[0-9]{4}-(0[1-9]|1[012])-(0[1-9]|[12][0-9]) ([01][0-9]|2[0-4]):[0-5][0-9]:[0-5][0-9]\
     \\.[0-9]{1,12}(Z|[-+][01][0-9](:[0-5][0-9])?)?",
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[-+][01][0-9])?",
    "[0-9]{4,6}-[0-9]{1,2}-[0-9]{1,2}( BC)?",
    "[0-9]{4}[01][0-9][0-3][0-9]",
    "[012][0-9]{3}-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-5][0-9]:[0-6][0-9](\\.[0-9]{1,9})?",
    "[0-9]{4}-0[1-9]-[0-2][0-9][ T][0-2][0-9]:[0-5][0-9](:[0-5][0-9](\\.[0-9]{1,7})?)?\
     (Z| UTC| ?[-+][01][0-9](:?[0-6][0-9](:[0-6][0-9])?)?)?( BC)?",
    "[0-2]?[0-9]:[0-6]?[0-9](:[0-6]?[0-9](\\.[0-9]{0,12})?)?( ?[-+][01]?[0-9](:?[0-5][0-9])?)?",
    "-?[0-9]{1,3} (years?|mons?|weeks?|days?|hours?|mins?|secs?)\
     ( [-+]?[0-9]{1,4} (years?|mons?|weeks?|days?|hours?|mins?|secs?)){0,3}\
     ( [-+]?[0-9]{1,4}:[0-6][0-9](:[0-6][0-9](\\.[0-9]{1,8})?)?)?",
    "[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}\\.[0-9]{1,3}(/[0-9]{1,3})?",
    "([0-9a-f]{0,4}:){1,7}[0-9a-f]{0,4}(/[0-9]{1,3})?",
    "([0-9a-f]{1,4}:){0,6}:([0-9a-f]{1,4}:){0,3}[0-9a-f]{0,4}(/[0-9]{1,3})?",
    "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "\\{?([0-9a-f]{4}-?){8}\\}?",
    "\\\\x([0-9a-fA-F]{2}){0,10}",
    "[01]{0,12}",
    "\\{[-0-9]{1,3}(, ?(NULL|[-0-9]{1,3})){0,4}\\}",
    "\\{[^\\x00]{0,3}(,[ a-zé\"\\\\{}]{0,4}){0,3}\\}",
    "\\{(\"([^\"\\\\\\x00]|\\\\.){0,5}\"|[a-z ]{1,3})\
     (,(\"([^\"\\\\\\x00]|\\\\.){0,5}\"|NULL)){0,3}\\}",
    "\\{\\{[0-9],[0-9]\\}(,\\{[0-9](,[0-9]){1,2}\\}){0,2}\\}",
    "[\\[(]-?[0-9]{0,3}(\\.[0-9])?,-?[0-9]{0,4}[\\])]",
    "[\\[(]\"?2024-0[1-9]-[0-2][0-9]\"?,\"?2024-0[1-9]-[0-2][0-9]( 0[0-9]:00:00)?\"?[\\])]",
    "[a-zé \"\\\\,]{0,6}",
    "[\\[\\(][ab\"\\\\, ]{0,6}[\\]\\)]",
];

/// Generates a value of a shape, or an array or a range of two values.
fn shaped_spelling() -> impl Strategy<Value = Vec<u8>> {
    let two = select(SHAPES).prop_flat_map(|shape| {
        let value = || proptest::string::string_regex(shape).unwrap();
        (value(), value())
    });
    (two, 0..8u8).prop_map(|((a, b), wrapping)| {
        let quoted =
            |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let wrapped = match wrapping {
            0 => format!("{{{a},{b}}}"),
            1 => format!("{{{},NULL, {}}}", quoted(&a), quoted(&b)),
            2 => format!("[{a},{b})"),
            3 => format!("(\"{a}\",\"{b}\"]"),
            _ => a,
        };
        wrapped.into_bytes()
    })
}

/// Generates a spelling of a shape, or a known spelling, with up to two bytes changed.
fn spelling() -> impl Strategy<Value = Vec<u8>> {
    let known = select(field_spellings::all());
    let alphabet = select(b"0123456789.:-+eETZ {},\"\\/[]()abNntf\t\xc3".to_vec());
    let edits = prop_oneof![
        3 => Just(Vec::new()),
        1 => vec((any::<Index>(), 0..3u8, alphabet), 1..3),
    ];
    (prop_oneof![4 => shaped_spelling(), 1 => known], edits).prop_map(|(mut text, edits)| {
        for (at, kind, byte) in edits {
            let place = at.index(text.len() + 1);
            match (kind, text.get_mut(place)) {
                (1, Some(old)) => *old = byte,
                (2, Some(_)) => drop(text.remove(place)),
                _ => text.insert(place, byte),
            }
        }
        text
    })
}

/// Types that accept nearly all text. For these types, the known spellings suffice.
const TAKES_ALL: &[&str] = &[
    "text",
    "varchar",
    "varchar(3)",
    "char(4)",
    "bpchar",
    "json",
    "jsonb",
    "pg_temp.mood",
    "pg_temp.code",
    "pg_temp.feeling",
    "pg_temp.mood[]",
    "pg_temp.code[]",
];

#[tokio::test]
async fn generated_spellings_are_stored_as_from_text() {
    let server = FieldServer::start();
    let cases: usize = std::env::var("PROPTEST_CASES").map_or(2, |n| n.parse().unwrap());
    let mut runner = TestRunner::new(Config::default());
    let batch = vec(spelling(), BATCH);
    for case in 0..cases {
        let client = server.connect().await;
        client.batch_execute(TYPES_SQL).await.unwrap();
        client.batch_execute(SESSIONS[case % SESSIONS.len()]).await.unwrap();
        let session = session(&client).await;
        let spellings = batch.new_tree(&mut runner).unwrap().current();
        for sql_type in TYPES.iter().filter(|sql_type| !TAKES_ALL.contains(sql_type)) {
            let column = Column::new(&client, sql_type, &session).await;
            let (_, wrong) = column.compare(&client, &spellings).await;
            assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
        }
    }
}
