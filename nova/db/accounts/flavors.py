"""Flavors, their extra specs and their access lists."""

import functools
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.db import tables
from nova.db.sql import clock, hot, regexp, rows
from nova.objects.accounts.flavor import Flavor, FlavorQuery

TABLE = tables.flavors
ACCESS = tables.flavor_access

SORT_KEYS = frozenset({"created_at", "description", "disabled", "ephemeral_gb", "flavorid", "id", "is_public",
                       "memory_mb", "name", "root_gb", "rxtx_factor", "swap", "updated_at", "vcpus"})


def _open_to(project_id: Any) -> sa.ColumnElement[bool]:
    return sa.exists().where(ACCESS.c.flavor_id == TABLE.c.id, ACCESS.c.project_id == project_id)


def index(connection: sa.Connection, query: FlavorQuery) -> list[Flavor]:
    """Return a page of flavors. Raises MarkerNotFound, InvalidInput (sort key, name pattern). A query for public
    flavors also returns the private flavors to which ``query.project_id`` has access."""
    if query.sort_key not in SORT_KEYS | {"vcpu_weight"} or query.sort_dir not in ("asc", "desc"):
        raise exception.InvalidInput(reason=f"flavors cannot be sorted by {query.sort_key} {query.sort_dir}")
    # vcpu_weight is null for every flavor: sort by id alone.
    sort: tuple[tuple[str, str], ...] = (("id", query.sort_dir),)
    if query.sort_key not in ("id", "vcpu_weight"):
        sort = ((query.sort_key, query.sort_dir), *sort)
    of_project = bool(query.is_public) and query.project_id is not None
    limited = query.limit is not None and not query.name
    page = _visible(query.is_public, of_project, sort, limited)
    values = {**({"project": query.project_id} if of_project else {}), **({"limit": query.limit} if limited else {})}
    constant, marker = page, None
    if query.marker is not None:  # A flavor that the caller may not see is not a valid marker, either.
        marked = page.where(TABLE.c.flavorid == query.marker).limit(1).params(values)
        marker = rows.marker_row(connection, marked, query.marker)
    if marker is not None:
        page = page.where(rows.after(TABLE, sort, marker))
    if query.min_ram:
        page = page.where(TABLE.c.memory_mb >= query.min_ram)
    if query.min_disk:
        page = page.where(TABLE.c.root_gb >= query.min_disk)
    if query.name:
        match = regexp.matches(TABLE.c.name, query.name)
        candidates = page.with_only_columns(TABLE.c.id, TABLE.c.name).where(match.likely).params(values)
        ids = regexp.filtered(connection, "id", candidates, [match], query.limit)
        page, values = rows.page(sa.select(TABLE).where(TABLE.c.id.in_(ids)), TABLE, sort, None, None), {}
    stored = hot.execute(connection, page, values) if page is constant else connection.execute(page, values)
    return rows.to_objects(Flavor, stored)


@functools.cache
def _visible(is_public: bool | None, of_project: bool, sort: tuple[tuple[str, str], ...], limited: bool,
             ) -> sa.Select[Any]:
    """Return a sorted SELECT of public, private or all flavors; with ``of_project``, also of the private flavors to
    which the project has access. Each statement is built once, since building costs more than executing."""
    statement = sa.select(TABLE)
    if is_public is not None:
        visible: sa.ColumnElement[bool] = TABLE.c.is_public == sa.literal(is_public, sa.Boolean)
        statement = statement.where(sa.or_(visible, _open_to(sa.bindparam("project"))) if of_project else visible)
    page = rows.page(statement, TABLE, sort, None, None)
    return page.limit(sa.bindparam("limit", type_=sa.Integer)) if limited else page


@functools.cache
def visible(of_project: bool, lock: bool = False) -> sa.Select[Any]:
    """Return a SELECT of the flavor with the id ``:this``; with ``of_project``, only if ``:project`` may see it."""
    statement = sa.select(TABLE).where(TABLE.c.flavorid == sa.bindparam("this"))
    if of_project:
        statement = statement.where(sa.or_(TABLE.c.is_public == sa.true(), _open_to(sa.bindparam("project"))))
    return statement.with_for_update() if lock else statement


def get(connection: sa.Connection, flavorid: str, project_id: str | None = None, lock: bool = False) -> Flavor:
    """Return a flavor. Raises FlavorNotFound, also for a private flavor to which ``project_id`` (if given) has no
    access."""
    wanted = {"this": flavorid} if project_id is None else {"this": flavorid, "project": project_id}
    return rows.first(connection, Flavor, visible(project_id is not None, lock),
                      exception.FlavorNotFound(flavor_id=flavorid), wanted)


