//! Looks at tables whose rows an extension stores in parts: the shards of Citus on all nodes, and
//! the chunks of TimescaleDB. The other checks leave these parts alone.

use std::collections::BTreeMap;

use tokio_postgres::Row;

use super::context::{CheckContext, CheckResult, count};
use super::finding::{Check, Finding};
use pgspate_base::numbers::{bytes, counted, thousands};
use pgspate_target::TableStorage;

const PARTS: Check = Check {
    id: "parts",
    question: "Are the rows in shards of Citus and in chunks of TimescaleDB spread evenly and not \
               dead?",
    rule: "Citus distributes by hash, so even keys give even shards; by default, autovacuum starts \
           when dead rows reach a fifth of the rows",
};

/// Smaller tables are not reported as uneven.
const UNEVEN_BYTES_MIN: u64 = 64 << 20;
/// A shard with more than this multiple of the average size is reported.
const UNEVEN_SHARD: f64 = 2.0;
/// A node whose shards have more than this multiple of the average size is reported.
const UNEVEN_NODE: f64 = 1.5;
/// Tables with fewer dead rows are not reported.
const DEAD_MIN: u64 = 1000;

/// Runs on each node of Citus: the node's shards, with size and rows. Leaves out shards that a
/// session holds in ACCESS EXCLUSIVE mode. The node has its own search path.
const SHARDS_OF_NODE: &str = "\
select coalesce(pg_catalog.json_agg(pg_catalog.json_build_array(
           pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.pg_table_size(s.oid),
           pg_catalog.pg_stat_get_live_tuples(s.oid),
           pg_catalog.pg_stat_get_dead_tuples(s.oid)))::pg_catalog.text, '[]')
from pg_catalog.pg_dist_shard d
join pg_catalog.pg_class c on c.oid operator(pg_catalog.=) d.logicalrelid::pg_catalog.oid
join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) c.relnamespace
join pg_catalog.pg_class s on s.oid operator(pg_catalog.=) pg_catalog.to_regclass(
    pg_catalog.concat(case when n.nspname operator(pg_catalog.=) 'public' then 'public.' end,
                      pg_catalog.shard_name(d.logicalrelid, d.shardid)))::pg_catalog.oid
where not exists (select from pg_catalog.pg_locks l
                  where l.relation operator(pg_catalog.=) s.oid
                    and l.mode operator(pg_catalog.=) 'AccessExclusiveLock'
                    and l.pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid())";

/// Name, node, bytes, live and dead rows of each shard of a hash-distributed table. A node that
/// does not answer has one row, without a name.
const SHARDS: &str = "\
select e ->> 0, a.nodeid::bigint, (e ->> 1)::bigint, (e ->> 2)::bigint, (e ->> 3)::bigint
from run_command_on_all_nodes($1) a
left join lateral json_array_elements(case when a.success then a.result::json end) e on true
where not a.success or e ->> 0 in (
    select format('%I.%I', n.nspname, c.relname)
    from pg_dist_partition p join pg_class c on c.oid = p.logicalrelid
    join pg_namespace n on n.oid = c.relnamespace
    where p.partmethod = 'h' and ($2::oid = 0 or c.oid = $2::oid))";

/// Name, chunks, compressed chunks, bytes, bytes of the largest chunk, live and dead rows of each
/// hypertable. A compressed chunk has its rows in another table.
const CHUNKS: &str = "\
select format('%I.%I', h.schema_name, h.table_name), count(*),
       count(*) filter (where k.compressed_chunk_id is not null),
       sum(s.bytes)::bigint, max(s.bytes)::bigint, sum(s.live)::bigint, sum(s.dead)::bigint
