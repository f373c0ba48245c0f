"""Numbers of objects, from which the ids of the EC2 API are formed (such as vol-0000002a)."""

import datetime
import zlib
from collections.abc import Sequence

import sqlalchemy as sa

from nova import exception
from nova.db import tables
from nova.db.sql import clock, rows
from nova.objects.accounts.ec2_id import INSTANCE, KINDS, MOST, Ec2Id

TABLE, INSTANCES = tables.ec2_ids, tables.instances

# Age of used_at at which a request updates this column; younger times stay, so that most requests write nothing.
_ACCURACY = datetime.timedelta(days=1)
_NUMBERS = 2**32
_SERVERS = sa.select(INSTANCES.c.uuid, INSTANCES.c.id.label("number"), INSTANCES.c.reservation_id,
                     INSTANCES.c.launch_index, INSTANCES.c.root_device_name)


def _check(kind: str, items: Sequence[object]) -> None:
    if kind not in KINDS:
        raise exception.InvalidInput(reason=f"{kind} is not a kind of EC2 ids")
    if len(items) > MOST:
        raise exception.InvalidInput(reason=f"more than {MOST} ids")


def resolve(connection: sa.Connection, kind: str, numbers: list[int]) -> list[Ec2Id]:
    """Return the ids with these numbers; a number of no object is left out. Raises InvalidInput."""
    _check(kind, numbers)
    possible = [number for number in numbers if 0 <= number < _NUMBERS]
    if kind == INSTANCE:
        return rows.to_objects(Ec2Id, connection.execute(_SERVERS.where(INSTANCES.c.id.in_(possible))))
    return rows.to_objects(Ec2Id, connection.execute(
        sa.select(TABLE).where(TABLE.c.kind == kind, TABLE.c.number.in_(possible))))


def existing(connection: sa.Connection, kind: str, uuids: list[str], outdated: bool = False) -> list[Ec2Id] | None:
    """Return the ids of the objects, or None if :func:`assign` must run, because an object has no id or its used_at
    must be updated. ``outdated``: True to return ids even if used_at should be updated. Raises InvalidInput."""
    _check(kind, uuids)
    if kind == INSTANCE:
        return rows.to_objects(Ec2Id, connection.execute(_SERVERS.where(INSTANCES.c.uuid.in_(uuids))))
    current = list(connection.execute(sa.select(TABLE).where(TABLE.c.kind == kind, TABLE.c.uuid.in_(uuids))))
    oldest = clock.now() - _ACCURACY
    if len(current) < len(set(uuids)) or (not outdated and any(row.used_at < oldest for row in current)):
        return None
    return rows.to_objects(Ec2Id, current)


def assign(connection: sa.Connection, kind: str, uuids: list[str]) -> list[Ec2Id]:
    """Return the ids of objects other than servers, with new rows for objects without an id. Raises InvalidInput."""
    _check(kind, uuids)
    if kind == INSTANCE:
        return existing(connection, kind, uuids) or []
    now = clock.now()
    assigned = {row.uuid: row.number for row in connection.execute(
        sa.select(TABLE).where(TABLE.c.kind == kind, TABLE.c.uuid.in_(uuids)))}
    connection.execute(sa.update(TABLE).where(
        TABLE.c.kind == kind, TABLE.c.uuid.in_(uuids), TABLE.c.used_at < now - _ACCURACY).values(used_at=now))
    missing = sorted({*uuids} - assigned.keys())  # sorted, so that concurrent transactions cannot deadlock
    if missing:
        numbers = _free_numbers(connection, kind, missing)
        with rows.on_duplicate():
            connection.execute(sa.insert(TABLE), [
                {"kind": kind, "number": numbers[uuid], "uuid": uuid, "used_at": now} for uuid in missing])
        assigned |= numbers
    return [Ec2Id(uuid=uuid, number=number) for uuid, number in assigned.items()]


def _free_numbers(connection: sa.Connection, kind: str, uuids: Sequence[str]) -> dict[str, int]:
    """Return a number for each uuid: its CRC-32, or the next number that no other object of this kind has."""
    numbers: dict[str, int] = {}
    wanted = {uuid: zlib.crc32(uuid.encode()) for uuid in uuids}
    used: set[int] = set()
    while wanted:
        used.update(connection.scalars(sa.select(TABLE.c.number).where(
            TABLE.c.kind == kind, TABLE.c.number.in_(sorted(set(wanted.values()))))))
        collisions: dict[str, int] = {}
        for uuid, number in wanted.items():
            if number in used:
                collisions[uuid] = (number + 1) % _NUMBERS
            else:
                numbers[uuid] = number
                used.add(number)
        wanted = collisions
    return numbers
