//! Tests of the help of the command and of `load`.

use insta::assert_snapshot;

use crate::support::{LoadCase, Run, folded};

#[test]
fn help_lists_all_options() {
    let case = LoadCase::new("");
    let ask = |args: &[&str]| {
        let run = Run::of(case.command(args).env("COLUMNS", "100").output().unwrap());
        assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
        folded(&run.stdout)
    };
    assert_snapshot!(ask(&["--help"]), @r"
    The fastest safe way to write into PostgreSQL

    Usage: pgspate <COMMAND>

    Commands:
      load         Load files into a table, in parallel, exactly as \copy would
      sync         Make rows of a table equal to a source, writing only what differs
      apply        Apply a stream of changes to tables, exactly once
      serve        Take records over HTTP, and answer each when it is durable
      doctor       Find what slows writes on a server and what helps; change nothing
      tune         Set a server up for a bulk load, and put the old settings back
      lab          Measure ways of writing on your own server, and report them on one page
      fleet        Show what the members of an array of jobs have done, and which are
          … missing
      status       Show the jobs, streams and changed settings that the ledger knows
      server       Start, stop and inspect the embedded PostgreSQL
      completions  Print completions for a shell
      man          Print the manual page
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Examples:
      pgspate load orders.csv --table orders --create
      pgspate sync prices.csv --table prices --scope all
      pgspate doctor

    Exit status:
      0    Done
      1    Done, but the answer is no: rejects, differences or findings
      2    Error
      130  Interrupted

    Environment:
      PGHOST, PGPORT, PGDATABASE, PGUSER  The server to connect to, without --to
      PGPASSWORD, PGPASSFILE              The password, or the file with passwords
      PGSERVICE, PGSERVICEFILE            A service with these settings, and the file that
          … defines it
      PGSSLMODE and libpq's others        Other settings of the connection
      PGSPATE_DATA_DIR                    The folder of the embedded server's data
      PGSPATE_PG_BIN                      The folder with the PostgreSQL programs of the
          … embedded server
      PGSPATE_PG_VERSION                  The major version of the embedded server
      AWS_*, GOOGLE_*, AZURE_*            Credentials and settings of object stores
      HTTPS_PROXY, HTTP_PROXY, NO_PROXY   Proxies for web servers and object stores
      NO_COLOR                            If set, output has no colour
    ");
    assert_snapshot!(ask(&["load", "--help"]), @r#"
    Load files into a table, in parallel, exactly as \copy would

    Usage: pgspate load [OPTIONS] <SOURCE>...

    Arguments:
      <SOURCE>...
              Files, globs, folders, `-` for stdin, s3://, gs://, az:// or https:// URLs

    Options:
      -t, --table <TABLE>
              Write into this table, spelled as in SQL [default: the name of the source]

          --to <DSN>
              Connect to this URL or key=value; by default PG* variables, else the embedded
          … PostgreSQL

          --create
              Create the table if it is missing, with types that fit the input

          --type <COLUMN=TYPE>
              Give a created or added column this type, spelled as in SQL

          --primary-key <COLUMNS>
              Make these columns the primary key of the created table

          --replace[=<HOW>]
              Replace all rows; readers see the old rows, or wait, until the new are loaded

              Possible values:
              - auto:     Choose the way that the table allows
              - truncate: Empty and fill the table in one transaction; readers wait until
          … it ends
              - swap:     Fill a shadow table and exchange the two; readers wait for the
          … exchange

          --atomic
              Make all new rows visible at once: no transaction sees only a part of them

          --plan
              Show what would be done and why, then stop

          --lanes <N>
              Load over this many connections at the same time: a number, or auto

              [default: auto]

      -h, --help
              Print help (see a summary with '-h')

    Safety:
          --commit <COMMIT>
              Choose when to commit

              Possible values:
              - auto:  At the end below 1 GiB, with each chunk above
              - end:   Commit once at the end: a load that fails leaves nothing behind
              - chunk: Commit each chunk: after a stop, the next run loads only the rest

              [default: auto]

          --rejects <FILE>
              Write rejected rows to this file, and load the rest

          --max-rejects <N|P%>
              Stop after more than this many rejected rows: a number, or a share such as
          … 0.5%

          --changed <ACTION>
              Refuse, leave out or load again files that have changed since they were loaded

              Possible values:
              - error:  Load nothing and name the changed files
              - skip:   Leave changed files out
              - reload: Load changed files again; the table then has the rows of both
          … versions

              [default: error]

          --allow-empty
              With --replace, allow an input without rows to empty the table

          --restart
              Start over and ignore earlier runs in the ledger; the rows of these runs stay

          --no-ledger
              Keep no ledger: commit at the end; each run loads all rows, and cannot resume

          --into-shards
              Write to the nodes of a distributed table of Citus, past the coordinator

          --retry-for <SECONDS>
              Keep trying for this long while the server is unreachable

              [default: 60]

          --stall-timeout <SECONDS>
              Drop a connection on which nothing arrives for this long

              [default: 60]

          --lock-timeout <SECONDS>
              Wait this long for a lock that another session holds; 0 waits for ever

              [default: 300]

    Table:
          --rebuild-indexes <WHEN>
              Drop indexes and foreign keys and rebuild them after the load

              Possible values:
              - auto:   If that is faster
              - always: Wherever possible
              - never:  Never

              [default: auto]

          --pause-autovacuum <WHEN>
              Switch autovacuum off for the table during the load

              Possible values:
              - auto:   If the input has 8 GiB or more
              - always: Wherever possible
              - never:  Never

              [default: auto]

          --analyze <WHEN>
              Run ANALYZE afterwards

              Possible values:
              - auto:   If at least a tenth of the rows is new
              - always: Wherever possible
              - never:  Never

              [default: auto]

          --vacuum
              Run VACUUM (FREEZE, ANALYZE) afterwards

    Fleet:
          --fleet <NAME>
              Run as a member of this fleet: one write by an array of jobs

          --generation <G>
              Name this run of the fleet, such as a date; older runs cannot undo newer ones

          --members <N>
              The number of members; by default the size of the array of jobs

          --member <I>
              This member's number, from 0; auto: the index in the array of jobs, as AWS
          … Batch,
              Kubernetes, Cloud Run or Slurm sets it; `{member}` in a source stands for it

              [default: auto]

          --connections <N>
              Open at most this many connections, over all members of the fleet

    Reading:
          --format <FORMAT>
              Read this format [default: detected from name and content]

              Possible values:
              - csv:     Delimited, quoted as in COPY's csv format
              - tsv:     Delimited by tabs
              - text:    COPY's text format: tabs, \N and backslash escapes
              - json:    One object per line, or an array of objects
              - parquet: Parquet
              - arrow:   Arrow IPC, file or stream

          --header <HEADER>
              Say whether the first record names the columns

              Possible values:
              - auto: Detect it from the content
              - yes:  The first record names the columns
              - no:   The first record is data

              [default: auto]

          --delimiter <CHAR>
              Split fields at this byte; write a tab as \t

          --quote <CHAR>
              Take this byte for the quote character; `none` for no quoting

          --escape <CHAR>
              Escape quotes within quoted fields with this byte [default: the quote
          … character]

          --null <STRING>
              Read this unquoted field as NULL

          --force-null <COLUMNS>
              Read the NULL string as NULL in these columns even if it is quoted

          --force-not-null <COLUMNS>
              Read the NULL string as a string in these columns

          --comment <CHAR>
              Skip lines that begin with this byte

          --skip-blank-lines
              Skip empty lines, which COPY would read as records of one empty field

          --date-format <FORMAT>
              Read dates in this format, such as %d.%m.%Y; COLUMN=FORMAT for one column

          --encoding <ENCODING>
              Read the input in this encoding, as PostgreSQL names it

          --columns <COLUMNS>
              Write the fields to these columns, in the order of the fields

          --set <COLUMN=VALUE>
              Write this value to a column that the input lacks; \N for NULL

          --file-name-column <COLUMN>
              Write the name of each row's file to this column

          --snake-case
              Read the fields' names in snake case: OrderId and "Order ID" as order_id

          --ignore-unknown
              Ignore fields and keys that match no column, or a generated column

          --add-columns
              Add columns that the table lacks, with types that fit the input

          --source-option <KEY=VALUE>
              Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME

    Output:
          --json
              Print the report, or with --plan the plan, as JSON on stdout

      -q, --quiet
              Print errors only

    Examples:
      pgspate load orders.csv --table orders
      pgspate load 's3://sales/2026/*.parquet' --table events --create --plan
      pgspate load orders.csv --table orders --rejects bad.csv --max-rejects 1%

    Exit status:
      0    Done
      1    Done, but rows were set aside, or kept out by triggers
      2    Error
      130  Interrupted

    Environment:
      PGHOST, PGPORT, PGDATABASE, PGUSER  The server to connect to, without --to
      PGPASSWORD, PGPASSFILE              The password, or the file with passwords
      PGSERVICE, PGSERVICEFILE            A service with these settings, and the file that
          … defines it
      PGSSLMODE and libpq's others        Other settings of the connection
      PGSPATE_DATA_DIR                    The folder of the embedded server's data
      PGSPATE_PG_BIN                      The folder with the PostgreSQL programs of the
          … embedded server
      PGSPATE_PG_VERSION                  The major version of the embedded server
      AWS_*, GOOGLE_*, AZURE_*            Credentials and settings of object stores
      HTTPS_PROXY, HTTP_PROXY, NO_PROXY   Proxies for web servers and object stores
      NO_COLOR                            If set, output has no colour
    "#);
    assert_eq!(ask(&["--version"]), format!("pgspate {}\n", env!("CARGO_PKG_VERSION")));
    assert!(ask(&["completions", "bash"]).contains("_pgspate"));
    assert!(ask(&["man"]).contains(".TH pgspate"));
}
