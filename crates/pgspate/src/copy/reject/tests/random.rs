//! Compares a chunk of random rows with the same rows loaded one by one.

use super::*;

const TABLE: &str = "\
create table parent (id int primary key);
insert into parent select generate_series(0, 5);
create table t (
    id int primary key, v smallint check (v <> 3), s varchar(3) not null,
    p int references parent, q int unique deferrable initially deferred,
    r int4range, exclude using gist (r with &&));
create function odd() returns trigger language plpgsql as $$
begin
    if new.s = 'no' then raise exception 'no' using errcode = 'P0002'; end if;
    return new;
end $$;
create trigger odd before insert on t for each row execute function odd();";

const COLUMNS: [&str; 6] = ["id", "v", "s", "p", "q", "r"];

/// A generator of pseudo-random numbers; each run of the test gives the same numbers.
struct RandomNumbers(u64);

impl RandomNumbers {
    /// Returns a number from 0 to `limit - 1`.
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    /// Returns the first element, except for about `bad_percent` of 100 calls, which return another
    /// element.
    fn pick<'a>(&mut self, from: &[&'a str], bad_percent: u64) -> &'a str {
        match self.below(100) < bad_percent {
            true => from[1 + self.below(from.len() as u64 - 1) as usize],
            false => from[0],
        }
    }
}

/// Makes records in which about `bad_percent` of 100 fields are bad. Some rows are bad only because
/// of another row, such as a row with the same key.
fn make_records(numbers: &mut RandomNumbers, rows: u64, bad_percent: u64) -> Vec<Vec<u8>> {
    let record = |_| {
        let id = numbers.below(rows * (30 + bad_percent) / 30 + 1);
        let v = numbers.pick(&["1", "3", "x", "99999", "", "\"1\""], bad_percent);
        let s = numbers.pick(&["ok", "long", "no", "", "\"\"", "\"a\nb\"", "\\\\"], bad_percent);
        let p = numbers.pick(&["1", "9", "", "-1"], bad_percent);
        let q = numbers.below(rows * 20);
        let r = numbers.pick(&["", "\"[3,5)\"", "\"[4,9)\"", "empty", "\"[2,1]\""], bad_percent);
        let surplus = numbers.pick(&["", ",", ",,", "\u{1}"], bad_percent / 2);
        format!("{id},{v},{s},{p},{q},{r}{surplus}\n").into_bytes()
    };
    (0..rows).map(record).collect()
}

/// Loads the records one by one, as psql with `on_error_rollback` would. Returns the rejected rows'
/// ordinals and SQLSTATEs.
fn load_one_by_one(session: &RejectTestSession, records: &[Vec<u8>]) -> Vec<(u64, String)> {
    let client = &session.connection.client;
    let work = async {
        let mut refused = Vec::new();
        client.batch_execute("begin").await.unwrap();
        let statement = client.prepare("copy t from stdin (format csv)").await.unwrap();
        for (row, record) in (0..).zip(records) {
            let begin = "set constraints all immediate; savepoint one";
            client.batch_execute(begin).await.unwrap();
            let sink = client.copy_in::<_, Bytes>(&statement).await.unwrap();
            let mut sink = Box::pin(sink);
            sink.feed(Bytes::from(record.clone())).await.unwrap();
            if let Err(error) = sink.as_mut().finish().await {
                refused.push((row, error.code().unwrap().code().to_owned()));
                client.batch_execute("rollback to savepoint one").await.unwrap();
            }
            client.batch_execute("release savepoint one").await.unwrap();
        }
        refused
    };
    session.runtime.block_on(work)
}

#[test]
fn rejects_the_same_rows_as_loading_one_by_one() {
    let session = RejectTestSession::new(TABLE, &COLUMNS);
    let mut numbers = RandomNumbers(0x2545_f491_4f6c_dd1d);
    let table = "select t::text from t order by id";
    for (rows, bad_percent) in
        [(1, 30), (7, 20), (60, 0), (60, 2), (60, 10), (60, 40), (400, 1), (400, 8)]
    {
        for _ in 0..3 {
            let records = make_records(&mut numbers, rows, bad_percent);
            let expected = load_one_by_one(&session, &records);
            let written = session.query(table);
            session.run("rollback; begin");
            let result = session.write(&records.concat()).unwrap();
            let input = String::from_utf8(records.concat()).unwrap();
            assert_eq!(codes(&result), expected, "{input}");
            assert_eq!(session.query(table), written, "{input}");
            assert_eq!(result.rows_written, rows - expected.len() as u64);
            for reject in &result.rejects {
                assert_eq!(reject.record, records[reject.row as usize]);
            }
            session.run("rollback");
        }
    }
}
