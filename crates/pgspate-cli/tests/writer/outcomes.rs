//! What each caller learns, and what is in the table then.

use crate::run::wait_until;
use pgspate::ErrorKind;
use pgspate::writer::WriterOptions;

use crate::scene::{
    WriterScene, code, encode, into, record, returning, short_waits, sqlstate, value,
};

#[test]
fn records_of_many_callers_are_written_once_each() {
    let scene = WriterScene::new("create table t (id int primary key, name text)");
    let records: Vec<_> =
        (0..2000).map(|id| record(&[&id.to_string(), &format!("name {id}")])).collect();
    let outcomes = scene.insert_at_once(&into("t", &["id", "name"]), &records);
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().unwrap().rows == 1));
    let found = value(&scene.db, "select count(*) from t where name = 'name ' || id");
    assert_eq!(found, "2000");
    let report = scene.writer.report();
    assert_eq!((report.rows, report.refused, report.unknown), (2000, 0, 0));
    assert!(report.set_rows > 1000, "{report:?}");
}

#[test]
fn a_refused_record_does_not_touch_the_others() {
    let scene = WriterScene::new(
        "create table t (id int primary key, n numeric(4, 1) check (n >= 0), \
         word varchar(3) not null)",
    );
    let records: Vec<_> = (0..500)
        .map(|id| match id % 100 {
            7 => record(&["1", "1.25", "key"]),
            23 => record(&[&id.to_string(), "-1", "bad"]),
            42 => record(&[&id.to_string(), "12345", "bad"]),
            55 => record(&[&id.to_string(), "1", "long"]),
            71 => vec![Some(id.to_string()), None, None],
            84 => record(&["x", "1", "bad"]),
            _ => record(&[&id.to_string(), "1.25", "ok"]),
        })
        .collect();
    let outcomes = scene.insert_at_once(&into("t", &["id", "n", "word"]), &records);
    for (id, outcome) in outcomes.iter().enumerate() {
        let expected = match id % 100 {
            7 => "23505",
            23 => "23514",
            42 => "22003",
            55 => "22001",
            71 => "23502",
            84 => "22P02",
            _ => "",
        };
        // The first record with key 1 may be any of those that have the key.
        if id != 1 && expected != "23505" {
            assert_eq!(sqlstate(outcome), expected, "{id}: {outcome:?}");
        }
    }
    let with_key_1 = outcomes.iter().enumerate().filter(|(id, _)| id % 100 == 7 || *id == 1);
    assert_eq!(with_key_1.filter(|(_, outcome)| outcome.is_ok()).count(), 1);
    let expected = outcomes.iter().filter(|outcome| outcome.is_ok()).count().to_string();
    assert_eq!(value(&scene.db, "select count(*) from t"), expected);
    assert_eq!(value(&scene.db, "select count(*) from t where n <> 1.3"), "0");
}

#[test]
fn an_error_has_the_servers_words() {
    let scene = WriterScene::new("create table t (id int primary key)");
    let both = [record(&["1"]), record(&["1"])];
    let outcomes = scene.insert_at_once(&into("t", &["id"]), &both);
    let error = outcomes.iter().find_map(|outcome| outcome.as_ref().err()).unwrap();
    assert_eq!(
        error.chain(),
        "could not write to t: duplicate key value violates unique constraint \"t_pkey\" (SQLSTATE \
         23505): Key (id)=(1) already exists"
    );
}

#[test]
fn returned_columns_belong_to_their_record() {
    let scene = WriterScene::new(
        "create table t (id bigint generated always as identity, name text, twice text generated \
         always as (name || name) stored, at timestamptz default now())",
    );
    let records: Vec<_> = (0..1000).map(|nth| record(&[&nth.to_string()])).collect();
    let request = returning(into("t", &["name"]), &["id", "twice"]);
    let outcomes = scene.insert_at_once(&request, &records);
    for (nth, outcome) in outcomes.iter().enumerate() {
        let returned = &outcome.as_ref().unwrap().returned[0];
        let id = value(&scene.db, &format!("select id from t where name = '{nth}'"));
        assert_eq!(*returned, format!("{{\"id\":{id},\"twice\":\"{nth}{nth}\"}}"));
    }
    assert!(scene.writer.report().set_rows > 100);
}

