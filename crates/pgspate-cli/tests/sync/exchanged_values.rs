//! Tests of rows that exchange values of unique columns.

use crate::support::LoadCase;
use crate::test_random::TestRandom;
use crate::{counts, sync};

/// Flags for every way in which rows are staged, compared and written.
const MODES: [&str; 4] = [
    "--scope all --read-ahead never",
    "--scope all --read-ahead always",
    "--scope-by kind --lanes 2",
    "--scope-by kind --transactions 2",
];

/// Syncs rows `id,kind,place` with the key `kind,id`. Returns `id` and `place` of the table's rows.
#[track_caller]
fn sync_and_list_places(case: &LoadCase, rows: &str, mode: &str) -> String {
    case.put("t.csv", format!("id,kind,place\n{rows}"));
    let run = sync(case, &format!("t.csv --key kind,id --quiet {mode}"));
    assert_eq!(run.status, Some(0), "{mode}: {}", run.stderr);
    case.value("select string_agg(concat_ws(',', id, place), ' ' order by kind, id) from t")
}

const COLUMNS: &str = "kind int not null, id int not null, place int";
const KEY: &str = "primary key (kind, id)";

#[test]
fn rows_exchange_unique_values_in_swaps_cycles_and_chains() {
    for unique in [
        "unique (kind, place)",
        "unique (kind, place), unique (kind, id, place), unique (place, kind)",
        "exclude using btree (kind with =, place with =)",
    ] {
        for mode in MODES {
            let case = LoadCase::new(&format!("create table t ({COLUMNS}, {KEY}, {unique})"));
            case.db.run("insert into t select 1, i, i from generate_series(1, 8) i");
            case.db.run("insert into t select 2, i, i from generate_series(1, 3) i");
            // Rows of kind 1 have a swap, a cycle of three, and a chain that ends at a free value.
            // In kind 2, one row is deleted, and a new row takes a value of another row.
            let rows =
                "1,1,2\n2,1,1\n3,1,4\n4,1,5\n5,1,3\n6,1,7\n7,1,8\n8,1,9\n2,2,1\n3,2,2\n4,2,3\n";
            let expected = "1,2 2,1 3,4 4,5 5,3 6,7 7,8 8,9 2,1 3,2 4,3";
            let is_shared = unique == "unique (kind, place)";
            let mode = if is_shared || !mode.contains("scope-by") { mode } else { "--scope all" };
            assert_eq!(sync_and_list_places(&case, rows, mode), expected, "{unique} {mode}");
            assert_eq!(counts(&case, &format!("t.csv --key kind,id {mode}")), [0, 0, 0, 11]);
        }
    }
}

#[test]
fn rows_exchange_values_of_expression_and_partial_indexes() {
    for index in [
        "create unique index on t ((place + 0))",
        "create unique index on t (place) where id > 0",
        "create unique index on t (place) where place <> 100",
        "create unique index on t ((place % 1000), kind) include (id) where id > 0",
    ] {
        let case = LoadCase::new(&format!("create table t ({COLUMNS}, {KEY}); {index}"));
        case.db.run("insert into t select 1, i, i from generate_series(1, 5) i");
        let rows = "1,1,2\n2,1,1\n3,1,4\n4,1,5\n5,1,3\n";
        assert_eq!(
            sync_and_list_places(&case, rows, "--scope all"),
            "1,2 2,1 3,4 4,5 5,3",
            "{index}"
        );
    }
}

#[test]
fn rows_exchange_a_null_that_is_unique() {
    let case = LoadCase::new(&format!("create table t ({COLUMNS}, {KEY})"));
    if case.value("select current_setting('server_version_num')::int >= 150000") != "t" {
        return;
    }
    case.db.run("create unique index on t (place) nulls not distinct");
    case.db.run("insert into t values (1, 1, null), (1, 2, 5)");
    assert_eq!(sync_and_list_places(&case, "1,1,5\n2,1,\n", "--scope all"), "1,5 2");
}

#[test]
fn columns_missing_from_the_source_keep_their_values() {
    let case = LoadCase::new(&format!(
        "create table t ({COLUMNS}, note text default 'new', n int generated always as identity, \
         twice int generated always as (place * 2) stored, {KEY}, unique (place)); \
         insert into t (kind, id, place, note) values (1, 1, 1, 'one'), (1, 2, 2, 'two')"
    ));
    assert_eq!(sync_and_list_places(&case, "1,1,2\n2,1,1\n", "--scope all"), "1,2 2,1");
    let rows = "select string_agg(concat_ws(',', id, note, n, twice), ' ' order by id) from t";
    assert_eq!(case.value(rows), "1,one,1,4 2,two,2,2");
}