from _timescaledb_catalog.hypertable h
join _timescaledb_catalog.chunk k on k.hypertable_id = h.id
left join _timescaledb_catalog.chunk z on z.id = k.compressed_chunk_id
cross join lateral (
    select sum(pg_table_size(c.oid)) as bytes, sum(pg_stat_get_live_tuples(c.oid)) as live,
           sum(pg_stat_get_dead_tuples(c.oid)) as dead
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where (n.nspname, c.relname) in ((k.schema_name, k.table_name),
                                     (z.schema_name, z.table_name))
      and not exists (select from pg_locks l where l.relation = c.oid
                      and l.mode = 'AccessExclusiveLock'
                      and l.pid is distinct from pg_backend_pid())) s
where h.schema_name !~ '^_timescaledb_'
  and ($1::oid = 0 or $1::oid = to_regclass(format('%I.%I', h.schema_name, h.table_name))::oid)
group by 1";

/// Finds uneven shards and nodes, and tables with many dead rows in their shards or chunks. Finds
/// nothing on a server without these extensions.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let (has_shards, has_chunks) = TableStorage::find_extensions(context.client).await?;
    let mut found = Vec::new();
    if has_shards {
        found.extend(check_shards(context).await?);
    }
    if has_chunks {
        let rows = context.query_with_table_oid(CHUNKS).await?;
        found.extend(rows.iter().flat_map(chunk_findings));
    }
    Ok(found)
}

/// The shards of a table, added up.
#[derive(Default)]
struct ShardTotals {
    shards: u64,
    bytes: u64,
    largest: u64,
    live: u64,
    dead: u64,
    bytes_of_node: BTreeMap<i64, u64>,
}

async fn check_shards(context: &CheckContext<'_>) -> CheckResult {
    let exists = "select to_regprocedure('run_command_on_all_nodes(text, boolean, boolean)') \
                  is not null";
    if !context.client.query_one(exists, &[]).await?.get::<_, bool>(0) {
        let text = "shards on other nodes: this version of Citus cannot query all nodes; run doctor \
                    on each node";
        return Ok(vec![PARTS.cannot_see(text)]);
    }
    let rows = context.client.query(SHARDS, &[&SHARDS_OF_NODE, &context.table]).await?;
    let mut tables: BTreeMap<String, ShardTotals> = BTreeMap::new();
    let mut found = Vec::new();
    for row in &rows {
        let node: i64 = row.get(1);
        let Some(table) = row.get::<_, Option<String>>(0) else {
            let text = format!("the shards on node {node}: the coordinator could not query it");
            found.push(PARTS.cannot_see(text));
            continue;
        };
        let totals = tables.entry(table).or_default();
        let size = count(row, 2);
        totals.shards += 1;
        totals.bytes += size;
        totals.largest = totals.largest.max(size);
        totals.live += count(row, 3);
        totals.dead += count(row, 4);
        *totals.bytes_of_node.entry(node).or_default() += size;
    }
    found.extend(tables.iter().flat_map(|(table, totals)| shard_findings(table, totals)));
    Ok(found)
}

fn shard_findings(table: &str, totals: &ShardTotals) -> Vec<Finding> {
    let ShardTotals { shards, bytes: size, largest, live, dead, bytes_of_node } = totals;
    let nodes = bytes_of_node.len() as u64;
    let fullest = bytes_of_node.values().copied().max().unwrap_or_default();
    let share = |part: u64| part as f64 / (*size).max(1) as f64;
    let text = format!(
        "{} on {} have {}; the largest has {:.0} %, the fullest node {:.0} %",
        counted(*shards, "shard"),
        counted(nodes, "node"),
        bytes(*size),
        share(*largest) * 100.0,
        share(fullest) * 100.0
    );
    let about = |finding: Finding| {
        finding
            .about(table)
            .count("shards", *shards)
            .count("bytes", *size)
            .number("largest_share", share(*largest))
            .number("fullest_node_share", share(fullest))
            .weight(*size as f64)
    };
    let is_uneven = |largest: u64, parts: u64, factor: f64| {
        *size >= UNEVEN_BYTES_MIN && share(largest) * parts as f64 > factor
    };
    let mut found = Vec::new();
    if is_uneven(*largest, *shards, UNEVEN_SHARD) {
        found.push(about(PARTS.note(text)).advice(
            "A few values of the distribution column have most rows. Writes to this shard wait for \
             one node. Distribute the table by a column with more values.",
        ));
    } else if is_uneven(fullest, nodes, UNEVEN_NODE) {
        let finding = about(PARTS.note(text)).advice("One node has most of the shards' rows.");
        found.push(finding.remedy("select citus_rebalance_start();"));
    } else {
        found.push(about(PARTS.ok(text)));
    }
    found.extend(dead_rows(table, "shards", *live, *dead));
    found
}