#[test]
fn the_records_of_a_call_are_written_together_or_not_at_all() {
    let scene = WriterScene::new("create table t (id int primary key, at timestamp)");
    let call = |from: i32, to: i32, at: &str| {
        (from..to).map(|id| record(&[&id.to_string(), at])).collect::<Vec<_>>()
    };
    // The encoder leaves `now` to the server, so that call has a statement for each record.
    let calls = vec![
        call(0, 300, "2024-02-29"),
        call(290, 600, "2024-02-29"),
        call(600, 605, "now"),
        call(603, 640, "now"),
        Vec::new(),
    ];
    let outcomes = scene.call_at_once(&into("t", &["id", "at"]), calls);
    let written: Vec<u64> =
        outcomes.iter().map(|outcome| outcome.as_ref().map_or(0, |it| it.rows)).collect();
    assert_eq!(written[0] + written[1], if written[0] > 0 { 300 } else { 310 });
    assert_eq!(written[2] + written[3], if written[2] > 0 { 5 } else { 37 });
    assert_eq!(written[4], 0);
    let total = written.iter().sum::<u64>().to_string();
    assert_eq!(value(&scene.db, "select count(*) from t"), total);
}

#[test]
fn every_type_is_written_as_by_an_insert() {
    let scene = WriterScene::new(
        "create type mood as enum ('sad', 'happy'); create type pair as (a int, b text); \
         create domain positive as int check (value > 0); \
         create table t (id int, flag bool, mood mood, pair pair, many int[], words text[], \
         price money, span int4range, body jsonb, bits bit(3), n positive, addr inet, raw bytea)",
    );
    let columns = [
        "id", "flag", "mood", "pair", "many", "words", "price", "span", "body", "bits", "n",
        "addr", "raw",
    ];
    let values = [
        "7",
        "yes",
        "happy",
        "(1,\"a,b\")",
        "{1,NULL,3}",
        "{\"a b\",\"\"}",
        "$1.50",
        "[1,5)",
        "{\"a\": 1.00}",
        "101",
        "3",
        "10.0.0.1/8",
        "\\xdead",
    ];
    scene.insert_at_once(&into("t", &columns), &[record(&values)])[0].as_ref().unwrap();
    let literals: Vec<String> =
        values.iter().map(|text| format!("'{}'", text.replace('\'', "''"))).collect();
    scene.db.run(&format!("insert into t values ({})", literals.join(", ")));
    assert_eq!(value(&scene.db, "select count(distinct t::text) from t"), "1");
    // Without the types that only the server can read, the records are written as a set.
    let arrays = scene.shape(&into("t", &["id", "many"]));
    assert_eq!(arrays.alone_reason.as_deref(), Some("column \"many\" has arrays: integer[]"));
    let plain = ["id", "flag", "mood", "bits", "raw", "body", "n"];
    let shape = scene.shape(&into("t", &plain));
    assert_eq!(shape.alone_reason, None);
    let fields: Vec<&str> = plain
        .iter()
        .map(|name| values[columns.iter().position(|column| column == name).unwrap()])
        .collect();
    let records = vec![record(&fields); 200];
    for outcome in scene.insert_at_once(&into("t", &plain), &records) {
        outcome.unwrap();
    }
    let alike =
        "select count(*), count(distinct (id, flag, mood, bits, raw, body, n)::text) from t";
    assert_eq!(scene.db.query(alike)[0], [Some("202".to_owned()), Some("1".to_owned())]);
    assert!(scene.writer.report().set_rows > 0);
}

