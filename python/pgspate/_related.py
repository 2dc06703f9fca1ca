"""Saves the objects that relationships of SQLAlchemy lead to: parents first, with their keys.

A row of COPY has only the columns of one table. So an object that exists in memory alone, and that
a relationship leads to, is saved by `save_graph` or refused by `check_related`, and never left out.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import NoInspectionAvailable, SAWarning
from sqlalchemy.orm import MANYTOMANY, MANYTOONE
from sqlalchemy.orm.attributes import (
    instance_dict,
    instance_state,
    set_attribute,
    set_committed_value,
)
from sqlalchemy.orm.base import PASSIVE_NO_INITIALIZE

from ._caller_transaction import RowCounts
from ._errors import PlanError, UsageError

# Expression of a column's default, and the sequence of an identity column.
_DEFAULT_SQL = """
select case when a.attidentity <> '' then
         'nextval(' || quote_literal(pg_get_serial_sequence(:table, a.attname)) || ')'
       else pg_get_expr(d.adbin, d.adrelid) end
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = cast(to_regclass(:table) as oid) and a.attname = :column
"""


class _Link(NamedTuple):
    """A reference from one object's foreign key to another object.

    Attributes:
        source: Object with the referenced columns.
        target: Object with the foreign key.
        pairs: Attributes of the referenced columns with those of the foreign key.
    """

    source: Any
    target: Any
    pairs: tuple[tuple[str, str], ...]


@contextmanager
def without_warnings_of(rows: Iterable[Any]) -> Iterator[None]:
    """Leaves out warnings of a flush that it does not save these rows: pgspate saves them."""
    with warnings.catch_warnings():
        if isinstance(rows, (list, tuple)):
            for name in {type(row).__name__ for row in rows}:
                message = f"Object of type <{re.escape(name)}> not in session"
                warnings.filterwarnings("ignore", message, SAWarning)
        yield


def without_pending(rows: Iterable[Any]) -> Iterable[Any]:
    """Returns the rows. Refuses new objects of a session, which would save them a second time.

    Objects of an iterable are checked when they are read.
    """
    if isinstance(rows, (list, tuple)):
        for row in rows:
            _refuse_pending(row)
        return rows
    return map(_refuse_pending, rows)


def _refuse_pending(row: Any) -> Any:
    """Returns a row. Refuses an object that a session saves when it is flushed."""
    state = getattr(row, "_sa_instance_state", None)
    if state is not None and state.pending:
        message = f"{type(row).__name__} is in the session already, which saves it itself"
        hint = "Leave it out, or take it out of the session with `session.expunge(...)`."
        raise UsageError(message, hint=hint)
    return row


def classes_have_relationships(rows: Iterable[Any]) -> bool:
    """Returns whether a class of the rows has relationships."""
    classes: set[Any] = {type(row) for row in rows}
    return any(map(_relationships, classes))


def has_related(rows: Iterable[Any]) -> bool:
    """Returns whether any row has a relationship to an object that is not stored yet."""
    return any(_is_new(other) for row in rows for _, other in _links(row))


def check_related(rows: Iterable[Any], hint: str) -> Iterator[Any]:
    """Yields the rows. Fills foreign keys from objects that are stored already.

    Raises `UsageError` for an object that is not stored yet, with this hint.
    """
    for row in rows:
        for link, other in _links(row):
            if _is_new(other):
                names = f"{type(row).__name__} has a related {type(other).__name__}"
                raise UsageError(f"{names}, which is not stored yet", hint=hint)
            _fill(link)
        yield row


def save_graph(
    connection: Any,
    rows: list[Any],
    table_name: Callable[[Any], str],
    write: Callable[[Any, list[Any]], RowCounts],
) -> dict[Any, RowCounts]:
    """Saves rows and the new objects that they are related to.

    Args:
        connection: Connection of SQLAlchemy.
        rows: Objects of mapped classes.
        table_name: Function that returns the name in SQL of a mapped class's table.
        write: Function that writes objects of one class, and returns their numbers.

    Returns:
        The numbers of rows by class, in the order in which they were written.
    """
    objects, links = _collect(rows)
    counts: dict[Any, RowCounts] = {}
    for cls in _parents_first(objects, links):
        group = objects[cls]
        to_group = [link for link in links if type(link.target) is cls]
        for link in to_group:
            if type(link.source) is not cls:
                _fill(link)
        needed = {name for link in links if type(link.source) is cls for name, _ in link.pairs}
        for name in sorted(needed):
            # COPY writes a column of all rows, so all rows of the class get a key.
            _make_keys(connection, table_name(cls), cls, name, group)
        for link in to_group:
            if type(link.source) is cls:
                _fill(link)
        counts[cls] = write(cls, group)
    return counts


def _collect(rows: list[Any]) -> tuple[dict[Any, list[Any]], list[_Link]]:
    """Returns the rows and the new objects that they lead to by class, and the links."""
    objects: dict[Any, list[Any]] = defaultdict(list)
    links: dict[tuple[int, int, tuple[tuple[str, str], ...]], _Link] = {}
    seen: set[int] = set()
    waiting = list(reversed(rows))
    while waiting:
        row = waiting.pop()
        if id(row) in seen:
            continue
        seen.add(id(row))
        objects[type(row)].append(row)
        found = []
        for link, other in _links(row):
            # Both sides of a relationship may have the link.
            links[id(link.source), id(link.target), link.pairs] = link
            if _is_new(other):
                found.append(other)
        # The last one waiting is the next, and the session saves objects in their order.
        waiting.extend(reversed(found))
    return objects, list(links.values())


def _parents_first(objects: dict[Any, list[Any]], links: list[_Link]) -> list[Any]:
    """Returns the classes, each after the classes that its foreign keys refer to."""
    sorter: TopologicalSorter[Any] = TopologicalSorter({cls: () for cls in objects})
    for link in links:
        source, target = type(link.source), type(link.target)
        if source is not target and source in objects:
            sorter.add(target, source)
    try:
        return list(sorter.static_order())
    except CycleError as error:
        names = ", ".join(cls.__name__ for cls in error.args[1][:-1])
        hint = "Save these objects by the session: `session.add_all(...)`."
        raise UsageError(f"the classes {names} refer to each other", hint=hint) from None


def _links(row: Any) -> Iterator[tuple[_Link, Any]]:
    """Yields the links of an object's own relationships, each with the object at its other end."""
    cls: Any = type(row)
    relationships = _relationships(cls)
    if not relationships:
        return
    state, values = instance_state(row), instance_dict(row)
    for name, (relationship, pairs) in relationships.items():
        if name not in values and name not in state.committed_state:
            continue
        impl: Any = state.manager[name].impl
        added = impl.get_history(state, values, PASSIVE_NO_INITIALIZE).added or ()
        for other in added:
            if other is None:
                if relationship.direction is MANYTOONE:
                    _clear(row, pairs)
                continue
            if relationship.direction is MANYTOMANY:
                hint = "Save such objects by the session: `session.add_all(...)`."
                message = f"{type(row).__name__}.{name} is a many-to-many relationship"
                raise UsageError(f"{message}, whose rows pgspate cannot save", hint=hint)
            is_to_one = relationship.direction is MANYTOONE
            source, target = (other, row) if is_to_one else (row, other)
            link = _Link(source, target, pairs)
            if is_to_one or _is_new(other):
                yield link, other
            elif not _is_filled(link) and not _is_saved_by_session(link):
                message = f"{type(row).__name__}.{name} has a stored {type(other).__name__}"
                hint = "Set this foreign key after the call, or save these objects by the session."
                raise UsageError(f"{message}, whose foreign key would not be changed", hint=hint)


