"""Quota limits and usage. Limits are checked in the transaction that increases the usage."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from nova import exception
from nova.conf import CONF
from nova.conf.conductor import QUOTAS
from nova.db import tables
from nova.db.accounts import flavors
from nova.db.sql import hot, rows
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers import states
from nova.objects.servers.instance import Instance

LIMITS = tables.quotas
USAGES = tables.quota_usages

# Resource name of a quota set -> its option in [quota]. Only injected_file_path_bytes has another name there.
RESOURCES = {"injected_file_path_bytes" if option == "injected_file_path_length" else option: option
             for option in QUOTAS}
COUNTED = ("instances", "cores", "ram")  # the counters of quota_usages
_CLASS = "class:"
_DEFAULT = _CLASS + "default"
_UNLIMITED = 2**63 - 1  # the greatest value of the counters

_PROJECT: sa.BindParameter[str] = sa.bindparam("project")
_USERS: sa.BindParameter[Any] = sa.bindparam("users", expanding=True)
_USER_OR_ALL = [sa.literal(""), sa.bindparam("user")]


def _limits_of(users: Any) -> sa.ColumnElement[bool]:
    """Return the condition that selects the limits of these users in the project, and of the default class."""
    return sa.or_(sa.and_(LIMITS.c.project_id == _PROJECT, LIMITS.c.user_id.in_(users)),
                  sa.and_(LIMITS.c.project_id == _DEFAULT, LIMITS.c.user_id == ""))


# Built once: building a statement costs several times as much as running it.
_EXPLICIT = sa.select(LIMITS).where(_limits_of(_USERS))
_ROWS = (USAGES.c.project_id == _PROJECT, USAGES.c.user_id.in_(_USERS))
# Rows of limits (default class, project, user; usage columns null), and rows of usage (column ``limits`` null).
_LIMITS_AND_USAGE = sa.union_all(
    sa.select(LIMITS.c.project_id, LIMITS.c.user_id, LIMITS.c.limits,
              *(sa.cast(sa.null(), sa.BigInteger).label(name) for name in COUNTED)).where(_limits_of(_USER_OR_ALL)),
    sa.select(USAGES.c.project_id, USAGES.c.user_id, sa.cast(sa.null(), sa.Text), *(USAGES.c[name] for name in COUNTED))
    .where(USAGES.c.project_id == _PROJECT, USAGES.c.user_id.in_(_USER_OR_ALL)))
_LOCK = sa.select(USAGES).where(*_ROWS).order_by(USAGES.c.user_id).with_for_update()


# --- limits ----------------------------------------------------------------------------------
def configured() -> dict[str, int]:
    """Return the limits of the configuration, which apply if no row of the database sets the limit."""
    return {name: getattr(CONF.quota, option) for name, option in RESOURCES.items()}


def explicit(connection: sa.Connection, project_id: str,
             user_id: str | None = None) -> tuple[dict[str, int], dict[str, int]]:
    """Return the limits of the project (including defaults) and those set for the user, by one statement."""
    limits = {(row.project_id, row.user_id): row.limits for row in connection.execute(
        _EXPLICIT, {"project": project_id, "users": ["", user_id] if user_id else [""]})}
    project = {**configured(), **limits.get((_DEFAULT, ""), {}), **limits.get((project_id, ""), {})}
    return project, limits.get((project_id, user_id), {}) if user_id else {}


def limits(connection: sa.Connection, project_id: str, user_id: str | None = None) -> dict[str, int]:
    """Return the effective limits (-1: unlimited). The limit of a user overrides that of the project, which overrides
    that of the default class, which overrides the configuration."""
    project, user = explicit(connection, project_id, user_id)
    return {**project, **user}


def class_limits(connection: sa.Connection, name: str) -> dict[str, int]:
    limits = connection.scalar(sa.select(LIMITS.c.limits).where(
        LIMITS.c.project_id == _CLASS + name, LIMITS.c.user_id == ""))
    return {**configured(), **(limits or {})}


def set_class_limits(connection: sa.Connection, name: str, changes: dict[str, int]) -> dict[str, int]:
    """Merge ``changes`` into the limits of a class; return all its limits. Raises InvalidInput."""
    set_limits(connection, _CLASS + name, None, changes)
    return class_limits(connection, name)


def set_limits(connection: sa.Connection, project_id: str, user_id: str | None, changes: dict[str, int]) -> None:
    """Merge ``changes`` into the limits of the project (or of a user in it). Raises InvalidInput for invalid limits."""
    for name, value in changes.items():
        if name not in RESOURCES or not -1 <= value <= 0x7FFFFFFF:
            raise exception.InvalidInput(reason=f"{value} is not a limit of {name}")
    this = sa.and_(LIMITS.c.project_id == project_id, LIMITS.c.user_id == (user_id or ""))
    before = connection.scalar(sa.select(LIMITS.c.limits).where(this).with_for_update())
    if before is not None:
        connection.execute(sa.update(LIMITS).where(this).values(limits={**before, **changes}))
        return
    with rows.on_duplicate():
        connection.execute(sa.insert(LIMITS).values(project_id=project_id, user_id=user_id or "", limits=changes))


def reset(connection: sa.Connection, project_id: str, user_id: str | None = None) -> None:
    """Delete the limits of a user in the project, or of the project and all its users."""
    statement = sa.delete(LIMITS).where(LIMITS.c.project_id == project_id)
    connection.execute(statement.where(LIMITS.c.user_id == user_id) if user_id else statement)


# --- usage -----------------------------------------------------------------------------------
def usage(connection: sa.Connection, project_id: str, user_id: str | None = None) -> dict[str, int]:
    """Return the usage of the project, or of a user in it. Key pairs are counted for a user only."""
    row = connection.execute(sa.select(USAGES).where(
        USAGES.c.project_id == project_id, USAGES.c.user_id == (user_id or ""))).first()
    used = dict.fromkeys(RESOURCES, 0)
    if row is not None:
        used.update({name: getattr(row, name) for name in COUNTED})
    used["server_groups"] = count_rows(connection, "server_groups", project_id, user_id)
    if user_id:
        used["key_pairs"] = count_key_pairs(connection, user_id)
    else:
        used["security_groups"] = count_rows(connection, "security_groups", project_id)
        used["fixed_ips"] = count_interfaces(connection, project_id)
        used["floating_ips"] = count_rows(connection, "floating_ips", project_id)
    return used


def count_key_pairs(connection: sa.Connection, user_id: str) -> int:
    return rows.count(connection, tables.keypairs, tables.keypairs.c.user_id == user_id)


def count_rows(connection: sa.Connection, resource: str, project_id: str, user_id: str | None = None) -> int:
    """Return how many rows the table named ``resource`` has for the project, or for a user in it."""
    table = tables.metadata.tables[resource]
    return rows.count(connection, table, table.c.project_id == project_id,
                      *([table.c.user_id == user_id] if user_id else []))


def check_rows(connection: sa.Connection, resource: str, project_id: str, message: str) -> None:
    """Raise QuotaLimit with ``message`` if the project may have no further row in the table named ``resource``."""
    most = limits(connection, project_id)[resource]
    if most >= 0:
        lock(connection, project_id)
        if count_rows(connection, resource, project_id) >= most:
            raise exception.QuotaLimit(message)


def count_interfaces(connection: sa.Connection, project_id: str) -> int:
    """Count the interfaces of the project's servers on the embedded networks, each with one IPv4 address. Interfaces
    requested by servers that wait for a host are included."""
    ips, instances = tables.fixed_ips, tables.instances
    mine = sa.and_(instances.c.project_id == project_id, instances.c.deleted == sa.false())
    held = connection.scalar(sa.select(sa.func.count()).select_from(ips).join(
        instances, instances.c.uuid == ips.c.instance_uuid).where(mine, ips.c.version == 4)) or 0
    waiting = connection.scalars(sa.select(instances.c.requested_networks).where(
        mine, instances.c.vm_state == states.BUILDING, ~sa.select(ips.c.id).where(
            ips.c.instance_uuid == instances.c.uuid).exists()))
    return held + sum(len(wanted or ()) for wanted in waiting)


def check_interfaces(connection: sa.Connection, project_id: str, most: int, more: int) -> None:
    """Check that the project may have ``more`` additional interfaces (``most`` -1: unlimited). Raises QuotaLimit. The
    caller holds the row of the project, see :func:`lock`."""
    if most >= 0 and more > 0 and count_interfaces(connection, project_id) + more > most:
        raise exception.QuotaLimit("Maximum number of fixed IPs exceeded")


def lock(connection: sa.Connection, project_id: str, user_ids: Iterable[str] = ("",)) -> dict[str, dict[str, int]]:
    """Lock the usage rows until the transaction ends; return {user id: usage}. Missing rows are created. Transactions
    that lock the same row run one after the other. The user id "" stands for the whole project."""
    wanted = sorted(set(user_ids))
    usage = {row.user_id: {name: getattr(row, name) for name in COUNTED} for row in connection.execute(
        _LOCK, {"project": project_id, "users": wanted})}
    missing = [user_id for user_id in wanted if user_id not in usage]
    if missing:
        nothing = dict.fromkeys(COUNTED, 0)
        with rows.on_duplicate():  # If another transaction inserted the row, this one is repeated and locks that row.
            connection.execute(sa.insert(USAGES), [
                {"project_id": project_id, "user_id": user_id, **nothing} for user_id in missing])
        usage.update({user_id: dict(nothing) for user_id in missing})
    return usage


@dataclasses.dataclass(frozen=True)
class Account:
    """Limits of a project, limits set for a user in it, and usage by user id ("": the project), read without locks."""

    project_id: str
    user_id: str
    of_project: dict[str, int]
    of_user: dict[str, int]
    used: dict[str, dict[str, int]]


def account(connection: sa.Connection, project_id: str, user_id: str, flavor_id: str) -> tuple[Account, Flavor]:
    """Return limits and usage, and a flavor that the project may see, by one statement. Raises FlavorNotFound."""
    stored = hot.execute(connection, _account(), {
        "project": project_id, "user": user_id, "this": flavor_id}).all()
    if not stored:
        raise exception.FlavorNotFound(flavor_id=flavor_id)
    project, user, used = configured(), dict[str, int](), dict[str, dict[str, int]]()
    for row in sorted(stored, key=lambda row: row.project_id != _DEFAULT):
        if row.limits is not None:
            if row.user_id:
                user = row.limits
            else:
                project |= row.limits
        elif row.project_id is not None:
            used[row.user_id] = {name: getattr(row, name) for name in COUNTED}
    return Account(project_id, user_id, project, user, used), rows.to_object(Flavor, stored[0])


@functools.cache
def _account() -> sa.Select[Any]:
    stored = _LIMITS_AND_USAGE.subquery("stored")
    return flavors.visible(of_project=True).add_columns(*stored.c).join_from(
        flavors.TABLE, stored, sa.true(), isouter=True)


@dataclasses.dataclass(frozen=True)
class Room:
    """Servers that fit into a quota: ``count`` servers with usage ``per_server``, and the account with its limits."""

    account: Account
    count: int
    per_server: dict[str, int]


def room(connection: sa.Connection, account: Account, cores: int, ram: int, min_count: int, max_count: int,
         interfaces: int = 0) -> Room:
    """Return how many servers of ``cores`` and ``ram`` (MiB) each fit into the quota, at most ``max_count``. Usage is
    not changed: :func:`take` does that as the last step of the transaction. If the project has a limit of fixed IPs,
    ``interfaces`` (per server, on embedded networks) are checked, too, and the usage rows are locked already here.
    Raises OverQuota if fewer than ``min_count`` servers fit, QuotaLimit if there are too many interfaces."""
    project_id, user_id, project, used = account.project_id, account.user_id, account.of_project, account.used
    counted = interfaces > 0 and project["fixed_ips"] >= 0
    if counted or not {"", user_id} <= used.keys():  # A usage row is missing (no server yet): lock() creates it.
        used = lock(connection, project_id, ("", user_id))
    per_server = {"instances": 1, "cores": cores, "ram": ram}
    count = min(_room(project, used[""], per_server, min_count, max_count),
                _room(account.of_user, used[user_id], per_server, min_count, max_count))
    if counted:
        check_interfaces(connection, project_id, project["fixed_ips"], count * interfaces)
    return Room(account, count, per_server)


def take(connection: sa.Connection, reserved: Room) -> None:
    """Spend the reserved quota. If concurrent transactions have spent it meanwhile, the transaction is repeated. The
    rows of the project and the user stay locked until the commit, which should follow immediately: all requests of a
    project need the row of the project."""
    more = {name: amount * reserved.count for name, amount in reserved.per_server.items()}
    account = reserved.account
    values: dict[str, Any] = {"project": account.project_id, "user": account.user_id}
    for name, amount in more.items():
        values[f"more_{name}"] = amount
        for whose, limits_of in (("project", account.of_project), ("user", account.of_user)):
            limit = limits_of.get(name, -1)
            values[f"{whose}_{name}"] = limit if limit >= 0 and amount > 0 else _UNLIMITED
    if hot.execute(connection, _take(), values).rowcount != len({"", account.user_id}):
        raise db_exception.RetryRequest(exception.OverQuota("Concurrent requests have used the quota."))


@functools.cache
def _take() -> sa.Update:
    """Return an UPDATE of the rows of the project and of the user, each only if its limits allow the new usage."""
    number = functools.partial(sa.bindparam, type_=sa.BigInteger)
    after = {name: USAGES.c[name] + number(f"more_{name}") for name in COUNTED}
    limits_of_row = {name: sa.case((USAGES.c.user_id == "", number(f"project_{name}")), else_=number(f"user_{name}"))
                     for name in COUNTED}
    return _in_order(sa.update(USAGES).where(*(after[name] <= limits_of_row[name] for name in COUNTED))).values(after)


def _in_order(update: sa.Update) -> sa.Update:
    """Restrict the UPDATE to the rows of the project and the user, locked in the same order as by :func:`lock`. Without
    the subquery PostgreSQL would lock them in their physical order, which changes: two transactions could deadlock."""
    locked = USAGES.alias("locked")
    both = locked.c.user_id.in_([sa.literal(""), sa.bindparam("user")])
    ordered = sa.select(locked.c.user_id).where(locked.c.project_id == sa.bindparam("project"), both).order_by(
        locked.c.user_id).with_for_update()
    return update.where(USAGES.c.project_id == sa.bindparam("project"), USAGES.c.user_id.in_(ordered))


def check_waiting(connection: sa.Connection, instance: Instance) -> None:
    """Check that the project may have one more soft-deleted server. Raises TooManyWait. Soft-deleted servers do not
    count in the quota usage but keep their resources and addresses. So the same limits apply to them separately."""
    allowed, table, flavor = limits(connection, instance.project_id), tables.instances, instance.flavor
    if all(allowed[name] < 0 for name in COUNTED):
        return
    lock(connection, instance.project_id)
    waiting = connection.scalars(sa.select(table.c.flavor).where(
        table.c.project_id == instance.project_id, table.c.deleted == sa.false(), table.c.uuid != instance.uuid, sa.or_(
            table.c.soft_deleted_at.is_not(None), table.c.task_state == states.SOFT_DELETING))).all()
    try:
        _room(allowed, {"instances": len(waiting), "cores": sum(waiting_flavor.vcpus for waiting_flavor in waiting),
                        "ram": sum(waiting_flavor.memory_mb for waiting_flavor in waiting)},
              {"instances": 1, "cores": flavor.vcpus, "ram": flavor.memory_mb}, 1, 1)
    except exception.OverQuota as error:
        raise exception.TooManyWait() from error


def grow(connection: sa.Connection, project_id: str, user_id: str, cores: int, ram: int, instances: int = 0) -> None:
    """Spend quota for a server that gets a larger flavor or is restored; ignore negative amounts. Raises OverQuota."""
    growth = {"instances": instances, "cores": max(cores, 0), "ram": max(ram, 0)}
    if not any(growth.values()):
        return
    project, user = explicit(connection, project_id, user_id)
    used = lock(connection, project_id, ("", user_id))
    _room(project, used[""], growth, 1, 1)
    _room(user, used[user_id], growth, 1, 1)
    spend(connection, project_id, user_id, instances, growth["cores"], growth["ram"])


def _room(allowed: dict[str, int], used: dict[str, int], per_server: dict[str, int], min_count: int,
          max_count: int) -> int:
    """Return how many servers fit within the limits ``allowed`` (missing resources: unlimited). Raises OverQuota."""
    count = max_count
    overs = []
    for name in sorted(per_server):
        limit, amount = allowed.get(name, -1), per_server[name]
        if limit < 0 or amount <= 0:
            continue
        fit = (limit - used[name]) // amount
        count = min(count, fit)
        if fit < min_count:
            overs.append(name)
    if overs:
        raise exception.OverQuota(
            overs=", ".join(overs), req=", ".join(str(per_server[name] * min_count) for name in overs),
            used=", ".join(str(used[name]) for name in overs), allowed=", ".join(str(allowed[name]) for name in overs))
    return count


def spend(connection: sa.Connection, project_id: str, user_id: str, instances: int = 0, cores: int = 0,
          ram: int = 0) -> None:
    """Add to the usage of the project and the user (or subtract, but not below zero) without a check. Both rows stay
    locked until the transaction ends."""
    connection.execute(_spend(), {"project": project_id, "user": user_id, "more_instances": instances,
                                  "more_cores": cores, "more_ram": ram})


@functools.cache
def _spend() -> sa.Update:
    changes = {}
    for name in COUNTED:
        after = USAGES.c[name] + sa.bindparam(f"more_{name}", type_=sa.BigInteger)
        changes[name] = sa.case((after < 0, 0), else_=after)
    return _in_order(sa.update(USAGES)).values(changes)


def serialize(connection: sa.Connection, name: str) -> None:
    """Serialize transactions that check and then extend the set of rows called ``name``, since locks of its rows do not
    prevent new rows. The lock is a usage row without a project."""
    lock(connection, "", (name,))
