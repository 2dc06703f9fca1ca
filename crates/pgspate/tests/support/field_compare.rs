//! Loads spellings through COPY TEXT and through COPY BINARY and compares what is stored.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::SinkExt;
use pgspate::encode::field::FieldEncoder;
use pgspate::encode::text;
use pgspate::target::{PgType, SessionSettings, TypeKind};
use tokio_postgres::{Client, Statement};

/// Creates the types and domains of `TYPES`. All of them are temporary.
pub(crate) const TYPES_SQL: &str = "
    create type pg_temp.mood as enum ('sad', 'ok', 'very happy', 'naïve');
    create domain pg_temp.positive as int4 check (value > 0);
    create domain pg_temp.small as pg_temp.positive check (value < 100);
    create domain pg_temp.amount as numeric(6,2) check (value <> 13);
    create domain pg_temp.code as varchar(5) not null check (value ~ '^[a-z0-9 ]*$');
    create domain pg_temp.span as interval minute to second(1);
    create domain pg_temp.list as int4[] check (cardinality(value) < 5);
    create domain pg_temp.feeling as pg_temp.mood check (value <> 'sad');
    create type pg_temp.textrange as range (subtype = text, collation = \"C\");
    create type pg_temp.timerange as range (subtype = time);
";

/// Types of columns that have an encoder.
#[rustfmt::skip]
pub(crate) const TYPES: &[&str] = &[
    "bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "numeric(5,2)",
    "numeric(15,2)", "numeric(3,0)", "numeric(1000,400)", "text", "varchar", "varchar(3)",
    "char(4)", "bpchar", "name", "\"char\"", "bytea", "uuid", "date", "time", "time(3)", "timetz",
    "timetz(0)", "timestamp", "timestamp(0)", "timestamp(1)", "timestamp(3)", "timestamp(5)",
    "timestamp(6)", "timestamptz", "timestamptz(2)", "timestamptz(4)", "interval", "interval(2)",
    "interval day to second(2)", "interval year to month", "interval minute to second",
    "interval hour", "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8", "bit", "bit(4)",
    "varbit", "varbit(8)", "pg_temp.mood", "pg_temp.positive", "pg_temp.small", "pg_temp.amount",
    "pg_temp.code", "pg_temp.span", "pg_temp.list", "pg_temp.feeling", "int4[]", "int2[]", "text[]",
    "numeric(5,2)[]", "numeric[]", "varchar(3)[]", "char(4)[]", "date[]", "timestamptz[]", "bool[]",
    "float8[]", "jsonb[]", "bytea[]", "uuid[]", "pg_temp.mood[]", "pg_temp.positive[]",
    "pg_temp.list[]", "pg_temp.code[]", "interval minute to second[]", "name[]", "int4range",
    "int8range", "numrange", "daterange", "tsrange", "tstzrange", "pg_temp.textrange",
    "pg_temp.timerange", "int4range[]", "daterange[]",
];

/// Settings that affect the server's input functions.
pub(crate) const SESSIONS: &[&str] = &[
    "set datestyle = 'ISO, MDY'; set timezone = 'UTC'; set intervalstyle = 'postgres'",
    "set datestyle = 'ISO, DMY'; set timezone = 'Asia/Kolkata'; \
     set intervalstyle = 'sql_standard'",
    "set datestyle = 'SQL, DMY'; set timezone = 'America/New_York'; \
     set intervalstyle = 'postgres_verbose'",
    "set datestyle = 'German, YMD'; set timezone = 'GMT'; set intervalstyle = 'iso_8601'",
    "set datestyle = 'Postgres, MDY'; set timezone = 'UTC5'; set intervalstyle = 'sql_standard'",
    "set datestyle = 'ISO, YMD'; set timezone = 'Etc/UTC'; set intervalstyle = 'postgres'",
];

/// A column under test.
pub(crate) struct Column {
    pub(crate) encoder: FieldEncoder,
    pub(crate) sql_type: String,
    /// The type below all domains, and this type's send function.
    base: String,
    send: String,
    copy_text: Statement,
    copy_binary: Statement,
}

/// Reads the session's settings from the server.
pub(crate) async fn session(client: &Client) -> SessionSettings {
    let row = client
        .query_one(
            "select current_setting('server_version_num')::int, current_setting('DateStyle'),
                    current_setting('TimeZone'), current_setting('IntervalStyle'),
                    current_setting('server_encoding'), current_setting('client_encoding')",
            &[],
        )
        .await
        .unwrap();
    SessionSettings {
        server_version: row.get::<_, i32>(0) as u32,
        date_style: row.get(1),
        time_zone: row.get(2),
        interval_style: row.get(3),
        server_encoding: row.get(4),
        client_encoding: row.get(5),
        array_nulls: true,
    }
}

impl Column {
    pub(crate) async fn new(client: &Client, sql_type: &str, session: &SessionSettings) -> Column {
        client
            .batch_execute(&format!(
                "drop table if exists pg_temp.by_text, pg_temp.by_binary;
                 create temp table by_text (id int4, v {sql_type});
                 create temp table by_binary (id int4, v {sql_type})"
            ))
            .await
            .unwrap();
        let ty = column_type(client).await;
        let row = client
            .query_one(
                "select format_type(oid, -1), typsend::text from pg_type where oid = $1",
                &[&ty.base().oid],
            )
            .await
            .unwrap();
        let encoder = FieldEncoder::new(&ty, session).unwrap_or_else(|e| panic!("{sql_type}: {e}"));
        let copy_text = client.prepare("copy by_text from stdin").await.unwrap();
        let copy_binary = client.prepare("copy by_binary from stdin binary").await.unwrap();
        let (base, send) = (row.get(0), row.get(1));
        Column { encoder, sql_type: sql_type.into(), base, send, copy_text, copy_binary }
    }

    /// Loads the spellings that the encoder accepts both as text and as binary. Returns the number
    /// of these spellings, and how the stored values differ.
    pub(crate) async fn compare(
        &self,
        client: &Client,
        spellings: &[Vec<u8>],
    ) -> (usize, Vec<String>) {
        let mut wrong = Vec::new();
        let mut taken = Vec::new();
        for spelling in spellings {
            let mut value = Vec::new();
            if self.encoder.encode(spelling, &mut value) {
                let len = i32::from_be_bytes(*value.first_chunk().unwrap());
                assert_eq!(len as usize, value.len() - 4, "{}: length", self.describe(spelling));
                taken.push((spelling.as_slice(), value));
            }
        }
        let mut todo = vec![taken.as_slice()];
        while let Some(batch) = todo.pop() {
            client.batch_execute("begin; savepoint s").await.unwrap();
            let by_text = copy(client, &self.copy_text, text_rows(batch)).await;
            if by_text.is_err() {
                client.batch_execute("rollback to s").await.unwrap();
            }
            let by_binary = copy(client, &self.copy_binary, binary_rows(batch)).await;
            match (by_text, by_binary) {
                (Ok(()), Ok(())) => wrong.extend(self.compare_tables(client, batch).await),
                (text, binary) if batch.len() == 1 => {
                    if text != binary {
                        let what = self.describe(batch[0].0);
                        wrong.push(format!("{what}: text {text:?}, binary {binary:?}"));
                    }
                }
                _ => {
                    let (left, right) = batch.split_at(batch.len() / 2);
                    todo.extend([left, right]);
                }
            }
            client.batch_execute("rollback").await.unwrap();
        }
        (taken.len(), wrong)
    }

    async fn compare_tables(&self, client: &Client, batch: &[(&[u8], Vec<u8>)]) -> Vec<String> {
        let Column { base, send, .. } = self;
        let sql = format!(
            "select id, coalesce(t.v::text, '?'), coalesce(b.v::text, '?')
             from by_text t full join by_binary b using (id)
             where {send}(t.v::{base}) is distinct from {send}(b.v::{base})
                or pg_column_size(t.v) is distinct from pg_column_size(b.v)
                or t.v::text is distinct from b.v::text or t.v is null"
        );
        let rows = client.query(sql.as_str(), &[]).await.unwrap();
        let describe = |row: &tokio_postgres::Row| {
            let what = self.describe(batch[row.get::<_, i32>(0) as usize].0);
            let (text, binary): (&str, &str) = (row.get(1), row.get(2));
            format!("{what}: {text:.60} by text, {binary:.60} by binary")
        };
        rows.iter().map(describe).collect()
    }

    fn describe(&self, spelling: &[u8]) -> String {
        format!("{} of \"{:.80}\"", self.sql_type, spelling.escape_ascii().to_string())
    }
}

async fn copy(client: &Client, sql: &Statement, data: Vec<u8>) -> Result<(), String> {
    let run = async {
        let mut sink = Box::pin(client.copy_in::<_, Bytes>(sql).await?);
        sink.as_mut().send(data.into()).await?;
        sink.as_mut().finish().await
    };
    run.await.map(drop).map_err(|error| match error.code() {
        Some(code) => code.code().to_string(),
        None => panic!("{error}"),
    })
}

fn text_rows(batch: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let mut rows = Vec::new();
    for (id, (spelling, _)) in batch.iter().enumerate() {
        rows.extend_from_slice(format!("{id}\t").as_bytes());
        text::append(Some(spelling), &mut rows);
        rows.push(b'\n');
    }
    rows
}

fn binary_rows(batch: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let mut rows = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
    for (id, (_, value)) in batch.iter().enumerate() {
        rows.extend_from_slice(&[0, 2, 0, 0, 0, 4]);
        rows.extend_from_slice(&(id as i32).to_be_bytes());
        rows.extend_from_slice(value);
    }
    rows.extend_from_slice(&(-1i16).to_be_bytes());
    rows
}

/// Reads the type of `by_text.v` from the catalog.
async fn column_type(client: &Client) -> PgType {
    let row = client
        .query_one(
            "select atttypid, atttypmod from pg_attribute
             where attrelid = 'pg_temp.by_text'::regclass and attname = 'v'",
            &[],
        )
        .await
        .unwrap();
    pg_type(client, row.get(0), row.get(1)).await
}

fn pg_type(client: &Client, oid: u32, typmod: i32) -> Pin<Box<dyn Future<Output = PgType> + '_>> {
    Box::pin(async move {
        let sql = "select format_type(t.oid, $2), t.typtype::text, t.typbasetype, t.typtypmod,
                          case when t.typcategory = 'A' and t.typlen = -1 then t.typelem else 0
                          end::oid, coalesce(e.typdelim::text, ','), coalesce(r.rngsubtype, 0)
                   from pg_type t left join pg_type e on e.oid = t.typelem
                        left join pg_range r on r.rngtypid = t.oid where t.oid = $1";
        let row = client.query_one(sql, &[&oid, &typmod]).await.unwrap();
        let element: u32 = row.get(4);
        let kind = match row.get::<_, &str>(1) {
            "d" => TypeKind::Domain(Box::new(pg_type(client, row.get(2), row.get(3)).await)),
            "e" => TypeKind::Enum,
            "r" => TypeKind::Range(Box::new(pg_type(client, row.get(6), -1).await)),
            "b" if element != 0 => {
                let delimiter = row.get::<_, &str>(5).as_bytes()[0];
                TypeKind::Array(Box::new(pg_type(client, element, -1).await), delimiter)
            }
            "b" => TypeKind::Base,
            _ => TypeKind::Other,
        };
        // A domain applies the modifier of its own definition.
        let typmod = if row.get::<_, &str>(1) == "d" { row.get(3) } else { typmod };
        PgType { oid, name: row.get(0), typmod, kind }
    })
}