fn chunk_findings(row: &Row) -> Vec<Finding> {
    let table: String = row.get(0);
    let (chunks, compressed, size, largest) =
        (count(row, 1), count(row, 2), count(row, 3), count(row, 4));
    let text = format!(
        "{}, {} of them compressed, have {}; the largest has {}",
        counted(chunks, "chunk"),
        thousands(compressed),
        bytes(size),
        bytes(largest)
    );
    let whole = PARTS.ok(text).about(&table).count("chunks", chunks).count("bytes", size);
    let mut found = vec![whole.count("largest_bytes", largest).weight(size as f64)];
    found.extend(dead_rows(&table, "chunks", count(row, 5), count(row, 6)));
    found
}

/// Reports a table of which a fifth or more of the row versions in its parts are dead.
fn dead_rows(table: &str, parts: &str, live: u64, dead: u64) -> Option<Finding> {
    let share = dead as f64 / (live + dead).max(1) as f64;
    if dead < DEAD_MIN || share < 0.2 {
        return None;
    }
    let text = format!(
        "{} of {} row versions in the {parts} are dead ({:.0} %)",
        thousands(dead),
        thousands(live + dead),
        share * 100.0
    );
    Some(
        PARTS
            .note_or_warning(share >= 0.5, text)
            .about(table)
            .count("dead_rows", dead)
            .count("live_rows", live)
            .number("share", share)
            .weight(dead as f64)
            .remedy(format!("vacuum (analyze) {table};")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    /// Returns the verdicts and the evidence for shards with these sizes in MiB on each node.
    fn findings(nodes: &[&[u64]], live: u64, dead: u64) -> Vec<(Verdict, String)> {
        let mut totals = ShardTotals { live, dead, ..ShardTotals::default() };
        for (node, shards) in (1..).zip(nodes) {
            for size in shards.iter().map(|size| size << 20) {
                totals.shards += 1;
                totals.bytes += size;
                totals.largest = totals.largest.max(size);
                *totals.bytes_of_node.entry(node).or_default() += size;
            }
        }
        let found = shard_findings("public.t", &totals);
        found.into_iter().map(|it| (it.verdict, it.evidence)).collect()
    }

    #[test]
    fn even_shards_are_no_problem() {
        let found = findings(&[&[100, 110], &[90, 100]], 1000, 10);
        let text = "4 shards on 2 nodes have 419 MB; the largest has 28 %, the fullest node 52 %";
        assert_eq!(found, [(Verdict::Ok, text.to_owned())]);
    }

    #[test]
    fn a_shard_or_a_node_with_most_rows_is_a_note() {
        assert_eq!(findings(&[&[10, 10], &[10, 100]], 0, 0)[0].0, Verdict::Note);
        let three: [&[u64]; 3] = [&[60, 60, 60, 60], &[10], &[10]];
        assert_eq!(findings(&three, 0, 0)[0].0, Verdict::Note);
        // A small table may be uneven.
        assert_eq!(findings(&[&[1, 1], &[1, 20]], 0, 0)[0].0, Verdict::Ok);
    }

    #[test]
    fn a_fifth_of_dead_rows_is_a_note_and_a_half_is_a_warning() {
        assert_eq!(findings(&[&[10]], 7000, 3000)[1].0, Verdict::Note);
        assert_eq!(findings(&[&[10]], 3000, 7000)[1].0, Verdict::Warning);
        assert_eq!(findings(&[&[10]], 90_000, 10_000).len(), 1);
    }
}
