//! A file, its target table, and the expected rows, ledger and rejects after a load.

use std::collections::BTreeSet;
use std::fs;
use std::io::Cursor;
use std::process::{Child, Command};

use futures_util::SinkExt;
use pgspate::copy::Commit;
use pgspate_embedded::ThrowawayServer;
use pgspate_embedded::testing::{self, TestDb};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::input::{CHUNKS, CSV_HEADER, FaultInput, RowKinds};
use crate::run::{ask, command, finish, session, spawn};
use crate::trial::LoadSettings;

/// The columns of `t`. Unless a test needs a key, `t` has no key, so that the server accepts a row
/// twice and the test finds the second row.
const COLUMNS: &str = "(id int8, name text, amount numeric, at timestamp, note text)";

/// The number of rows, the number of distinct ids, and a sum over the content of all rows.
const FINGERPRINT: &str = "count(*) as rows, count(distinct id) as ids, \
                           coalesce(sum(hashtextextended(x::text, 0)::numeric), 0) as content";

/// Rows, ledger and reject files after a load, with the transactions that wrote them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoadedState {
    server: String,
    rejects: Option<Vec<u8>>,
    reasons: Option<Vec<u8>>,
}

/// A database with the empty table `t`, and tables to compare it with. `truth` has the rows that
/// `t` must hold in the end. `twin` has pairs of rows, and `t` must hold one row of each pair.
/// `print` has the fingerprint of `truth`.
pub(crate) struct LoadFaultScene {
    folder: TempDir,
    rows: RowKinds,
    input: &'static FaultInput,
    /// The connection string of the server, without a proxy.
    pub(crate) dsn: String,
    server: Option<ThrowawayServer>,
    /// The definitions of the table's indexes, if the load drops them.
    index_definitions: Option<String>,
    _db: Option<TestDb>,
}

/// The indexes and constraints that a load drops and creates again.
const CREATE_INDEXES: &str = "\
alter table t add constraint t_key primary key (id), add constraint t_note unique (note, id);
create index t_name on t (name) where name <> ''; comment on index t_name is 'names';
create index t_amount on t (amount)";

const SELECT_INDEX_DEFINITIONS: &str = "\
select coalesce(string_agg(concat_ws(' ', pg_get_indexdef(i.indexrelid), c.conname, c.contype,
                                     obj_description(i.indexrelid)), E'\\n'
                           order by indexrelid::regclass::text), '')
from pg_index i left join pg_constraint c on c.conindid = i.indexrelid
where i.indrelid = 't'::regclass";

impl LoadFaultScene {
    /// Creates a scene in a new database of the tests' server.
    pub(crate) fn new(rows: RowKinds) -> LoadFaultScene {
        let db = testing::database();
        LoadFaultScene::make(rows, db.dsn(), Some(db), None)
    }

    /// Creates a scene on a new server, which the test may kill.
    pub(crate) fn with_server(rows: RowKinds, conf: &str) -> LoadFaultScene {
        let server = testing::server(conf);
        LoadFaultScene::make(rows, server.dsn(), None, Some(server))
    }

    /// Creates a scene on a server that the caller starts and stops.
    pub(crate) fn on(rows: RowKinds, dsn: String) -> LoadFaultScene {
        LoadFaultScene::make(rows, dsn, None, None)
    }

    fn make(
        rows: RowKinds,
        dsn: String,
        db: Option<TestDb>,
        server: Option<ThrowawayServer>,
    ) -> LoadFaultScene {
        let folder = TempDir::with_prefix("pgspate-cli-").unwrap();
        let input = FaultInput::of(rows);
        fs::write(folder.path().join("t.csv"), &input.text).unwrap();
        let key = if rows == RowKinds::Mixed { "create unique index on t (id);" } else { "" };
        ask(
            &dsn,
            &format!(
                "create table t {COLUMNS}; {key} create table truth {COLUMNS}; \
                 create table twin {COLUMNS}"
            ),
        );
        copy_in(&dsn, "truth", FaultInput::of(RowKinds::Good).text.as_bytes());
        let twins = CSV_HEADER.to_owned() + &input.twins.concat().concat();
        copy_in(&dsn, "twin", twins.as_bytes());
        ask(&dsn, &format!("create table print as select {FINGERPRINT} from truth x"));
        let index_definitions = (rows == RowKinds::Indexed).then(|| {
            ask(&dsn, CREATE_INDEXES);
            ask(&dsn, SELECT_INDEX_DEFINITIONS)
        });
        LoadFaultScene { folder, rows, input, dsn, server, index_definitions, _db: db }
    }

