//! Unique values that rows take from each other.

use crate::chance::TestRandom;
use crate::support::LoadCase;
use crate::{counts, sync};

/// Every way in which rows are staged, compared and written.
const WAYS: [&str; 4] = [
    "--scope all --read-ahead never",
    "--scope all --read-ahead always",
    "--scope-by kind --lanes 2",
    "--scope-by kind --transactions 2",
];

/// Syncs rows `id,kind,place` under a key of kind and id, which must work; then the table's rows.
#[track_caller]
fn synced(case: &LoadCase, rows: &str, way: &str) -> String {
    case.put("t.csv", format!("id,kind,place\n{rows}"));
    let run = sync(case, &format!("t.csv --key kind,id --quiet {way}"));
    assert_eq!(run.status, Some(0), "{way}: {}", run.stderr);
    case.value("select string_agg(concat_ws(',', id, place), ' ' order by kind, id) from t")
}

const COLUMNS: &str = "kind int not null, id int not null, place int";
const KEY: &str = "primary key (kind, id)";

#[test]
fn swaps_cycles_and_chains() {
    for unique in [
        "unique (kind, place)",
        "unique (kind, place), unique (kind, id, place), unique (place, kind)",
        "exclude using btree (kind with =, place with =)",
    ] {
        for way in WAYS {
            let case = LoadCase::new(&format!("create table t ({COLUMNS}, {KEY}, {unique})"));
            case.db.run("insert into t select 1, i, i from generate_series(1, 8) i");
            case.db.run("insert into t select 2, i, i from generate_series(1, 3) i");
            // A swap, a cycle of three, a chain that ends at a free value; and in the other kind
            // values of rows that go and come.
            let rows =
                "1,1,2\n2,1,1\n3,1,4\n4,1,5\n5,1,3\n6,1,7\n7,1,8\n8,1,9\n2,2,1\n3,2,2\n4,2,3\n";
            let expected = "1,2 2,1 3,4 4,5 5,3 6,7 7,8 8,9 2,1 3,2 4,3";
            let is_shared = unique == "unique (kind, place)";
            let way = if is_shared || !way.contains("scope-by") { way } else { "--scope all" };
            assert_eq!(synced(&case, rows, way), expected, "{unique} {way}");
            assert_eq!(counts(&case, &format!("t.csv --key kind,id {way}")), [0, 0, 0, 11]);
        }
    }
}

#[test]
fn indexes_over_expressions_and_parts_of_a_table() {
    for index in [
        "create unique index on t ((place + 0))",
        "create unique index on t (place) where id > 0",
        "create unique index on t (place) where place <> 100",
        "create unique index on t ((place % 1000), kind) include (id) where id > 0",
    ] {
        let case = LoadCase::new(&format!("create table t ({COLUMNS}, {KEY}); {index}"));
        case.db.run("insert into t select 1, i, i from generate_series(1, 5) i");
        let rows = "1,1,2\n2,1,1\n3,1,4\n4,1,5\n5,1,3\n";
        assert_eq!(synced(&case, rows, "--scope all"), "1,2 2,1 3,4 4,5 5,3", "{index}");
    }
}

#[test]
fn null_as_a_value_that_only_one_row_may_have() {
    let case = LoadCase::new(&format!("create table t ({COLUMNS}, {KEY})"));
    if case.value("select current_setting('server_version_num')::int >= 150000") != "t" {
        return;
    }
    case.db.run("create unique index on t (place) nulls not distinct");
    case.db.run("insert into t values (1, 1, null), (1, 2, 5)");
    assert_eq!(synced(&case, "1,1,5\n2,1,\n", "--scope all"), "1,5 2");
}

#[test]
fn what_the_source_does_not_have_stays() {
    let case = LoadCase::new(&format!(
        "create table t ({COLUMNS}, note text default 'new', n int generated always as identity, \
         twice int generated always as (place * 2) stored, {KEY}, unique (place)); \
         insert into t (kind, id, place, note) values (1, 1, 1, 'one'), (1, 2, 2, 'two')"
    ));
    assert_eq!(synced(&case, "1,1,2\n2,1,1\n", "--scope all"), "1,2 2,1");
    let rows = "select string_agg(concat_ws(',', id, note, n, twice), ' ' order by id) from t";
    assert_eq!(case.value(rows), "1,one,1,4 2,two,2,2");
}

#[test]
fn rows_of_partitions() {
    let case = LoadCase::new(&format!(
        "create table t ({COLUMNS}, {KEY}, unique (kind, place)) partition by list (kind); \
         create table t1 partition of t for values in (1); \
         create table t2 partition of t for values in (2); \
         insert into t values (1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 2, 2)"
    ));
    assert_eq!(synced(&case, "1,1,2\n2,1,1\n1,2,2\n2,2,1\n", "--scope all"), "1,2 2,1 1,2 2,1");
}

#[test]
fn rows_that_are_referred_to_are_not_deleted() {
    for action in ["cascade", "set null", "no action", "restrict"] {
        let case = LoadCase::new(&format!(
            "create table t ({COLUMNS}, {KEY}, unique (place)); \
             create table child (kind int, id int, \
                 foreign key (kind, id) references t on delete {action}); \
             insert into t values (1, 1, 1), (1, 2, 2), (1, 3, 3); \
             insert into child values (1, 1)"
        ));
        // One of two is enough.
        assert_eq!(synced(&case, "1,1,2\n2,1,1\n3,1,3\n", "--scope all"), "1,2 2,1 3,3");
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
fn rows_that_refer_to_their_own_table() {
    let case = LoadCase::new(&format!(
        "create table t ({COLUMNS}, {KEY}, above int, unique (place), \
             foreign key (kind, above) references t on delete cascade); \
         insert into t values (1, 1, 1, null), (1, 2, 2, 1), (1, 3, 3, 1), (1, 4, 4, 2)"
    ));
    assert_eq!(synced(&case, "1,1,3\n2,1,4\n3,1,1\n4,1,2\n", "--scope all"), "1,3 2,4 3,1 4,2");
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
fn random_exchanges() {
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