def create(connection: sa.Connection, flavor: Flavor) -> Flavor:
    """Insert a flavor. Raises FlavorExists, FlavorIdExists."""
    taken = connection.execute(sa.select(TABLE.c.flavorid).where(
        sa.or_(TABLE.c.flavorid == flavor.flavorid, TABLE.c.name == flavor.name))).all()
    if any(row.flavorid == flavor.flavorid for row in taken):
        raise exception.FlavorIdExists(flavor_id=flavor.flavorid)
    if taken:
        raise exception.FlavorExists(name=flavor.name)
    values = {**rows.values_of(TABLE, flavor), "created_at": clock.now(), "updated_at": None}
    try:
        connection.execute(sa.insert(TABLE).values(values))
    except db_exception.DBDuplicateEntry as error:  # Another transaction inserted the flavor at the same moment.
        if "flavorid" in str(error.columns):
            raise exception.FlavorIdExists(flavor_id=flavor.flavorid) from error
        raise exception.FlavorExists(name=flavor.name) from error
    return get(connection, flavor.flavorid)


def update(connection: sa.Connection, flavorid: str, description: str | None) -> Flavor:
    """Change the description of a flavor. Raises FlavorNotFound."""
    flavor = get(connection, flavorid, lock=True)
    flavor.description, flavor.updated_at = description, clock.now()
    connection.execute(sa.update(TABLE).where(TABLE.c.id == flavor.id).values(
        description=flavor.description, updated_at=flavor.updated_at))
    return flavor


def delete(connection: sa.Connection, flavorid: str) -> None:
    """Delete a flavor. Raises FlavorNotFound."""
    flavor = get(connection, flavorid, lock=True)
    connection.execute(sa.delete(ACCESS).where(ACCESS.c.flavor_id == flavor.id))
    connection.execute(sa.delete(TABLE).where(TABLE.c.id == flavor.id))


def set_extra_specs(connection: sa.Connection, flavorid: str, specs: dict[str, str]) -> dict[str, str]:
    """Merge ``specs`` into the extra specs; return all of them. Raises FlavorNotFound."""
    flavor = get(connection, flavorid, lock=True)
    merged = {**flavor.extra_specs, **specs}
    connection.execute(sa.update(TABLE).where(TABLE.c.id == flavor.id).values(extra_specs=merged))
    return merged


def delete_extra_spec(connection: sa.Connection, flavorid: str, key: str) -> None:
    """Delete an extra spec. Raises FlavorNotFound, FlavorExtraSpecsNotFound."""
    flavor = get(connection, flavorid, lock=True)
    if key not in flavor.extra_specs:
        raise exception.FlavorExtraSpecsNotFound(flavor_id=flavorid, key=key)
    rest = {name: value for name, value in flavor.extra_specs.items() if name != key}
    connection.execute(sa.update(TABLE).where(TABLE.c.id == flavor.id).values(extra_specs=rest))


def access(connection: sa.Connection, flavorid: str) -> list[str]:
    """Return the projects with access to a private flavor. Raises FlavorNotFound."""
    return _access(connection, get(connection, flavorid).id)


def _access(connection: sa.Connection, flavor_id: int) -> list[str]:
    return list(connection.scalars(sa.select(ACCESS.c.project_id).where(ACCESS.c.flavor_id == flavor_id)
                                   .order_by(ACCESS.c.project_id)))


def add_access(connection: sa.Connection, flavorid: str, project_id: str) -> list[str]:
    """Give a project access to a private flavor. Raises FlavorNotFound, FlavorAccessExists."""
    flavor = get(connection, flavorid, lock=True)
    before = _access(connection, flavor.id)
    if project_id in before:
        raise exception.FlavorAccessExists(flavor_id=flavorid, project_id=project_id)
    connection.execute(sa.insert(ACCESS).values(flavor_id=flavor.id, project_id=project_id))
    return sorted([*before, project_id])


def remove_access(connection: sa.Connection, flavorid: str, project_id: str) -> list[str]:
    """Revoke the access of a project. Raises FlavorNotFound, FlavorAccessNotFound."""
    flavor = get(connection, flavorid, lock=True)
    deleted = connection.execute(sa.delete(ACCESS).where(
        ACCESS.c.flavor_id == flavor.id, ACCESS.c.project_id == project_id))
    if deleted.rowcount == 0:
        raise exception.FlavorAccessNotFound(flavor_id=flavorid, project_id=project_id)
    return _access(connection, flavor.id)