    pub(crate) fn server(&self) -> &ThrowawayServer {
        self.server.as_ref().expect("the scene must have its own server")
    }

    /// Starts `pgspate load` of the file into the table, with `dsn` as target.
    pub(crate) fn load(&self, dsn: &str, settings: &LoadSettings) -> Child {
        let LoadSettings { lanes, commit, rows, retry_for } = settings;
        assert_eq!(self.rows, *rows);
        let lanes = lanes.map_or("auto".to_owned(), |lanes| lanes.to_string());
        let commit = match commit {
            Commit::AtEnd => "end",
            Commit::EachChunk => "chunk",
        };
        let args = ["load", "t.csv", "--quiet", "--to", dsn, "--table", "t"];
        let mut load = command(self.folder.path(), &args);
        load.args(["--lanes", &lanes, "--commit", commit]);
        if let Some(seconds) = retry_for {
            load.args(["--retry-for", &seconds.to_string()]);
        }
        if *rows == RowKinds::Mixed {
            // This limit is exact: rejects of a chunk that is written again must count once.
            let most = self.input.refused().to_string();
            load.args(["--rejects", "bad.csv", "--max-rejects", &most]);
        }
        spawn(&mut load)
    }

    /// Returns a load of the file into the table with default options.
    pub(crate) fn default_load(&self, dsn: &str) -> Command {
        let args = ["load", "t.csv", "--quiet", "--to", dsn, "--table", "t"];
        command(self.folder.path(), &args)
    }

    /// Returns the command that restores indexes that a killed load left dropped.
    pub(crate) fn restore(&self) -> Command {
        command(self.folder.path(), &["status", "--restore", "--to", &self.dsn])
    }

    pub(crate) fn has_its_indexes(&self) -> bool {
        self.index_definitions.as_ref().is_none_or(|index_definitions| {
            *index_definitions == self.ask(SELECT_INDEX_DEFINITIONS)
        })
    }

    /// Empties the table, drops the ledger, restores the indexes and removes the reject files.
    pub(crate) fn reset(&self) {
        self.ask(
            "set client_min_messages = warning; truncate t; \
             drop schema if exists pgspate cascade",
        );
        if self.index_definitions.as_ref().is_some_and(|index_definitions| {
            *index_definitions != self.ask(SELECT_INDEX_DEFINITIONS)
        }) {
            // A load that broke a rule left other indexes.
            self.ask(
                "alter table t drop constraint if exists t_key, drop constraint if exists t_note; \
                 drop index if exists t_name, t_amount, t_key, t_note",
            );
            self.ask(CREATE_INDEXES);
        }
        self.remove_rejects();
    }

    /// Empties table, ledger and rejects, but keeps the ledger's tables.
    pub(crate) fn empty(&self) {
        self.ask(
            "truncate t, pgspate.bound, pgspate.source_file, pgspate.fleet_job, \
             pgspate.part, pgspate.job, pgspate.ledger, \
             pgspate.reject, pgspate.change restart identity",
        );
        self.remove_rejects();
    }

    fn remove_rejects(&self) {
        for name in self.files().iter().filter(|name| *name != "t.csv") {
            fs::remove_file(self.folder.path().join(name)).unwrap();
        }
    }

    pub(crate) fn ask(&self, sql: &str) -> String {
        ask(&self.dsn, sql)
    }