#[test]
fn tables_with_triggers_get_a_statement_for_each_record() {
    let sql = "create table t (id int primary key, seen bigint); \
         create function note() returns trigger language plpgsql as $$ begin \
           if new.id % 10 = 3 then return null; end if; \
           if new.id % 10 = 4 then raise exception 'no fours'; end if; \
           new.seen := txid_current(); return new; end $$; \
         create trigger note before insert on t for each row execute function note()";
    let scene = WriterScene::new(sql);
    let records: Vec<_> = (0..100).map(|id| record(&[&id.to_string()])).collect();
    let shape = scene.shape(&into("t", &["id"]));
    assert_eq!(shape.alone_reason.as_deref(), Some("the table has trigger \"note\""));
    for (id, outcome) in scene.insert_at_once(&into("t", &["id"]), &records).into_iter().enumerate()
    {
        match id % 10 {
            3 => assert_eq!(outcome.unwrap().rows, 0),
            4 => assert_eq!(code(&outcome.unwrap_err()), "P0001"),
            _ => assert_eq!(outcome.unwrap().rows, 1),
        }
    }
    assert_eq!(value(&scene.db, "select count(*) - count(distinct seen) from t"), "0");
}

#[test]
fn a_child_is_refused_before_its_parent_also_in_one_moment() {
    let scene = WriterScene::new(
        "create table t (id int primary key, parent int references t); insert into t values (1)",
    );
    let records: Vec<_> =
        (2..200).rev().map(|id| vec![Some(id.to_string()), Some((id - 1).to_string())]).collect();
    let call = scene.writer.clone();
    let request = into("t", &["id", "parent"]);
    let shape = scene.shape(&request);
    let rows = records
        .iter()
        .map(|record| encode(&shape, std::slice::from_ref(record)).unwrap())
        .collect();
    // The children come first, so only the last record has a parent.
    let outcomes = scene.runtime.block_on(call.insert_each(&shape, rows)).unwrap();
    let written = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!(written, 1);
    assert!(outcomes[..197].iter().all(|outcome| sqlstate(outcome) == "23503"));
}

#[test]
fn a_locked_key_delays_no_other_record() {
    let options = WriterOptions { connections: 4, ..short_waits() };
    let scene = WriterScene::with_options("create table t (id int primary key)", options);
    let (blocker, _held) = {
        let config = scene.db.dsn();
        let runtime = crate::scene::runtime();
        let client = runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&config, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute("begin; insert into t values (50)").await.unwrap();
            client
        });
        (client, runtime)
    };
    let writer = scene.writer.clone();
    let request = into("t", &["id"]);
    let waiting = {
        let (writer, request) = (writer.clone(), request.clone());
        scene
            .runtime
            .spawn(async move { crate::scene::call(&writer, &request, &[record(&["50"])]).await })
    };
    let others: Vec<_> =
        (0..300).filter(|id| *id != 50).map(|id| record(&[&id.to_string()])).collect();
    for outcome in scene.insert_at_once(&request, &others) {
        outcome.unwrap();
    }
    assert!(!waiting.is_finished());
    wait_until("the record waits for the lock", || scene.writer.report().lock_waits == 1);
    _held.block_on(blocker.batch_execute("rollback")).unwrap();
    assert_eq!(scene.runtime.block_on(waiting).unwrap().unwrap().rows, 1);
    assert_eq!(value(&scene.db, "select count(*) from t"), "300");
}

#[test]
fn a_full_queue_refuses_or_waits_as_asked() {
    let refusing = WriterOptions { queue_bytes: 8 << 10, refuses_when_full: true, ..short_waits() };
    let scene = WriterScene::with_options("create table t (id int)", refusing);
    let records: Vec<_> = (0..200).map(|id| record(&[&id.to_string()])).collect();
    let outcomes = scene.insert_at_once(&into("t", &["id"]), &records);
    let refused = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
    assert!(refused.clone().all(|error| error.kind() == ErrorKind::QueueFull));
    let written = (200 - refused.count()).to_string();
    assert_eq!(value(&scene.db, "select count(*) from t"), written);

    let waiting = WriterOptions { queue_bytes: 8 << 10, ..short_waits() };
    let scene = WriterScene::with_options("create table t (id int)", waiting);
    for outcome in scene.insert_at_once(&into("t", &["id"]), &records) {
        outcome.unwrap();
    }
}