#[test]
fn rows_of_partitions_exchange_unique_values() {
    let case = LoadCase::new(&format!(
        "create table t ({COLUMNS}, {KEY}, unique (kind, place)) partition by list (kind); \
         create table t1 partition of t for values in (1); \
         create table t2 partition of t for values in (2); \
         insert into t values (1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 2, 2)"
    ));
    assert_eq!(
        sync_and_list_places(&case, "1,1,2\n2,1,1\n1,2,2\n2,2,1\n", "--scope all"),
        "1,2 2,1 1,2 2,1"
    );
}

#[test]
fn referenced_rows_are_not_deleted() {
    for action in ["cascade", "set null", "no action", "restrict"] {
        let case = LoadCase::new(&format!(
            "create table t ({COLUMNS}, {KEY}, unique (place)); \
             create table child (kind int, id int, \
                 foreign key (kind, id) references t on delete {action}); \
             insert into t values (1, 1, 1), (1, 2, 2), (1, 3, 3); \
             insert into child values (1, 1)"
        ));
        // To swap two values, only one of the two rows needs to be deleted.
        assert_eq!(
            sync_and_list_places(&case, "1,1,2\n2,1,1\n3,1,3\n", "--scope all"),
            "1,2 2,1 3,3"
        );
        assert_eq!(case.rows("child"), ["(1,1)"]);
        case.db.run("insert into child values (1, 2)");
        case.put("t.csv", "id,kind,place\n1,1,1\n2,1,2\n3,1,3\n");
        let before = case.contents();
        let said = sync(&case, "t.csv --key kind,id --scope all --quiet").refusal();
        assert_eq!(case.contents(), before);
        assert!(said.contains("duplicate key value violates unique constraint"), "{said}");
        assert!(said.contains("hint: If rows exchange values: pgspate does not delete"), "{said}");
    }
}

#[test]
fn rows_that_refer_to_their_own_table_exchange_unique_values() {
    let case = LoadCase::new(&format!(
        "create table t ({COLUMNS}, {KEY}, above int, unique (place), \
             foreign key (kind, above) references t on delete cascade); \
         insert into t values (1, 1, 1, null), (1, 2, 2, 1), (1, 3, 3, 1), (1, 4, 4, 2)"
    ));
    assert_eq!(
        sync_and_list_places(&case, "1,1,3\n2,1,4\n3,1,1\n4,1,2\n", "--scope all"),
        "1,3 2,4 3,1 4,2"
    );
}

#[test]
fn a_value_that_another_row_keeps_is_refused() {
    let case = LoadCase::new(&format!("create table t ({COLUMNS}, {KEY}, unique (place))"));
    case.db.run("insert into t values (1, 1, 1), (1, 2, 2), (2, 1, 3)");
    case.put("t.csv", "id,kind,place\n1,1,2\n2,1,3\n");
    let before = case.contents();
    let said = sync(&case, "t.csv --key kind,id --scope-by kind --quiet").refusal();
    assert_eq!(case.contents(), before);
    assert!(said.contains("Key (place)=(") && said.contains("already exists"), "{said}");
}

#[test]
fn random_exchanges_of_unique_values_succeed() {
    for seed in 1..12 {
        let mut chance = TestRandom::new(seed);
        let case = LoadCase::new(&format!(
            "create table t ({COLUMNS}, other text not null, {KEY}, unique (place), \
             unique (other, place), unique (other)); \
             insert into t select 1, i, i, 'v' || i from generate_series(1, 20) i"
        ));
        let mut shuffled = |from: usize| {
            let mut all: Vec<usize> = (from..from + 20).collect();
            for last in (1..20).rev() {
                all.swap(last, chance.among(0..=last as u64) as usize);
            }
            all
        };
        let (places, others) = (shuffled(1 + (seed as usize % 3)), shuffled(1));
        let rows = (0..20).map(|nth| format!("{},1,{},v{}\n", nth + 1, places[nth], others[nth]));
        case.put("t.csv", format!("id,kind,place,other\n{}", rows.collect::<String>()));
        let run = sync(&case, "t.csv --key kind,id --scope all --quiet");
        assert_eq!(run.status, Some(0), "seed {seed}: {}", run.stderr);
        assert_eq!(counts(&case, "t.csv --key kind,id --scope all"), [0, 0, 0, 20], "seed {seed}");
    }
}
