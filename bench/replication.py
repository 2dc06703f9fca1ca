"""The history of the stream as a PostgreSQL has it, for those that replicate from one.

A publisher applies the events, a thousand in a transaction, with a slot for each contender from
before the first of them. All changes are in the slot before a contender may read it. The measured
time ends when the target has all of them. Both contenders read over TCP.
"""

import time
from pathlib import Path

from server import DATABASE, LOOPBACK, USER, Server

NATIVE, SLOT = "native", "pgspate-slot"
SLOTS = {NATIVE: "native", SLOT: "pgspate"}
TOGETHER = 1000
PUBLISHER = {"wal_level": "logical", "max_wal_senders": "10", "max_replication_slots": "10"}

APPLY = """
create procedure replay() language plpgsql as $$
declare
  event record;
  n bigint := 0;
begin
  for event in select line from events order by nth loop
    case event.line ->> 'op'
    when 'delete' then
      delete from orders where id = (event.line #>> '{key,id}')::bigint;
    when 'insert' then
      insert into orders select * from jsonb_populate_record(null::orders, event.line -> 'row');
    else
      update orders o set (customer, status, amount, updated, note)
        = (r.customer, r.status, r.amount, r.updated, r.note)
        from jsonb_populate_record(null::orders, event.line -> 'row') r where o.id = r.id;
    end case;
    n := n + 1;
    if n % %TOGETHER% = 0 then
      commit;
    end if;
  end loop;
end $$;
"""


def publish(server: Server, create: str, start: str, events: Path) -> None:
    """Make the publisher's table as it is in the end, and its slots as they were at first."""
    # The separator and the quote are bytes that JSON does not have.
    copy = (
        f"\\copy events (line) from '{events}' "
        "with (format csv, delimiter e'\\x01', quote e'\\x02')"
    )
    server.sql(
        f"{create};\n{start};\n"
        "create unlogged table events (nth bigint generated always as identity, line jsonb);\n"
        f"{copy}\nvacuum analyze;\n"
        "create publication p for table orders;\n"
        + APPLY.replace("%TOGETHER%", str(TOGETHER))
        + "".join(
            f"select pg_create_logical_replication_slot('{slot}', 'pgoutput');\n"
            for slot in SLOTS.values()
        )
        + "call replay();\n"
    )


def address(server: Server, slot: str) -> str:
    """The source as `pgspate apply` takes it."""
    place = f"{LOOPBACK}:{server.port}"
    return f"postgres://{USER}@{place}/{DATABASE}?slot={slot}&publication=p"


def subscribe(publisher: Server, server: Server) -> float:
    """Let PostgreSQL's own subscription apply the history; the seconds that it took."""
    conninfo = f"host={LOOPBACK} port={publisher.port} user={USER} dbname={DATABASE}"
    server.sql(
        f"create subscription s connection '{conninfo}' publication p "
        f"with (slot_name = '{SLOTS[NATIVE]}', create_slot = false, enabled = false, "
        "copy_data = false);\n"
    )
    # Its target must have all before the slot is confirmed.
    end = publisher.sql("select pg_current_wal_lsn()")[0][0]
    is_done = (
        f"select confirmed_flush_lsn >= '{end}' from pg_replication_slots "
        f"where slot_name = '{SLOTS[NATIVE]}'"
    )
    begun = time.monotonic()
    server.sql("alter subscription s enable")
    while publisher.sql(is_done) != [["t"]]:
        time.sleep(0.05)
    seconds = time.monotonic() - begun
    server.sql("alter subscription s disable;\nalter subscription s set (slot_name = none);\n"
               "drop subscription s;\n")
    return seconds