/// Calls that need more than the queue has room for do not wait for each other.
#[test]
fn calls_larger_than_the_queue_are_written() {
    let options = WriterOptions { queue_bytes: 8 << 10, ..short_waits() };
    let scene = WriterScene::with_options("create table t (id int)", options);
    let request = into("t", &["id"]);
    let shape = scene.shape(&request);
    let calls = (0..4).map(|_| {
        let encode = |id: i32| encode(&shape, &[record(&[&id.to_string()])]).unwrap();
        let rows = (0..100).map(encode).collect();
        let (writer, shape) = (scene.writer.clone(), shape.clone());
        scene.runtime.spawn(async move { writer.insert_each(&shape, rows).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let outcomes = scene.runtime.block_on(call).unwrap().unwrap();
        assert!(outcomes.iter().all(Result::is_ok));
    }
    assert_eq!(value(&scene.db, "select count(*) from t"), "400");
}

#[test]
fn closing_writes_what_is_queued_and_ends_the_sessions() {
    let scene = WriterScene::new("create table t (id int)");
    let request = into("t", &["id"]);
    let shape = scene.shape(&request);
    let (writer, calls) = (scene.writer.clone(), 500);
    let callers: Vec<_> = (0..calls)
        .map(|id| {
            let rows = encode(&shape, &[record(&[&id.to_string()])]).unwrap();
            let (writer, shape) = (writer.clone(), shape.clone());
            scene.runtime.spawn(async move { writer.insert(&shape, rows).await })
        })
        .collect();
    scene.close();
    let mut written = 0;
    for caller in callers {
        match scene.runtime.block_on(caller).unwrap() {
            Ok(outcome) => written += outcome.rows,
            Err(error) => assert_eq!(error.to_string(), "the writer is closed"),
        }
    }
    assert_eq!(value(&scene.db, "select count(*) from t"), written.to_string());
    let left = "select count(*) from pg_stat_activity \
                where application_name = 'pgspate write' and datname = current_database()";
    // The server's processes end a moment later.
    wait_until("the sessions have ended", || value(&scene.db, left) == "0");
}

#[test]
fn a_changed_table_is_noticed() {
    let scene = WriterScene::new("create table t (id int primary key, name text)");
    let request = into("t", &["id", "name"]);
    let records = |from: i32| -> Vec<_> {
        (from..from + 300).map(|id| record(&[&id.to_string(), "x"])).collect()
    };
    let write = |from| {
        for outcome in scene.insert_at_once(&request, &records(from)) {
            outcome.unwrap();
        }
    };
    write(0);
    scene.db.run("alter table t add column more int default 5, alter column name type varchar");
    write(1000);
    write(2000);
    scene.db.run("alter table t drop column more; alter table t alter column id type bigint");
    write(3000);
    assert_eq!(value(&scene.db, "select count(*) from t"), "1200");
    scene.db.run("drop table t");
    let outcomes = scene.insert_at_once(&request, &[record(&["1", "x"])]);
    assert_eq!(sqlstate(&outcomes[0]), "42P01");
    scene.db.run("create table t (id int, name text)");
    write(0);
}

/// The column of a name has another place, and the column at a place another name.
#[test]
fn renamed_columns_get_the_values_of_their_names() {
    let scene = WriterScene::new("create table t (id int, user_id int, next_user_id bigint)");
    let request = into("t", &["id", "user_id"]);
    let write = |from: i32| {
        let records: Vec<_> =
            (from..from + 300).map(|id| record(&[&id.to_string(), &id.to_string()])).collect();
        for outcome in scene.insert_at_once(&request, &records) {
            outcome.unwrap();
        }
    };
    write(0);
    scene.db.run(
        "begin; alter table t rename user_id to old; \
         alter table t rename next_user_id to user_id; commit",
    );
    write(1000);
    assert_eq!(value(&scene.db, "select count(*) from t where id < 1000 and old = id"), "300");
    assert_eq!(value(&scene.db, "select count(*) from t where id > 999 and user_id = id"), "300");
    scene.db.run("alter table t drop column user_id, drop column old, add column user_id bigint");
    write(2000);
    assert_eq!(value(&scene.db, "select count(*) from t where id > 1999 and user_id = id"), "300");
    assert!(scene.writer.report().set_rows > 300);
}

/// A lock on the table makes callers wait, also those whose statement is not prepared yet.
#[test]
fn callers_wait_for_a_locked_table() {
    let options = WriterOptions { connections: 4, ..short_waits() };
    let scene = WriterScene::with_options("create table t (id int)", options);
    let shape = scene.shape(&into("t", &["id"]));
    let blocking = crate::scene::runtime();
    let blocker = blocking.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&scene.db.dsn(), tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("begin; lock table t").await.unwrap();
        client
    });
    let callers: Vec<_> = (0..100)
        .map(|id| {
            let rows = encode(&shape, &[record(&[&id.to_string()])]).unwrap();
            let (writer, shape) = (scene.writer.clone(), shape.clone());
            scene.runtime.spawn(async move { writer.insert(&shape, rows).await })
        })
        .collect();
    wait_until("a caller waits", || scene.writer.report().lock_waits > 0);
    blocking.block_on(blocker.batch_execute("commit")).unwrap();
    for caller in callers {
        scene.runtime.block_on(caller).unwrap().unwrap();
    }
    assert_eq!(value(&scene.db, "select count(*) from t"), "100");
}

#[test]
fn wrong_names_are_refused_with_a_hint() {
    let scene = WriterScene::new("create table account (id int, balance int)");
    let refusal = |table: &str, columns: &[&str]| {
        let asked = scene.runtime.block_on(scene.writer.shape(&into(table, columns)));
        let error = asked.unwrap_err();
        (error.chain(), error.hint_text().unwrap_or_default().to_owned())
    };
    let (message, hint) = refusal("acount", &["id"]);
    assert_eq!(message, "table acount does not exist");
    assert_eq!(hint, "Did you mean table account?");
    let (message, hint) = refusal("account", &["id", "balanse"]);
    assert_eq!(message, "column \"balanse\" of table public.account does not exist");
    assert_eq!(hint, "Did you mean column \"balance\"?");
    assert_eq!(refusal("account", &["id", "id"]).0, "column \"id\" is named twice");
    let catalog = refusal("pg_catalog.pg_class", &["relname"]).0;
    assert!(catalog.contains("belongs to the server's catalog"), "{catalog}");
}

/// The table has lost a column since its facts were read. Each half of a set would be refused like
/// the whole set, and be an error in the server's log.
#[test]
fn a_refused_statement_is_not_tried_again_in_halves() {
    let options = WriterOptions { connections: 1, ..short_waits() };
    let scene = WriterScene::with_options("create table t (id int)", options);
    let shape = scene.shape(&into("t", &["id"]));
    scene.db.run("alter table t rename id to other");
    let rows = (0..200).map(|id| encode(&shape, &[record(&[&id.to_string()])]).unwrap());
    let sent = scene.writer.insert_each(&shape, rows.collect());
    let outcomes = scene.runtime.block_on(sent).unwrap();
    assert!(outcomes.iter().all(|outcome| sqlstate(outcome) == "42703"));
    assert_eq!(scene.writer.report().refused_sets, 1);
    scene.close();
}