    /// Returns the exit status of a completed load. With rejects, the status is 1 in every run.
    pub(crate) fn status_when_done(&self) -> i32 {
        i32::from(self.rows == RowKinds::Mixed)
    }

    /// Returns how the table, the ledger and the rejects differ from what is expected. Returns
    /// `None` if they are equal.
    pub(crate) fn difference(&self) -> Option<String> {
        let refused = match self.refused_twins() {
            Ok(refused) => refused,
            Err(difference) => return Some(difference),
        };
        let twins = format!("select * from twin where note <> all('{{{}}}')", refused.join(","));
        let is_equal = self.ask(&format!(
            "select (t.rows, t.ids, t.content) = (p.rows + w.rows, p.ids + w.ids, \
                                                  p.content + w.content) \
             from (select {FINGERPRINT} from t x) t, (select {FINGERPRINT} from ({twins}) x) w, \
                  print p"
        ));
        if is_equal == "t" {
            let found = self.index_definitions.as_ref().map(|_| self.ask(SELECT_INDEX_DEFINITIONS));
            if found != self.index_definitions {
                return Some(format!("the table's indexes are {}", found.unwrap_or_default()));
            }
            return self.ledger_difference().or_else(|| self.status_difference());
        }
        let truth = format!("select * from truth union all {twins}");
        Some(self.ask(&format!(
            "select format('%s rows, %s of them more than once; %s are missing, %s are surplus, \
                            such as id %s', \
             (select count(*) from t), \
             (select count(*) from (select 1 from t group by id having count(*) > 1) x), \
             (select count(*) from (({truth}) except all select * from t) x), \
             (select count(*) from (select * from t except all ({truth})) x), \
             (select min(id) from (select * from t except all ({truth})) x))"
        )))
    }

    /// Returns the notes of the rejected twins. Returns an error if other records were rejected, or
    /// too few.
    fn refused_twins(&self) -> Result<Vec<String>, String> {
        if self.rows != RowKinds::Mixed {
            return Ok(Vec::new());
        }
        let read = |name: &str| fs::read_to_string(self.folder.path().join(name));
        let (Ok(rejects), Ok(reasons)) = (read("bad.csv"), read("bad.csv.json")) else {
            return Err(format!("a rejects file is missing; the folder has {:?}", self.files()));
        };
        let expected: BTreeSet<_> = ["bad.csv", "bad.csv.json", "t.csv"].map(str::to_owned).into();
        if self.files() != expected {
            return Err(format!("the folder has the files {:?}", self.files()));
        }
        let Some(records) = rejects.strip_prefix(CSV_HEADER) else {
            return Err(format!("the rejects file has no header; it begins with {:.40?}", rejects));
        };
        let records: Vec<_> = records.split_inclusive('\n').map(str::to_owned).collect();
        if reasons.lines().count() != records.len() {
            let reasons = reasons.lines().count();
            return Err(format!("{} records are set aside for {reasons} reasons", records.len()));
        }
        let twins = self.input.twins.iter().flatten();
        let refused: Vec<_> = twins.filter(|it| records.contains(it)).collect();
        let is_one_of_each = self
            .input
            .twins
            .iter()
            .all(|[first, second]| records.contains(first) != records.contains(second));
        let others: Vec<_> = records.iter().filter(|it| !refused.contains(it)).collect();
        if !is_one_of_each || records.len() as u64 != self.input.refused() {
            return Err(format!("set aside are {records:?}"));
        }
        if !others.into_iter().eq(&self.input.bad) {
            return Err(format!("set aside are, or in another order, {records:?}"));
        }
        let note = |record: &String| record.trim_end().rsplit(',').next().unwrap().to_owned();
        Ok(refused.into_iter().map(note).collect())
    }

