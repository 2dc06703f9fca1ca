//! A server that plays a cluster of Citus with one node, for loads straight into shards. It has the
//! catalogs and functions that pgspate uses. Its shards are plain tables.

use std::time::Duration;

use pgspate::target::quote_literal;
use pgspate_embedded::ThrowawayServer;
use pgspate_embedded::testing;

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::protocol::MessageSide;
use crate::proxy::{Proxy, StatementRules};
use crate::run::{ask, session};

/// The catalogs and functions of Citus. `master_run_on_worker` needs a session of its own for each
/// command, because a prepared transaction cannot be ended within a transaction.
const CREATE_CLUSTER: &str = "\
create extension dblink;
set allow_system_table_mods = on;
create table pg_catalog.pg_dist_partition (
    logicalrelid regclass, partmethod \"char\", partkey text, repmodel \"char\");
create table pg_catalog.pg_dist_shard (
    shardid bigint, logicalrelid regclass, shardminvalue text, shardmaxvalue text);
create table pg_catalog.pg_dist_placement (shardid bigint, groupid int, shardstate int);
create table pg_catalog.pg_dist_node (
    groupid int, nodename text, nodeport int, isactive bool, hasmetadata bool,
    metadatasynced bool, noderole text);
create table pg_catalog.pg_dist_local_group (groupid int);
insert into pg_catalog.pg_dist_local_group values (0);
create function pg_catalog.column_to_column_name(regclass, text) returns text
    language sql as 'select $2';
create function pg_catalog.shard_name(regclass, bigint) returns text
    language sql as 'select relname || ''_'' || $2 from pg_class where oid = $1';
create function pg_catalog.lock_shard_metadata(int, bigint[]) returns void
    language sql as 'select pg_advisory_xact_lock_shared(id) from unnest($2) id';
create function pg_catalog.run_command_on_all_nodes(text, bool default true, bool default false)
    returns table (nodeid int, success bool, result text) language plpgsql as $$
begin
    nodeid := 1; success := true; execute $1 into result; return next;
    nodeid := 2; success := false; result := 'connection refused'; return next;
end $$;
create function pg_catalog.master_run_on_worker(text[], int[], text[], bool)
    returns table (node_name text, node_port int, success bool, result text)
    language plpgsql as $$
declare
    own text := {dsn};
begin
    for i in 1 .. cardinality($3) loop
        node_name := $1[i]; node_port := $2[i]; success := true;
        begin
            if $1[i] = 'gone.invalid' then
                raise 'connection refused';
            elsif $3[i] like 'commit prepared%' and to_regclass('public.node_is_down') is not null then
                raise 'connection refused';
            elsif $3[i] like 'select%' then
                select r into result from public.dblink(own, $3[i]) d(r text);
            else
                result := public.dblink_exec(own, $3[i]);
            end if;
        exception when others then
            success := false; result := sqlerrm;
        end;
        return next;
    end loop;
end $$";

/// The columns of the table that is distributed by `id`.
const COLUMNS: &str = "(id bigint, name text, amount numeric(10,2))";

/// The number of shards, which have ranges of the same size.
const SHARDS: i64 = 4;

/// A server that plays a cluster with the table `spread`.
pub(crate) struct FakeCluster {
    server: ThrowawayServer,
    /// Between pgspate and the node.
    node: Proxy,
}

impl FakeCluster {
    /// Starts the server. Its only node refuses the statements that `rules` refuses.
    pub(crate) fn start(rules: StatementRules) -> FakeCluster {
        FakeCluster::start_with(testing::server("max_prepared_transactions = 20"), rules)
    }

    /// Starts a server that accepts no PREPARE TRANSACTION.
    pub(crate) fn start_without_prepare() -> FakeCluster {
        FakeCluster::start_with(testing::server("max_prepared_transactions = 0"), |_| None)
    }

    fn start_with(server: ThrowawayServer, rules: StatementRules) -> FakeCluster {
        let dsn = server.dsn();
        ask(&dsn, &CREATE_CLUSTER.replace("{dsn}", &quote_literal(&dsn)));
        ask(&dsn, &format!("create table public.spread {COLUMNS}"));
        let node = Proxy::start_with_rules(&dsn, None, rules);
        ask(
            &dsn,
            &format!(
                "set allow_system_table_mods = on; \
                 insert into pg_catalog.pg_dist_partition values ('spread', 'h', 'id', 's'); \
                 insert into pg_catalog.pg_dist_node \
                 values (0, '127.0.0.1', {}, true, true, true, 'primary')",
                node.address().port()
            ),
        );
        for shard in 0..SHARDS {
            let size = (1_i64 << 32) / SHARDS;
            let lowest = i64::from(i32::MIN) + shard * size;
            let (id, highest) = (100 + shard, lowest + size - 1);
            ask(
                &dsn,
                &format!(
                    "create table public.spread_{id} () inherits (public.spread); \
                     set allow_system_table_mods = on; \
                     insert into pg_catalog.pg_dist_shard \
                     values ({id}, 'spread', '{lowest}', '{highest}'); \
                     insert into pg_catalog.pg_dist_placement values ({id}, 0, 1)"
                ),
            );
        }
        FakeCluster { server, node }
    }

    /// Returns the connection string of the coordinator.
    pub(crate) fn dsn(&self) -> String {
        self.server.dsn()
    }

    /// Runs `sql` and returns its first value.
    pub(crate) fn ask(&self, sql: &str) -> String {
        ask(&self.dsn(), sql)
    }

    /// Returns the number of rows in the shards, of different ids among them, and of rows that are
    /// in another shard than that of their hash.
    pub(crate) fn rows_in_shards(&self) -> String {
        let shards: Vec<String> = (100..100 + SHARDS)
            .map(|id| {
                format!(
                    "select t.id, hashint8(t.id) between s.shardminvalue::int \
                                                     and s.shardmaxvalue::int as is_right \
                     from public.spread_{id} t, pg_dist_shard s where s.shardid = {id}"
                )
            })
            .collect();
        self.ask(&format!(
            "select format('%s rows, %s ids, %s misplaced', count(*), count(distinct id), \
                           count(*) filter (where not is_right)) from ({}) rows",
            shards.join(" union all ")
        ))
    }

    /// Returns the number of rows that came through the coordinator.
    pub(crate) fn rows_by_coordinator(&self) -> String {
        self.ask("select count(*) from only public.spread")
    }

    /// Prepares a transaction that inserts a row into a shard, as the load with this job and this id
    /// of the coordinator's transaction would.
    pub(crate) fn prepare_row(&self, job: &str, xid: &str, id: u32) -> String {
        let name = self.ask(&format!(
            "select format('pgspate:%s:%s:{job}:0:{xid}:0', system_identifier, d.oid) \
             from pg_control_system(), pg_database d where datname = current_database()"
        ));
        let (runtime, node) = session(&self.dsn());
        let sql = format!(
            "begin; insert into public.spread_100 values ({id}, 'left', 1); \
             prepare transaction '{name}'"
        );
        runtime.block_on(node.batch_execute(&sql)).unwrap();
        name
    }

    /// Has the node lose each transaction that a load has prepared, when the coordinator decides.
    pub(crate) fn lose_prepared_at_commit(&self) {
        let own = quote_literal(&self.dsn());
        self.ask(&format!(
            "create function public.lose() returns trigger language plpgsql as $$
             declare name text;
             begin
                 for name in select gid from pg_prepared_xacts where gid like 'pgspate:%' loop
                     perform public.dblink_exec({own}, format('rollback prepared %L', name));
                 end loop;
                 return null;
             end $$;
             create constraint trigger lose after insert on pgspate.ledger
                 deferrable initially deferred for each row execute function public.lose()"
        ));
    }

    /// Cuts off the node from the next load, at the load's first rows. The coordinator still reaches
    /// the node.
    pub(crate) fn cut_off_node_while_copying(&self) {
        let first_rows = FaultPlace::Kind(MessageSide::Client, b'd', 1);
        self.node.arm(FaultPlan::new(Fault::Cut, first_rows).away(Duration::from_secs(600)));
    }

    /// Returns the number of transactions that are prepared.
    pub(crate) fn prepared(&self) -> String {
        self.ask("select count(*) from pg_prepared_xacts")
    }
}
