"""Names of traits and resource classes: standard ones, and custom ones that clients registered or hosts report."""

import functools
from collections.abc import Collection

import os_resource_classes
import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.sql import rows, scans
from nova.objects.hosts.placement import CUSTOM, RESOURCE_CLASS, TRAIT

TABLE = tables.placement_names
PROVIDERS = tables.providers
INVENTORIES = tables.inventories
_PAGE = 1000
_MOST_CLASSES = 1 << 31  # limit for scans.distinct() that is never reached
_WHAT = {TRAIT: "trait", RESOURCE_CLASS: "resource class"}


@functools.cache
def standard(kind: str) -> frozenset[str]:
    import os_traits  # costs two megabytes, which conductors without clients of the Placement API save

    return frozenset(os_traits.get_traits() if kind == TRAIT else os_resource_classes.STANDARDS)


def index(connection: sa.Connection, kind: str, associated: bool | None = None) -> list[str]:
    """Return all names in order. ``associated``: True for names that a provider has, False for unused names only."""
    used = _used_traits(connection) if kind == TRAIT else set(
        scans.distinct(connection, INVENTORIES.c.resource_class, {}, _MOST_CLASSES) or ())
    if associated:
        return sorted(used)
    names = {*standard(kind), *used, *connection.scalars(sa.select(TABLE.c.name).where(TABLE.c.kind == kind))}
    return sorted(names - used if associated is False else names)


def check(connection: sa.Connection, kind: str, names: Collection[str]) -> None:
    """Raise Invalid if a name is neither standard nor registered nor in use."""
    unknown = sorted(set(names) - standard(kind))
    if not unknown:
        return
    registered = set(connection.scalars(sa.select(TABLE.c.name).where(
        TABLE.c.kind == kind, TABLE.c.name.in_(unknown))))
    for name in unknown:
        if name not in registered and not _in_use(connection, kind, name):
            raise exception.Invalid(f"No such {_WHAT[kind]}: {name}.")


def exists(connection: sa.Connection, kind: str, name: str) -> bool:
    try:
        check(connection, kind, [name])
    except exception.Invalid:
        return False
    return True


def register(connection: sa.Connection, kind: str, name: str) -> bool:
    """Register a custom name; return False if it exists."""
    if exists(connection, kind, name):
        return False
    with rows.on_duplicate():
        connection.execute(sa.insert(TABLE).values(kind=kind, name=name))
    return True


def remove(connection: sa.Connection, kind: str, name: str) -> None:
    """Delete a custom name. Raises Invalid (a standard name), NotFound, and Conflict if a provider has it."""
    what = _WHAT[kind]
    if name in standard(kind):
        raise exception.Invalid(f"The standard {what} {name} cannot be renamed or deleted.")
    if _in_use(connection, kind, name):
        raise exception.PlacementConflict(f"The {what} {name} is in use by a resource provider.")
    if not connection.execute(sa.delete(TABLE).where(TABLE.c.kind == kind, TABLE.c.name == name)).rowcount:
        raise exception.NotFound(f"No such {what}: {name}.")


def rename_class(connection: sa.Connection, name: str, new: str) -> None:
    """Rename a custom resource class that no provider has. Raises Invalid, NotFound, Conflict."""
    remove(connection, RESOURCE_CLASS, name)
    if not register(connection, RESOURCE_CLASS, new):
        raise exception.PlacementConflict(f"Resource class already exists: {new}.")


def has_trait(trait: str) -> sa.ColumnElement[bool]:
    """Return the condition that a provider has a trait. Names of traits need no escapes in JSON."""
    condition: sa.ColumnElement[bool] = sa.type_coerce(PROVIDERS.c.traits, sa.Text).contains(
        f'"{trait}"', autoescape=True)
    return condition


def _in_use(connection: sa.Connection, kind: str, name: str) -> bool:
    if not name.startswith(CUSTOM):
        return False
    statement = sa.select(PROVIDERS.c.uuid).where(has_trait(name)) if kind == TRAIT else sa.select(
        INVENTORIES.c.provider_uuid).where(INVENTORIES.c.resource_class == name)
    return connection.scalar(statement.limit(1)) is not None


def _used_traits(connection: sa.Connection) -> set[str]:
    """Return the traits of all providers, read in pages."""
    used: set[str] = set()
    after = ""
    while True:
        page = connection.execute(sa.select(PROVIDERS.c.uuid, PROVIDERS.c.traits).where(PROVIDERS.c.uuid > after)
                                  .order_by(PROVIDERS.c.uuid).limit(_PAGE)).all()
        used.update(trait for row in page for trait in row.traits)
        if len(page) < _PAGE:
            return used
        after = page[-1].uuid
