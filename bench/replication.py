"""The stream's events as a publisher's history, for the contenders that use logical replication.

The publisher creates a replication slot for each contender, then applies the events, a thousand in
a transaction. A contender starts only after the publisher has applied all events. The measured time
ends when the target has all changes. Both contenders read over TCP.
"""

import time
from pathlib import Path

from server import DATABASE, LOOPBACK, USER, Server

# Contenders: a PostgreSQL subscription, and pgspate reading a slot. SLOTS has their slots.
NATIVE, SLOT = "native", "pgspate-slot"
SLOTS = {NATIVE: "native", SLOT: "pgspate"}
EVENTS_PER_TRANSACTION = 1000
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
    if n % %EVENTS_PER_TRANSACTION% = 0 then
      commit;
    end if;
  end loop;
end $$;
"""


def publish(server: Server, create: str, start: str, events: Path) -> None:
    """Creates the publisher's table and slots, then applies all events to the table."""
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
        + APPLY.replace("%EVENTS_PER_TRANSACTION%", str(EVENTS_PER_TRANSACTION))
        + "".join(
            f"select pg_create_logical_replication_slot('{slot}', 'pgoutput');\n"
            for slot in SLOTS.values()
        )
        + "call replay();\n"
    )


def address(server: Server, slot: str) -> str:
    """Returns the source argument of `pgspate apply` for a slot."""
    place = f"{LOOPBACK}:{server.port}"
    return f"postgres://{USER}@{place}/{DATABASE}?slot={slot}&publication=p"


def subscribe(publisher: Server, server: Server) -> float:
    """Applies the history with a PostgreSQL subscription, and returns the seconds."""
    conninfo = f"host={LOOPBACK} port={publisher.port} user={USER} dbname={DATABASE}"
    server.sql(
        f"create subscription s connection '{conninfo}' publication p "
        f"with (slot_name = '{SLOTS[NATIVE]}', create_slot = false, enabled = false, "
        "copy_data = false);\n"
    )
    # The subscriber confirms a position only after it has flushed all changes before it.
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