@lru_cache(maxsize=256)
def _relationships(cls: Any) -> dict[str, tuple[Any, tuple[tuple[str, str], ...]]]:
    """Returns the relationships of a mapped class that write, with their pairs of attributes."""
    try:
        mapper = sa.inspect(cls)
    except NoInspectionAvailable:
        return {}
    found = {}
    for relationship in getattr(mapper, "relationships", ()):
        if relationship.viewonly:
            continue
        source, target = mapper, relationship.mapper
        if relationship.direction is MANYTOONE:
            source, target = target, source
        pairs: tuple[tuple[str, str], ...] = ()
        if relationship.direction is not MANYTOMANY:
            pairs = tuple(
                (source.get_property_by_column(one).key, target.get_property_by_column(other).key)
                for one, other in relationship.synchronize_pairs
            )
        found[relationship.key] = (relationship, pairs)
    return found


def _is_new(row: Any) -> bool:
    """Returns whether an object exists in memory alone."""
    return instance_state(row).key is None


def _clear(row: Any, pairs: tuple[tuple[str, str], ...]) -> None:
    """Sets a foreign key to None, as a session does if the relationship was set to None."""
    for _, target in pairs:
        set_attribute(row, target, None)


def _is_filled(link: _Link) -> bool:
    """Returns whether the foreign key of a link has the values of the referenced columns."""
    return all(getattr(link.source, one) == getattr(link.target, it) for one, it in link.pairs)


def _is_saved_by_session(link: _Link) -> bool:
    """Returns whether a session fills the foreign key of a link when it is flushed."""
    session = instance_state(link.target).session
    return session is not None and session is instance_state(link.source).session


def _fill(link: _Link) -> None:
    """Gives the foreign key of a link the values of the referenced columns."""
    for source, target in link.pairs:
        set_committed_value(link.target, target, getattr(link.source, source))


def _make_keys(connection: Any, table: str, cls: Any, name: str, rows: list[Any]) -> None:
    """Gives an attribute of rows the value that its column would get, if the row has no value."""
    without = [row for row in rows if _is_new(row) and instance_dict(row).get(name) is None]
    if not without:
        return
    column = sa.inspect(cls).column_attrs[name].columns[0]
    default: Any = column.default
    if default is not None and (default.is_scalar or default.is_callable):
        values = [default.arg if default.is_scalar else default.arg(None) for _ in without]
    else:
        expression = _default_expression(connection, table, column)
        series = sa.func.generate_series(1, len(without))
        made = sa.literal_column(expression, column.type).label("key")
        values = list(connection.scalars(sa.select(made).select_from(series)))
    for row, value in zip(without, values):
        set_committed_value(row, name, value)


def _default_expression(connection: Any, table: str, column: Any) -> str:
    """Returns the expression of a column's default as SQL."""
    default: Any = column.default
    if default is not None and default.is_sequence:
        return str(default.next_value().compile(dialect=connection.dialect))
    names = {"table": table, "column": column.name}
    expression = connection.scalar(sa.text(_DEFAULT_SQL), names)
    if expression is None:
        message = f'column "{column.name}" of {table} has no default, and a row has no value for it'
        raise PlanError(message, hint="Set the keys of objects that other objects refer to.")
    return str(expression)
