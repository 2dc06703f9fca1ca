//! A file, a table to load it into, and what that table must hold afterwards.

use std::fmt::Write as _;
use std::fs;
use std::io::Cursor;
use std::process::Child;
use std::time::Duration;

use futures_util::SinkExt;
use pgspate_embedded::testing::{self, TestDb};
use tempfile::TempDir;

use crate::run::{ask, command, session, spawn};

/// Rows of the file: about 12 MB, three chunks.
pub(crate) const ROWS: u64 = 90_000;

/// A load may take this long, however slow the machine; then it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// No key, so that rows that come twice are seen rather than refused.
const TABLE: &str = "(id int8, name text, amount numeric, at timestamp, note text)";

/// Rows, ids, and a sum over all rows' content.
const FINGERPRINT: &str = "concat_ws(' ', count(*), count(distinct id), \
                           sum(hashtextextended(x::text, 0)::numeric))";

/// A database with the table `t`, empty, and the table `truth`, as `\copy` fills it.
pub(crate) struct Scene {
    folder: TempDir,
    /// The server itself, by no proxy.
    pub(crate) dsn: String,
    truth: String,
    /// The table's indexes, in full.
    shape: String,
    _db: Option<TestDb>,
}

/// What is dropped for a load and made again after it.
const INDEXES: &str = "\
alter table t add constraint t_key primary key (id), add constraint t_note unique (note, id);
create index t_name on t (name) where name <> ''; comment on index t_name is 'names';
create index t_amount on t (amount)";

const SHAPE: &str = "\
select coalesce(string_agg(concat_ws(' ', pg_get_indexdef(i.indexrelid), c.conname, c.contype,
                                     obj_description(i.indexrelid)), E'\\n'
                           order by indexrelid::regclass::text), '')
from pg_index i left join pg_constraint c on c.conindid = i.indexrelid
where i.indrelid = 't'::regclass";

impl Scene {
    /// In a database of its own on the tests' server.
    pub(crate) fn new() -> Scene {
        let db = testing::database();
        Scene::make(db.dsn(), Some(db))
    }

    /// The same with indexes on the table, which the load drops.
    pub(crate) fn indexed() -> Scene {
        let mut scene = Scene::new();
        scene.ask(INDEXES);
        scene.shape = scene.ask(SHAPE);
        scene
    }

    /// In the given database, of a server that the test may hurt.
    pub(crate) fn at(dsn: String) -> Scene {
        Scene::make(dsn, None)
    }

    fn make(dsn: String, db: Option<TestDb>) -> Scene {
        let folder = TempDir::with_prefix("pgspate-cli-").unwrap();
        let content = content();
        fs::write(folder.path().join("t.csv"), &content).unwrap();
        ask(&dsn, &format!("create table t {TABLE}; create table truth {TABLE}"));
        let (runtime, client) = session(&dsn);
        runtime.block_on(async {
            let sql = "copy truth from stdin (format csv, header)";
            let mut sink = Box::pin(client.copy_in::<_, Cursor<Vec<u8>>>(sql).await.unwrap());
            sink.send(Cursor::new(content)).await.unwrap();
            assert_eq!(sink.as_mut().finish().await.unwrap(), ROWS);
        });
        let truth = ask(&dsn, &format!("select {FINGERPRINT} from truth x"));
        Scene { folder, dsn, truth, shape: String::new(), _db: db }
    }

    /// Starts `pgspate load` of the file into the table, by way of `dsn`.
    pub(crate) fn load(&self, dsn: &str, lanes: &str) -> Child {
        let args = ["load", "--quiet", "--to", dsn, "--table", "t", "--lanes", lanes, "t.csv"];
        spawn(&mut command(self.folder.path(), &args))
    }

    /// Makes the table empty again, and has what loads remember forgotten.
    pub(crate) fn reset(&self) {
        self.ask(
            "set client_min_messages = warning; truncate t; \
                  drop schema if exists pgspate cascade",
        );
        if self.ask(SHAPE) != self.shape {
            // What a load that broke a rule has left.
            self.ask(
                "alter table t drop constraint if exists t_key, drop constraint if exists t_note; \
                 drop index if exists t_name, t_amount, t_key, t_note",
            );
            self.ask(INDEXES);
        }
    }

    pub(crate) fn ask(&self, sql: &str) -> String {
        ask(&self.dsn, sql)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.ask("select count(*) from t").parse().unwrap()
    }

    /// How the table differs from the truth; `None` if it does not.
    pub(crate) fn difference(&self) -> Option<String> {
        let found = self.ask(&format!("select {FINGERPRINT} from t x"));
        let shape = self.ask(SHAPE);
        if found == self.truth {
            return (shape != self.shape).then(|| format!("its indexes are {shape}"));
        }
        let examples = "select format('%s rows, %s of them more than once; %s are missing, %s are \
                                       surplus, such as id %s', \
             (select count(*) from t), \
             (select count(*) from (select 1 from t group by id having count(*) > 1) x), \
             (select count(*) from (select * from truth except all select * from t) x), \
             (select count(*) from (select * from t except all select * from truth) x), \
             (select min(id) from (select * from t except all select * from truth) x))";
        Some(self.ask(examples))
    }

    /// Rows of the table that the truth does not have, or not as often.
    pub(crate) fn foreign_rows(&self) -> u64 {
        let sql = "select count(*) from (select * from t except all select * from truth) x";
        self.ask(sql).parse().unwrap()
    }

    /// What loads have left on the server: sessions, locks, tables. Empty if nothing.
    pub(crate) fn left_over(&self) -> String {
        self.ask(
            "select concat_ws('; ', \
               (select string_agg(concat_ws(' ', 'session', pid, application_name, state, \
                                            wait_event, query), ', ') \
                from pg_stat_activity where datname = current_database() \
                  and application_name like 'pgspate%'), \
               (select string_agg(concat_ws(' ', 'lock', pid, mode), ', ') from pg_locks \
                where relation = 't'::regclass), \
               (select string_agg('prepared ' || gid, ', ') from pg_prepared_xacts), \
               (select string_agg(format('relation %I.%I', nspname, relname), ', ') \
                from pg_class c join pg_namespace n on n.oid = relnamespace \
                where nspname not in ('pg_catalog', 'information_schema', 'pgspate') \
                  and nspname not like 'pg_toast%' and relname not in ('t', 'truth') \
                  and relkind <> 'i'))",
        )
    }
}

/// Rows with quotes, line ends, NULLs, and now and then a spelling that is left to the server.
fn content() -> Vec<u8> {
    let mut text = "id,name,amount,at,note\n".to_owned();
    for id in 0..ROWS {
        let at = match id % 997 {
            0 => "Jan 5 2024 03:04:05".to_owned(),
            n => format!("2024-01-{:02} 03:04:{:02}", n % 28 + 1, n % 60),
        };
        let name = match id % 50 {
            0 => "\"two\nlines, \"\"quoted\"\"\"".to_owned(),
            1 => String::new(),
            _ => format!("name {id}"),
        };
        let _ = writeln!(text, "{id},{name},{}.{:02},{at},{:->80}", id * 7, id % 100, id);
    }
    text.into_bytes()
}
