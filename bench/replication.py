"""The two contenders that use logical replication: a PostgreSQL subscription, and pgspate.

The publisher creates a replication slot for each contender. Then the publisher applies the stream's
events to its own table, a thousand events per transaction. A contender starts after all events are
applied. The measured time ends when the target has all changes. Both contenders read over TCP.
"""

import time
from pathlib import Path

from server import DATABASE, LOOPBACK, USER, Server

# Names of the contenders: a PostgreSQL subscription, and pgspate reading from a slot.
SUBSCRIPTION, PGSPATE_SLOT = "native", "pgspate-slot"
SLOT_BY_CONTENDER = {SUBSCRIPTION: "native", PGSPATE_SLOT: "pgspate"}
EVENTS_PER_TRANSACTION = 1000
PUBLISHER_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
}

CREATE_REPLAY_PROCEDURE = """
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


def fill_publisher(server: Server, create: str, start: str, events: Path) -> None:
    """Creates the publisher's table and slots, then applies all events to the table.

    `create` and `start` are the SQL that creates the table and inserts its first rows.
    """
    # Delimiter and quote are control characters, which JSON never contains.
    copy = (
        f"\\copy events (line) from '{events}' "
        "with (format csv, delimiter e'\\x01', quote e'\\x02')"
    )
    server.sql(
        f"{create};\n{start};\n"
        "create unlogged table events (nth bigint generated always as identity, line jsonb);\n"
        f"{copy}\nvacuum analyze;\n"
        "create publication p for table orders;\n"
        + CREATE_REPLAY_PROCEDURE.replace("%EVENTS_PER_TRANSACTION%", str(EVENTS_PER_TRANSACTION))
        + "".join(
            f"select pg_create_logical_replication_slot('{slot}', 'pgoutput');\n"
            for slot in SLOT_BY_CONTENDER.values()
        )
        + "call replay();\n"
    )


def slot_url(server: Server, slot: str) -> str:
    """Returns the URL with which `pgspate apply` reads from a slot of `server`."""
    host = f"{LOOPBACK}:{server.port}"
    return f"postgres://{USER}@{host}/{DATABASE}?slot={slot}&publication=p"


def measure_subscription(publisher: Server, server: Server) -> float:
    """Applies the publisher's changes by a PostgreSQL subscription, and returns the seconds."""
    conninfo = f"host={LOOPBACK} port={publisher.port} user={USER} dbname={DATABASE}"
    server.sql(
        f"create subscription s connection '{conninfo}' publication p "
        f"with (slot_name = '{SLOT_BY_CONTENDER[SUBSCRIPTION]}', create_slot = false, "
        "enabled = false, copy_data = false);\n"
    )
    # The subscriber confirms a position only after it has flushed all changes before it.
    end = publisher.sql("select pg_current_wal_lsn()")[0][0]
    is_done = (
        f"select confirmed_flush_lsn >= '{end}' from pg_replication_slots "
        f"where slot_name = '{SLOT_BY_CONTENDER[SUBSCRIPTION]}'"
    )
    start_time = time.monotonic()
    server.sql("alter subscription s enable")
    while publisher.sql(is_done) != [["t"]]:
        time.sleep(0.05)
    seconds = time.monotonic() - start_time
    server.sql(
        "alter subscription s disable;\nalter subscription s set (slot_name = none);\n"
        "drop subscription s;\n"
    )
    return seconds