    /// Returns how the ledger differs from one finished job with each chunk once, or `None`.
    fn ledger_difference(&self) -> Option<String> {
        let sql = "select concat_ws(' ', \
             (select concat_ws(' ', count(*), count(finished)) from pgspate.job), \
             (select concat_ws(' ', count(*), count(distinct job), count(distinct chunk), \
                               min(chunk), max(chunk), sum(rows_in), sum(rows_written), \
                               sum(rows_rejected)) from pgspate.ledger), \
             (select count(*) from pgspate.reject))";
        let found = self.ask(sql);
        let (chunks, records, refused) = self.counts();
        let expected = format!(
            "1 1 {chunks} 1 {chunks} 0 {} {records} {} {refused} {refused}",
            chunks - 1,
            records - refused
        );
        (found != expected).then(|| format!("the ledger has {found} and not {expected}"))
    }

    /// Returns the expected numbers of chunks, records and rejects.
    fn counts(&self) -> (u64, u64, u64) {
        (*CHUNKS, self.input.records(), self.input.refused())
    }

    /// Returns how the output of `pgspate status` differs from the expected numbers, or `None`.
    fn status_difference(&self) -> Option<String> {
        let args = ["status", "--json", "--to", &self.dsn];
        let run = finish(spawn(&mut command(self.folder.path(), &args)));
        let found: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
        let job = &found[0];
        let (chunks, records, refused) = self.counts();
        let is_right = run.status == Some(0)
            && found.as_array().is_some_and(|jobs| jobs.len() == 1)
            && job["finished"].is_string()
            && job["worker"].is_null()
            && [&job["chunks"], &job["rows_in"], &job["rows_written"], &job["rows_rejected"]]
                == [&json!(chunks), &json!(records), &json!(records - refused), &json!(refused)];
        (!is_right).then(|| format!("status says {}{}", run.stdout, run.stderr))
    }

    /// Returns the state of table, ledger and rejects, to compare before and after a run.
    pub(crate) fn state(&self) -> LoadedState {
        let read = |name: &str| fs::read(self.folder.path().join(name)).ok();
        let server = self.ask(
            "select concat_ws(' ', \
               (select string_agg(concat(xmin, j), ';' order by job) from pgspate.job j), \
               (select string_agg(concat(xmin, l), ';' order by job, chunk) \
                from pgspate.ledger l), \
               (select concat_ws(' ', count(*), max(xmin::text::int8)) from t))",
        );
        LoadedState { server, rejects: read("bad.csv"), reasons: read("bad.csv.json") }
    }

    fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Returns the sessions, locks and tables that loads left on the server, as text. The text is
    /// empty if there are none.
    pub(crate) fn leftovers(&self) -> String {
        self.ask(
            "select concat_ws('; ', \
               (select string_agg(concat_ws(' ', 'session', pid, application_name, state, \
                                            wait_event, query), ', ') \
                from pg_stat_activity where datname = current_database() \
                  and application_name like 'pgspate%'), \
               (select string_agg(concat_ws(' ', 'lock', pid, locktype, mode), ', ') from pg_locks \
                where database = (select oid from pg_database where datname = current_database()) \
                  and (relation = 't'::regclass or locktype = 'advisory')), \
               (select string_agg('prepared ' || gid, ', ') from pg_prepared_xacts \
                where database = current_database()), \
               (select string_agg(format('relation %I.%I', nspname, relname), ', ') \
                from pg_class c join pg_namespace n on n.oid = relnamespace \
                where nspname not in ('pg_catalog', 'information_schema', 'pgspate') \
                  and nspname not like 'pg_toast%' and relkind <> 'i' \
                  and relname not in ('t', 'truth', 'twin', 'print') \
                  and not exists (select from pg_depend d \
                                  where d.objid = c.oid and d.deptype = 'e')))",
        )
    }
}

/// Loads a file into a table with COPY.
fn copy_in(dsn: &str, table: &str, text: &[u8]) {
    let (runtime, client) = session(dsn);
    runtime.block_on(async {
        let sql = format!("copy {table} from stdin (format csv, header)");
        let mut sink = Box::pin(client.copy_in::<_, Cursor<Vec<u8>>>(&sql).await.unwrap());
        sink.send(Cursor::new(text.to_owned())).await.unwrap();
        sink.as_mut().finish().await.unwrap();
    });
}
