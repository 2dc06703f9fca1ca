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

complete -c pgspate -n "__fish_pgspate_needs_command" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_needs_command" -s V -l version -d 'Print version'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "load" -d 'Load files into a table, in parallel, exactly as \\copy would'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "sync" -d 'Make rows of a table like a source: only what differs is written'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "apply" -d 'Apply a stream of changes to tables, exactly once'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "doctor" -d 'Find what slows writes on a server, and what to do; changes nothing'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "tune" -d 'Set a server up for a bulk load, and put it back'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "lab" -d 'Measure ways of writing on a server of your own, and make a page of it'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "status" -d 'Say what the ledger knows of loads, finished or not'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "server" -d 'Start, stop and ask after the embedded PostgreSQL'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "completions" -d 'Print completions for a shell'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "man" -d 'Print the manual page'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "reference" -d 'Print the reference of all options in Markdown'
complete -c pgspate -n "__fish_pgspate_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -s t -l table -d 'The table, as SQL writes it; named after the first source by default' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l to -d 'Where to: a URL or key=value; by default PG* variables, else the embedded PostgreSQL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l replace -d 'The input\'s rows instead of those that the table has, which stay until all are there' -r -f -a "auto\t'As the table allows'
truncate\t'In one transaction that empties the table first; readers wait for its end'
swap\t'By a shadow table that takes its place; readers wait for the exchange only'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l lanes -d 'Connections that load at the same time: a number, or auto' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l commit -d 'When to commit: at the end, with each chunk, or auto by the size of the input' -r -f -a "auto\t'At the end below 1 GiB, with each chunk above'
end\t'All at the end: a load that fails leaves nothing behind'
chunk\t'Each chunk: a load that stops goes on from there when it is run again'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l rejects -d 'Set rows that are refused aside in this file, and load the rest' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l max-rejects -d 'Stop when more rows are refused than this: a number, or a share such as 0.5%' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l retry-for -d 'How long to go on trying when the server is away' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l stall-timeout -d 'How long to wait for a connection over which nothing comes any more' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l lock-timeout -d 'How long to wait for a lock that another session holds; 0 for ever' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l rebuild-indexes -d 'Drop indexes and foreign keys for the load and make them again: auto where that pays' -r -f -a "auto\t'Where it pays'
always\t'Wherever it can be done'
never\t'Not at all'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l pause-autovacuum -d 'Switch autovacuum off for the table meanwhile: auto from 8 GiB of input on' -r -f -a "auto\t'Where it pays'
always\t'Wherever it can be done'
never\t'Not at all'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l analyze -d 'Run ANALYZE afterwards: auto when a tenth of the rows is new' -r -f -a "auto\t'Where it pays'
always\t'Wherever it can be done'
never\t'Not at all'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l format -d 'Format of the input; found out by default' -r -f -a "csv\t'Delimited, quoted as COPY\'s csv'
tsv\t'Delimited by tabs'
text\t'COPY\'s text: tabs, \\N and backslash escapes'
json\t'One object per line, or an array of objects'
parquet\t'Parquet'
arrow\t'Arrow IPC, file or stream'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l header -d 'Whether the first record names the columns' -r -f -a "auto\t'Find out'
yes\t'It does'
no\t'It does not'"
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l delimiter -d 'Between two fields: one byte, or \\t' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l quote -d 'Around a field: one byte, or none' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l escape -d 'Before a quote that is data; the quote itself by default' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l null -d 'The unquoted field that means NULL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l force-null -d 'Columns in which a quoted NULL string is NULL too' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l force-not-null -d 'Columns in which an unquoted NULL string is itself' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l comment -d 'Pass over lines that begin with this' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l encoding -d 'Encoding of the input, as PostgreSQL names it' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l columns -d 'The columns that the fields go to, in the fields\' order' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l source-option -d 'Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l create -d 'Make the table when it is missing, with the types that the input needs'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l atomic -d 'All rows become visible at once, or with --replace instead of the old ones'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l plan -d 'Show what would be done, and why, and stop'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l restart -d 'Begin anew, whatever the ledger says of earlier runs; what they wrote stays'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l no-ledger -d 'Keep no ledger: in one piece, not resumable, and loaded as often as it is asked for'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l vacuum -d 'Run VACUUM (FREEZE, ANALYZE) afterwards'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l skip-blank-lines -d 'Pass over empty lines, which to COPY are records of one empty field'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l ignore-unknown -d 'Pass over fields and keys that no column is named after'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -l json -d 'Print the report, or with --plan the plan, as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -s q -l quiet -d 'Print errors only'
complete -c pgspate -n "__fish_pgspate_using_subcommand load" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -s t -l table -d 'The table, as SQL writes it; named after the first source by default' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l to -d 'Where to: a URL or key=value; by default PG* variables, else the embedded PostgreSQL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l key -d 'The columns that identify a row; the primary key\'s by default' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l scope-by -d 'Rows whose values in these columns occur in the source' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l scope -d '`all` for the whole table, or an SQL predicate over its columns' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l ignore-columns -d 'Columns that are not compared, and written only when something else differs' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l keep -d 'Which of rows with the same key counts; they are refused otherwise' -r -f -a "last\t'The last one in the source'"
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l lanes -d 'Sessions that share the scopes of --scope-by, each with a transaction of its own' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l read-ahead -d 'Read the table first and stage only rows that it does not have: auto where most are there' -r -f -a "auto\t'Where it pays'
always\t'Wherever it can be done'
never\t'Not at all'"
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l max-delete -d 'Refuse to delete more of the scope than this' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l transactions -d 'Write the scopes of --scope-by in so many transactions, one after the other: with --vacuum each one writes where rows of the one before died' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l retry-for -d 'How long to go on trying when another session is in the way' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l stall-timeout -d 'How long to wait for a connection over which nothing comes any more' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l lock-timeout -d 'How long to wait for a lock that another session holds; 0 for ever' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l format -d 'Format of the input; found out by default' -r -f -a "csv\t'Delimited, quoted as COPY\'s csv'
tsv\t'Delimited by tabs'
text\t'COPY\'s text: tabs, \\N and backslash escapes'
json\t'One object per line, or an array of objects'
parquet\t'Parquet'
arrow\t'Arrow IPC, file or stream'"
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l header -d 'Whether the first record names the columns' -r -f -a "auto\t'Find out'
yes\t'It does'
no\t'It does not'"
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l delimiter -d 'Between two fields: one byte, or \\t' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l quote -d 'Around a field: one byte, or none' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l escape -d 'Before a quote that is data; the quote itself by default' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l null -d 'The unquoted field that means NULL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l force-null -d 'Columns in which a quoted NULL string is NULL too' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l force-not-null -d 'Columns in which an unquoted NULL string is itself' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l comment -d 'Pass over lines that begin with this' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l encoding -d 'Encoding of the input, as PostgreSQL names it' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l columns -d 'The columns that the fields go to, in the fields\' order' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l source-option -d 'Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l price-per-million-io -d 'What a million I/Os cost, for an estimate of what this costs where they are billed' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l no-delete -d 'Update and insert, and delete nothing'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l insert-only -d 'Insert only'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l check -d 'Change nothing: count what differs, with examples; exit 1 if anything does'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l advise-only -d 'Change nothing: say what would make syncs like this one cheaper; exit 1 if anything would'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l plan -d 'Show the statements, and stop'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l vacuum -d 'Vacuum the table afterwards, so that the next sync writes where rows died'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l allow-empty -d 'Let a source without rows empty the scope'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l skip-blank-lines -d 'Pass over empty lines, which to COPY are records of one empty field'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l ignore-unknown -d 'Pass over fields and keys that no column is named after'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -l json -d 'Print the report as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -s q -l quiet -d 'Print errors only'
complete -c pgspate -n "__fish_pgspate_using_subcommand sync" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l to -d 'Where to: a URL or key=value; by default PG* variables, else the embedded PostgreSQL' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l stream -d 'The name by which the ledger knows the stream; the first source\'s by default' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l format -d 'Format of the events; found out by default' -r -f -a "debezium\t''
wal2json\t''
maxwell\t''
canal\t''
dms\t''
pgspate\t''"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l map -d 'Apply the events of a table to another one; `*` on both sides stands for the same' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l tables -d 'Apply the events of these tables only, as the stream names them; `*` stands for anything' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l unknown-columns -d 'What to do about columns that the table does not have' -r -f -a "fail\t'Refuse the event'
ignore\t'Pass over the column'
add\t'Add the column to the table, of type text'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l at-end -d 'What to do when the input ends within a source transaction' -r -f -a "hold\t'Leave the transaction out, and end with an error'
apply\t'Apply what there is of it'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l max-dead-letters -d 'Set up to so many bad events aside in pgspate.dead_letter, and apply the others' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l retry-for -d 'How long to go on trying when the server is away or another session in the way' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l stall-timeout -d 'How long to wait for a connection over which nothing comes any more' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l lock-timeout -d 'How long to wait for a lock that another session holds; 0 for ever' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l batch-rows -d 'Events that are committed together, at most' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l batch-bytes -d 'MiB of input that are committed together, at most, and of what its events take; memory is some eight times that' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l direct-rows -d 'Batches of up to so many rows are written without a temporary table' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l batch-delay -d 'How many milliseconds an event waits for others when nothing is being written' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l source-table -d 'The table of rows that do not name theirs: flattened rows of Debezium, files of DMS' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l debezium-placeholder -d 'Debezium\'s `unavailable.value.placeholder`, where the connector sets it' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l debezium-time -d 'What Debezium\'s times are counted in, where no schema says it' -r -f -a "ms\t'Milliseconds, as with `time.precision.mode=connect`'
us\t'Microseconds'
ns\t'Nanoseconds'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l debezium-decimals -d 'What Debezium\'s decimals are, where no schema says it' -r -f -a "bytes\t'Bytes, as with `decimal.handling.mode=precise`'
text\t'Digits, as with `decimal.handling.mode=string`'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l debezium-bytes -d 'What Debezium\'s bytes are, where no schema says it' -r -f -a "base64\t'Base64, as with `binary.handling.mode=bytes` and `base64`'
hex\t'Hexadecimal digits, as with `binary.handling.mode=hex`'"
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-columns -d 'The columns of DMS\'s csv, where no header names them' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-null -d 'The unquoted field of DMS\'s csv that means NULL (`CsvNullValue`)' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-absent -d 'The unquoted field of DMS\'s csv for a column that is not told (`CsvNoSupValue`)' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-delimiter -d 'Between two fields of DMS\'s csv: one byte, or \\t (`CsvDelimiter`)' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l source-option -d 'Set an option of the source; for secrets KEY=@FILE or KEY=env:NAME' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l metrics -d 'Serve metrics for Prometheus at http://ADDR/metrics, such as 127.0.0.1:9187' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l follow -d 'Go on when the input ends, until stopped: with what is appended to the last file, what is committed on the source, or what is written to the topics'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l plan -d 'Show what would be done, and stop'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l create-slot -d 'Make the replication slot when it is not there, and apply what changes from then on'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l snapshot -d 'Make the replication slot when it is not there, and copy the rows of its tables first'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l dms-header -d 'The first line of DMS\'s csv names the columns, even if `Op` is not the first of them'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -l json -d 'Print the report as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -s q -l quiet -d 'Print errors only'
complete -c pgspate -n "__fish_pgspate_using_subcommand apply" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l to -d 'The server: a URL or key=value; by default as for load' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -s t -l table -d 'Look at this table only, and at what sessions wait for' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l watch -d 'Sample what sessions wait for, and what is counted, for so long; run a load meanwhile' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l storage -d 'The server\'s volume: gp2:250GiB, gp3:500GiB,12000iops,500MiB/s, io1:400GiB,10000iops, io2' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l large-table -d 'From which size on a table should be partitioned' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l stall-timeout -d 'How long to wait for a connection over which nothing comes any more' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l picture -d 'Draw the table\'s pages into this file: what is live, dead and free' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -l json -d 'Print everything that was looked at as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand doctor" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l to -d 'The server: a URL or key=value; by default as for load' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l memory -d 'Memory of the server\'s machine; found out where it is this one' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l cpus -d 'Processors of the server\'s machine; found out where it is this one' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l emit -d 'Print the settings for whoever applies them' -r -f -a "sql\t'ALTER SYSTEM'
rds\t'JSON for aws rds modify-db-parameter-group --cli-input-json; for Aurora modify-db-cluster-parameter-group'
terraform\t'Resources for Terraform'"
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l parameter-group -d 'The parameter group that --emit is for' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l stall-timeout -d 'How long to wait for a connection over which nothing comes any more' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l apply -d 'Apply them by ALTER SYSTEM; the way back is in the ledger first'
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l revert -d 'Put back what --apply has changed'
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -l json -d 'Print it as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand tune" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -f -a "list" -d 'Say which experiments there are, what each asks, and how long it takes'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -f -a "run" -d 'Run experiments; what is measured already is not run again'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -f -a "report" -d 'Make one page of everything that was measured'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and not __fish_seen_subcommand_from list run report help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from list" -l scale -d 'How large: 1 is the published size; by default what takes some minutes' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from list" -l json -d 'Print it as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l data -d 'What bulk and storage load: imdb, tpch, or files, folders and patterns of your own' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l scale -d 'How large: 1 is the published size; by default what takes some minutes' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l repeats -d 'How often each trial is made' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l seed -d 'What generated data and the order of the trials follow from' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l results -d 'The folder that results are kept in, and that a stopped run is continued from' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l to -d 'A server to measure, in a schema of the lab\'s; by default one of the lab\'s own is started' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l stall-timeout -d 'How long to wait for a connection over which nothing comes any more' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l only -d 'Only trials with this level, as strategy=pgspate; several of one factor are all meant' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l fresh -d 'Begin anew: drop what is measured of these experiments'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -l json -d 'Print medians and answers as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -s q -l quiet -d 'Print errors only'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from run" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from report" -l results -d 'The folder that results are kept in' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from report" -l out -d 'The page; report.html in that folder by default' -r -F
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from report" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "list" -d 'Say which experiments there are, what each asks, and how long it takes'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "run" -d 'Run experiments; what is measured already is not run again'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "report" -d 'Make one page of everything that was measured'
complete -c pgspate -n "__fish_pgspate_using_subcommand lab; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l to -d 'Where the ledger is: a URL or key=value; by default as for load' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l stall-timeout -d 'How long to wait for a connection over which nothing comes any more' -r
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l restore -d 'Put back what loads that did not end well have changed on tables: indexes, options'
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l forget -d 'Forget the job: its rows stay, and its sources can be loaded again'
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -l json -d 'Print it as JSON on stdout'
complete -c pgspate -n "__fish_pgspate_using_subcommand status" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "start" -d 'Start it, if it is not running'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "stop" -d 'Stop it'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "status" -d 'Say whether it runs, and where its data is'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "dsn" -d 'Print how to connect to it'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and not __fish_seen_subcommand_from start stop status dsn help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from start" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from stop" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from status" -l json -d 'Print it as JSON'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from status" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from dsn" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "start" -d 'Start it, if it is not running'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "stop" -d 'Stop it'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "status" -d 'Say whether it runs, and where its data is'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "dsn" -d 'Print how to connect to it'
complete -c pgspate -n "__fish_pgspate_using_subcommand server; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand completions" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand man" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand reference" -s h -l help -d 'Print help'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "load" -d 'Load files into a table, in parallel, exactly as \\copy would'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "sync" -d 'Make rows of a table like a source: only what differs is written'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "apply" -d 'Apply a stream of changes to tables, exactly once'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "doctor" -d 'Find what slows writes on a server, and what to do; changes nothing'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "tune" -d 'Set a server up for a bulk load, and put it back'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "lab" -d 'Measure ways of writing on a server of your own, and make a page of it'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "status" -d 'Say what the ledger knows of loads, finished or not'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "server" -d 'Start, stop and ask after the embedded PostgreSQL'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "completions" -d 'Print completions for a shell'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "man" -d 'Print the manual page'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "reference" -d 'Print the reference of all options in Markdown'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and not __fish_seen_subcommand_from load sync apply doctor tune lab status server completions man reference help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "list" -d 'Say which experiments there are, what each asks, and how long it takes'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "run" -d 'Run experiments; what is measured already is not run again'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from lab" -f -a "report" -d 'Make one page of everything that was measured'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from server" -f -a "start" -d 'Start it, if it is not running'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from server" -f -a "stop" -d 'Stop it'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from server" -f -a "status" -d 'Say whether it runs, and where its data is'
complete -c pgspate -n "__fish_pgspate_using_subcommand help; and __fish_seen_subcommand_from server" -f -a "dsn" -d 'Print how to connect to it'
