# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_pgspate_global_optspecs
    string join \n h/help V/version
end

function __fish_pgspate_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_pgspate_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_pgspate_using_subcommand
    set -l cmd (__fish_pgspate_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c pgspate -n "__fish_pgspate_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_needs_command" -s V -l version -d 'Print version'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "load" -d 'Load files into a table, in parallel, exactly as \\copy would'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "sync" -d 'Make rows of a table equal to a source, writing only what differs'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "apply" -d 'Apply a stream of changes to tables, exactly once'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "serve" -d 'Take records over HTTP, and answer each when it is durable'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "doctor" -d 'Find what slows writes on a server and what helps; change nothing'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "tune" -d 'Set a server up for a bulk load, and put the old settings back'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "lab" -d 'Measure ways of writing on your own server, and report them on one page'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "fleet" -d 'Show what the members of an array of jobs have done, and which are missing'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "status" -d 'Show the jobs, streams and changed settings that the ledger knows'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "server" -d 'Start, stop and inspect the embedded PostgreSQL'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "completions" -d 'Print completions for a shell'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "man" -d 'Print the manual page'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "reference" -d 'Print the reference of all options in Markdown'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -s t -l table -d 'Write into this table, spelled as in SQL [default: the name of the source]' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l to -d 'Connect to this URL or key=value; by default PG* variables, else the embedded PostgreSQL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l type -d 'Give a created or added column this type, spelled as in SQL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l primary-key -d 'Make these columns the primary key of the created table' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l replace -d 'Replace all rows; readers see the old rows, or wait, until the new are loaded' -r -f -a "auto\t'Choose the way that the table allows'
truncate\t'Empty and fill the table in one transaction; readers wait until it ends'
swap\t'Fill a shadow table and exchange the two; readers wait for the exchange'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l lanes -d 'Load over this many connections at the same time: a number, or auto' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l commit -d 'Choose when to commit' -r -f -a "auto\t'At the end below 1 GiB, with each chunk above'
end\t'Commit once at the end: a load that fails leaves nothing behind'
chunk\t'Commit each chunk: after a stop, the next run loads only the rest'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l rejects -d 'Write rejected rows to this file, and load the rest' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l max-rejects -d 'Stop after more than this many rejected rows: a number, or a share such as 0.5%' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l changed -d 'Refuse, leave out or load again files that have changed since they were loaded' -r -f -a "error\t'Load nothing and name the changed files'
skip\t'Leave changed files out'
reload\t'Load changed files again; the table then has the rows of both versions'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l retry-for -d 'Keep trying for this long while the server is unreachable' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l stall-timeout -d 'Drop a connection on which nothing arrives for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l lock-timeout -d 'Wait this long for a lock that another session holds; 0 waits for ever' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l rebuild-indexes -d 'Drop indexes and foreign keys and rebuild them after the load' -r -f -a "auto\t'If that is faster'
always\t'Wherever possible'
never\t'Never'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l pause-autovacuum -d 'Switch autovacuum off for the table during the load' -r -f -a "auto\t'If the input has 8 GiB or more'
always\t'Wherever possible'
never\t'Never'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l analyze -d 'Run ANALYZE afterwards' -r -f -a "auto\t'If at least a tenth of the rows is new'
always\t'Wherever possible'
never\t'Never'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l fleet -d 'Run as a member of this fleet: one write by an array of jobs' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l generation -d 'Name this run of the fleet, such as a date; older runs cannot undo newer ones' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l members -d 'The number of members; by default the size of the array of jobs' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l member -d 'This member\'s number, from 0; auto: the index in the array of jobs, as AWS Batch, Kubernetes, Cloud Run or Slurm sets it; `{member}` in a source stands for it' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l connections -d 'Open at most this many connections, over all members of the fleet' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l format -d 'Read this format [default: detected from name and content]' -r -f -a "csv\t'Delimited, quoted as in COPY\'s csv format'
tsv\t'Delimited by tabs'
text\t'COPY\'s text format: tabs, \\N and backslash escapes'
json\t'One object per line, or an array of objects'
parquet\t'Parquet'
arrow\t'Arrow IPC, file or stream'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l header -d 'Say whether the first record names the columns' -r -f -a "auto\t'Detect it from the content'
yes\t'The first record names the columns'
no\t'The first record is data'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l delimiter -d 'Split fields at this byte; write a tab as \\t' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l quote -d 'Take this byte for the quote character; `none` for no quoting' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l escape -d 'Escape quotes within quoted fields with this byte [default: the quote character]' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l null -d 'Read this unquoted field as NULL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l force-null -d 'Read the NULL string as NULL in these columns even if it is quoted' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l force-not-null -d 'Read the NULL string as a string in these columns' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l comment -d 'Skip lines that begin with this byte' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l date-format -d 'Read dates in this format, such as %d.%m.%Y; COLUMN=FORMAT for one column' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l encoding -d 'Read the input in this encoding, as PostgreSQL names it' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l columns -d 'Write the fields to these columns, in the order of the fields' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l set -d 'Write this value to a column that the input lacks; \\N for NULL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l file-name-column -d 'Write the name of each row\'s file to this column' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l source-option -d 'Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l create -d 'Create the table if it is missing, with types that fit the input'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l atomic -d 'Make all new rows visible at once: no transaction sees only a part of them'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l plan -d 'Show what would be done and why, then stop'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l allow-empty -d 'With --replace, allow an input without rows to empty the table'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l restart -d 'Start over and ignore earlier runs in the ledger; the rows of these runs stay'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l no-ledger -d 'Keep no ledger: commit at the end; each run loads all rows, and cannot resume'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l into-shards -d 'Write to the nodes of a distributed table of Citus, past the coordinator'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l vacuum -d 'Run VACUUM (FREEZE, ANALYZE) afterwards'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l skip-blank-lines -d 'Skip empty lines, which COPY would read as records of one empty field'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l snake-case -d 'Read the fields\' names in snake case: OrderId and "Order ID" as order_id'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l ignore-unknown -d 'Ignore fields and keys that match no column, or a generated column'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l add-columns -d 'Add columns that the table lacks, with types that fit the input'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l json -d 'Print the report, or with --plan the plan, as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -s q -l quiet -d 'Print errors only'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -s t -l table -d 'Write into this table, spelled as in SQL [default: the name of the source]' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l to -d 'Connect to this URL or key=value; by default PG* variables, else the embedded PostgreSQL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l type -d 'Give a created or added column this type, spelled as in SQL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l primary-key -d 'Make these columns the primary key of the created table; by default those of --key' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l key -d 'Identify rows by these columns; by default by the primary key' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l scope-by -d 'Sync the rows whose values in these columns occur in the source' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l scope -d 'Sync the rows that match this SQL predicate; `all` for the whole table' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l ignore-columns -d 'Do not compare these columns; write them only if another column differs' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l keep -d 'Keep one of several source rows with the same key [default: refuse such a source]' -r -f -a "last\t'The last row in the order of the source'"
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l lanes -d 'Share the scopes of --scope-by among this many sessions, each with its own transaction' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l read-ahead -d 'Read the table first, and stage only rows that the table lacks' -r -f -a "auto\t'If the table has most of the rows'
always\t'Wherever possible'
never\t'Never'"
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l max-delete -d 'Refuse to delete more than this share of the scope' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l transactions -d 'Write the scopes of --scope-by in this many transactions, one after the other; with --vacuum, each transaction reuses the space of rows that died in the previous one' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l retry-for -d 'Keep trying for this long after deadlocks, lost connections and similar errors' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l stall-timeout -d 'Drop a connection on which nothing arrives for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l lock-timeout -d 'Wait this long for a lock that another session holds; 0 waits for ever' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l fleet -d 'Run as a member of this fleet: one write by an array of jobs' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l generation -d 'Name this run of the fleet, such as a date; older runs cannot undo newer ones' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l members -d 'The number of members; by default the size of the array of jobs' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l member -d 'This member\'s number, from 0; auto: the index in the array of jobs, as AWS Batch, Kubernetes, Cloud Run or Slurm sets it; `{member}` in a source stands for it' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l connections -d 'Open at most this many connections, over all members of the fleet' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l format -d 'Read this format [default: detected from name and content]' -r -f -a "csv\t'Delimited, quoted as in COPY\'s csv format'
tsv\t'Delimited by tabs'
text\t'COPY\'s text format: tabs, \\N and backslash escapes'
json\t'One object per line, or an array of objects'
parquet\t'Parquet'
arrow\t'Arrow IPC, file or stream'"
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l header -d 'Say whether the first record names the columns' -r -f -a "auto\t'Detect it from the content'
yes\t'The first record names the columns'
no\t'The first record is data'"
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l delimiter -d 'Split fields at this byte; write a tab as \\t' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l quote -d 'Take this byte for the quote character; `none` for no quoting' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l escape -d 'Escape quotes within quoted fields with this byte [default: the quote character]' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l null -d 'Read this unquoted field as NULL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l force-null -d 'Read the NULL string as NULL in these columns even if it is quoted' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l force-not-null -d 'Read the NULL string as a string in these columns' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l comment -d 'Skip lines that begin with this byte' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l date-format -d 'Read dates in this format, such as %d.%m.%Y; COLUMN=FORMAT for one column' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l encoding -d 'Read the input in this encoding, as PostgreSQL names it' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l columns -d 'Write the fields to these columns, in the order of the fields' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l set -d 'Write this value to a column that the input lacks; \\N for NULL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l file-name-column -d 'Write the name of each row\'s file to this column' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l source-option -d 'Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l price-per-million-io -d 'Estimate the cost of the sync at this price for a million I/Os, as on Aurora Standard' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l create -d 'Create the table if it is missing, with types that fit the source'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l no-delete -d 'Update and insert rows, but delete none'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l insert-only -d 'Insert missing rows only'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l check -d 'Change nothing: count differences and show examples; exit with 1 if there are any'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l advise-only -d 'Change nothing: show what would make such a sync cheaper; exit with 1 if there is any advice'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l plan -d 'Show the statements, then stop'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l vacuum -d 'Vacuum the table afterwards, so that the next sync reuses the space of dead rows'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l allow-empty -d 'Allow a source without rows to empty the scope, whatever --max-delete says'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l skip-blank-lines -d 'Skip empty lines, which COPY would read as records of one empty field'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l snake-case -d 'Read the fields\' names in snake case: OrderId and "Order ID" as order_id'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l ignore-unknown -d 'Ignore fields and keys that match no column, or a generated column'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l add-columns -d 'Add columns that the table lacks, with types that fit the input'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l json -d 'Print the report as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -s q -l quiet -d 'Print errors only'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l to -d 'Connect to this URL or key=value; by default PG* variables, else the embedded PostgreSQL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l stream -d 'Name the stream in the ledger; by default after the first source' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l format -d 'Read events in this format [default: detected]' -r -f -a "debezium\t''
wal2json\t''
maxwell\t''
canal\t''
dms\t''
pgspate\t''"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l map -d 'Apply the events of one table to another; `*` on both sides stands for the same text' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l tables -d 'Apply the events of these tables only, as the stream names them; `*` stands for any text' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l unknown-columns -d 'Choose what to do with columns that the table does not have' -r -f -a "fail\t'Refuse the event'
ignore\t'Ignore the column'
add\t'Add the column to the table, of type text'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l at-end -d 'Choose what to do if the input ends within a source transaction' -r -f -a "hold\t'Leave the transaction out, and end with an error'
apply\t'Apply the part that is there'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l max-dead-letters -d 'Set up to N bad events aside in pgspate.dead_letter, and apply the others' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l retry-for -d 'Keep trying for this long while the server is unreachable or another session is in the way' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l stall-timeout -d 'Drop a connection on which nothing arrives for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l lock-timeout -d 'Wait this long for a lock that another session holds; 0 waits for ever' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l batch-rows -d 'Commit at most this many events together' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l batch-bytes -d 'Commit at most this many MiB of events together, as read or as decoded; pgspate uses three to four times as much memory' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l direct-rows -d 'Write batches of up to this many rows without a temporary table' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l batch-delay -d 'Let a batch wait this many milliseconds for more events while no batch is written' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l source-table -d 'Apply rows without a table name to this table: flattened rows of Debezium, files of DMS' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l debezium-placeholder -d 'Recognize this text as Debezium\'s `unavailable.value.placeholder`' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l debezium-time -d 'Read Debezium\'s times in this unit if no schema gives it' -r -f -a "ms\t'Milliseconds, as with `time.precision.mode=connect`'
us\t'Microseconds'
ns\t'Nanoseconds'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l debezium-decimals -d 'Read Debezium\'s decimals in this form if no schema gives it' -r -f -a "bytes\t'Bytes, as with `decimal.handling.mode=precise`'
text\t'Digits, as with `decimal.handling.mode=string`'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l debezium-bytes -d 'Read Debezium\'s bytes in this form if no schema gives it' -r -f -a "base64\t'Base64, as with `binary.handling.mode=bytes` and `base64`'
hex\t'Hexadecimal digits, as with `binary.handling.mode=hex`'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-columns -d 'Name the columns of DMS\'s csv if it has no header' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-null -d 'Read this unquoted field of DMS\'s csv as NULL (`CsvNullValue`)' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-absent -d 'Read this unquoted field of DMS\'s csv as a missing column (`CsvNoSupValue`)' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-delimiter -d 'Separate fields of DMS\'s csv by this byte, or \\t (`CsvDelimiter`)' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l source-option -d 'Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l metrics -d 'Serve Prometheus metrics at http://ADDR/metrics; ADDR is for example 127.0.0.1:9187' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l follow -d 'Continue after the end of the input, until stopped: with lines appended to the last file, transactions committed on the source, or messages written to the topics'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l plan -d 'Show what would be done, then stop'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l create-slot -d 'Create the replication slot if it is missing, and apply changes from then on'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l snapshot -d 'Create the replication slot if it is missing, and first copy the rows of the publication\'s tables'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-header -d 'Take the first line of DMS\'s csv as column names, even if `Op` is not the first of them'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l json -d 'Print the report as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -s q -l quiet -d 'Print errors only'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -s t -l table -d 'Let clients write into this table, spelled as in SQL; repeat for each table' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l listen -d 'Listen on this address and port, or on unix:/path' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l to -d 'Connect to this URL or key=value; by default PG* variables, else the embedded PostgreSQL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l tokens -d 'Answer only requests with a token of this file, one in each line; its mode must be 0600' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l tls-cert -d 'Serve HTTPS with this certificate, in PEM' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l tls-key -d 'The private key of the certificate, in PEM' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l client-ca -d 'Accept only clients with a certificate of this authority, in PEM' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l connections -d 'Write with at most this many connections' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l keep -d 'Remember the outcome of a request with an Idempotency-Key for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l max-connections -d 'Serve at most this many connections of clients' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l max-body -d 'Refuse larger bodies' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l queue -d 'Hold at most this many bytes of bodies; refuse further requests for now' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l request-timeout -d 'Close a connection whose next request, or its body, does not arrive in this time' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l retry-for -d 'Keep records that were not sent for this long while the server is unreachable; then answer that it is away' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l stall-timeout -d 'Drop a connection on which nothing arrives for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l lock-timeout -d 'Wait this long for a lock that another session holds; 0 waits for ever' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l share-triggers -d 'Write records of several requests by one statement although the table has triggers'
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -l json -d 'Print the summary as JSON on stdout at the end'
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -s q -l quiet -d 'Print errors only'
complete -c pgspate -n "__fish_pgspate_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l to -d 'Connect to this URL or key=value; by default as for load' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -s t -l table -d 'Check only this table, and what sessions wait for' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l watch -d 'Sample wait events and counters for this long; start your load before' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l storage -d 'Compare the sampled I/O with the limits of this volume: gp2:250GiB, gp3:500GiB,12000iops,500MiB/s, io1:400GiB,10000iops or io2:400GiB,10000iops' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l large-table -d 'Propose to partition tables of this size or more' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l stall-timeout -d 'Drop a connection on which nothing arrives for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l picture -d 'Draw the table\'s pages into this file: live rows, dead rows and free space' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l json -d 'Print all findings as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -s q -l quiet -d 'Print errors only, and findings only if there is a problem'
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l to -d 'Connect to this URL or key=value; by default as for load' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l memory -d 'Assume this memory of the server\'s machine [default: detected, or estimated]' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l cpus -d 'Assume this many CPUs of the server\'s machine [default: detected, or 2]' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l emit -d 'Print the settings for another tool to apply' -r -f -a "sql\t'ALTER SYSTEM statements'
rds\t'JSON for aws rds modify-db-parameter-group --cli-input-json; for Aurora modify-db-cluster-parameter-group'
terraform\t'Resources for Terraform'"
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l parameter-group -d 'Name the parameter group for --emit' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l stall-timeout -d 'Drop a connection on which nothing arrives for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l apply -d 'Record the old values in the ledger, then apply the settings with ALTER SYSTEM'
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l revert -d 'Put back the old values of the settings that --apply has changed'
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l json -d 'Print the settings as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -s q -l quiet -d 'Print errors, warnings and proposed settings only'
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -f -a "list" -d 'List the experiments, with their questions and durations'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -f -a "run" -d 'Run experiments; skip trials that are already measured'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -f -a "report" -d 'Write one page with all results'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from list" -l scale -d 'Scale the data by this factor; 1 is the published size [default: one that takes minutes]' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from list" -l json -d 'Print the list as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from list" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l data -d 'Load this data in `bulk` and `storage`: imdb, tpch, or your own files, folders and patterns' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l scale -d 'Scale the data by this factor; 1 is the published size [default: one that takes minutes]' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l repeats -d 'Run each trial this many times' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l seed -d 'Generate data and the order of trials from this seed' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l results -d 'Keep results in this folder, and continue an interrupted run from it' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l to -d 'Measure this server, in a schema of the lab; by default the lab starts a server' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l stall-timeout -d 'Drop a connection on which nothing arrives for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l only -d 'Run only trials with this level, such as strategy=pgspate; repeat it for more levels' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l fresh -d 'Start over: delete the results of these experiments'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l json -d 'Print medians and answers as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from report" -l results -d 'Read the results of this folder' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from report" -l out -d 'Write the page to this file; by default report.html in the folder of --results' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from report" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the experiments, with their questions and durations'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "run" -d 'Run experiments; skip trials that are already measured'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "report" -d 'Write one page with all results'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand fleet" -l generation -d 'Show this generation; by default the newest one' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand fleet" -l to -d 'Connect to this URL or key=value; by default as for load' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand fleet" -l stall-timeout -d 'Drop a connection on which nothing arrives for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand fleet" -l forget -d 'Forget the fleet, or one generation of it: its rows stay, and any generation may write them again'
complete -c pgspate -n "__fish_pgspate_using_subcommand fleet" -l json -d 'Print the report as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand fleet" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand fleet" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l to -d 'Connect to the database with the ledger, by URL or key=value; by default as for load' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l stall-timeout -d 'Drop a connection on which nothing arrives for this long' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l restore -d 'Put back what interrupted loads have left, such as indexes and prepared transactions'
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l forget -d 'Forget the job: its rows stay, and its sources can be loaded again'
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l json -d 'Print the jobs as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "start" -d 'Start the server if it is not running'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "stop" -d 'Stop the server'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "status" -d 'Show whether the server is running, and where its data is'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "dsn" -d 'Print the connection string of the server'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from start" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from start" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from stop" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from stop" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from status" -l json -d 'Print the status as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from status" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from dsn" -s q -l quiet -d 'Print errors and results only'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from dsn" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "start" -d 'Start the server if it is not running'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "stop" -d 'Stop the server'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "status" -d 'Show whether the server is running, and where its data is'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "dsn" -d 'Print the connection string of the server'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand reference" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "load" -d 'Load files into a table, in parallel, exactly as \\copy would'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "sync" -d 'Make rows of a table equal to a source, writing only what differs'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "apply" -d 'Apply a stream of changes to tables, exactly once'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "serve" -d 'Take records over HTTP, and answer each when it is durable'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "doctor" -d 'Find what slows writes on a server and what helps; change nothing'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "tune" -d 'Set a server up for a bulk load, and put the old settings back'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "lab" -d 'Measure ways of writing on your own server, and report them on one page'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "fleet" -d 'Show what the members of an array of jobs have done, and which are missing'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "status" -d 'Show the jobs, streams and changed settings that the ledger knows'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "server" -d 'Start, stop and inspect the embedded PostgreSQL'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "completions" -d 'Print completions for a shell'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "man" -d 'Print the manual page'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "reference" -d 'Print the reference of all options in Markdown'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply serve doctor tune lab fleet status server completions man reference help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "list" -d 'List the experiments, with their questions and durations'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "run" -d 'Run experiments; skip trials that are already measured'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "report" -d 'Write one page with all results'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from server" -f -a "start" -d 'Start the server if it is not running'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from server" -f -a "stop" -d 'Stop the server'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from server" -f -a "status" -d 'Show whether the server is running, and where its data is'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from server" -f -a "dsn" -d 'Print the connection string of the server'
