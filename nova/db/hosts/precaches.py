"""Images that hosts of an aggregate fetch before a server needs them: a row for each image on each host. The rows of
the newest request of an aggregate are kept, since clients can query its result."""

import dataclasses
import datetime
from collections.abc import Sequence

import sqlalchemy as sa

from nova.db import tables
from nova.db.sql import clock, rows
from nova.objects.images import image_cache as caches
from nova.objects.images.image import Image
from nova.objects.images.image_cache import CacheResult, PrecachedImage

TABLE = tables.precached_images
_OPEN = TABLE.c.state.in_((caches.WAITING, caches.CACHING))


@dataclasses.dataclass(frozen=True)
class Busy:
    """A host of an aggregate with images to fetch. ``requested``: True between the message to the host
    and the time at which the message is repeated."""

    aggregate_id: int
    host: str
    tries: int
    requested: bool


@dataclasses.dataclass(frozen=True)
class HostDone:
    """A host that has finished the request of an aggregate, as number ``index`` of ``total`` hosts."""

    aggregate_id: int
    host: str
    cached: list[str]
    failed: list[str]
    index: int
    total: int


def ask(connection: sa.Connection, aggregate_id: int, hosts: Sequence[str], images: Sequence[Image]) -> None:
    """Record the request that the hosts fetch these images. Delete results of earlier requests for the aggregate."""
    wanted = TABLE.c.image_id.in_([image.id for image in images])
    connection.execute(sa.delete(TABLE).where(TABLE.c.aggregate_id == aggregate_id, sa.or_(~_OPEN, wanted)))
    now = clock.now()
    made = [{"aggregate_id": aggregate_id, "host": host, "image_id": image.id, "image": image, "state": caches.WAITING,
             "message": "", "tries": 0, "created_at": now} for host in hosts for image in images]
    if made:
        connection.execute(sa.insert(TABLE), made)


def busy(connection: sa.Connection) -> list[Busy]:
    """Return the hosts with images to fetch, sorted by aggregate and host name. One statement."""
    working = sa.case((sa.and_(TABLE.c.state == caches.CACHING, TABLE.c.ask_again_at >= clock.now()), 1), else_=0)
    rows = connection.execute(sa.select(
        TABLE.c.aggregate_id, TABLE.c.host, sa.func.max(TABLE.c.tries).label("tries"),
        sa.func.max(working).label("asked")).where(_OPEN).group_by(TABLE.c.aggregate_id, TABLE.c.host)
        .order_by(TABLE.c.aggregate_id, TABLE.c.host))
    return [Busy(aggregate_id=row.aggregate_id, host=row.host, tries=row.tries, requested=bool(row.asked))
            for row in rows]


def take(connection: sa.Connection, of: Busy, until: datetime.datetime) -> list[Image]:
    """Return the images that the host is to fetch. No other conductor sends it that message before ``until``."""
    this = sa.and_(TABLE.c.aggregate_id == of.aggregate_id, TABLE.c.host == of.host, _OPEN,
                   sa.or_(TABLE.c.ask_again_at.is_(None), TABLE.c.ask_again_at < clock.now()))
    images = connection.execute(sa.select(TABLE.c.image).where(this).order_by(TABLE.c.image_id).with_for_update()).all()
    connection.execute(sa.update(TABLE).where(this).values(
        state=caches.CACHING, tries=TABLE.c.tries + 1, ask_again_at=until, updated_at=clock.now()))
    return [row.image for row in images]


def give_up(connection: sa.Connection, of: Busy, reason: str) -> list[HostDone]:
    """Mark the unfinished images of a host as failed. Return its result, or [] if it had finished before."""
    done = connection.execute(sa.update(TABLE).where(
        TABLE.c.aggregate_id == of.aggregate_id, TABLE.c.host == of.host, _OPEN).values(
        state=caches.FAILED, message=reason, ask_again_at=None, updated_at=clock.now())).rowcount
    return _done(connection, of.host, [of.aggregate_id] if done else [])


def ended(connection: sa.Connection, host: str, results: Sequence[CacheResult]) -> list[HostDone]:
    """Record that the host has fetched images or has failed to fetch them, in the requests of all its aggregates.
    Return the result of each request that the host has thereby finished."""
    at_work = connection.scalars(sa.select(TABLE.c.aggregate_id).distinct().where(
        TABLE.c.host == host, _OPEN, TABLE.c.image_id.in_([result.image_id for result in results]))).all()
    for result in results:
        connection.execute(sa.update(TABLE).where(TABLE.c.host == host, TABLE.c.image_id == result.image_id).values(
            state=result.state, message=result.message, ask_again_at=None, updated_at=clock.now()))
    return _done(connection, host, at_work)


def _done(connection: sa.Connection, host: str, aggregate_ids: Sequence[int]) -> list[HostDone]:
    finished = []
    for aggregate_id in aggregate_ids:
        lines = index(connection, aggregate_id)
        busy_hosts = {line.host for line in lines if line.state not in caches.ENDS}
        mine = [line for line in lines if line.host == host]
        if mine and host not in busy_hosts:
            hosts = {line.host for line in lines}
            finished.append(HostDone(
                aggregate_id, host, [line.image_id for line in mine if line.state == caches.CACHED],
                [line.image_id for line in mine if line.state != caches.CACHED], len(hosts - busy_hosts), len(hosts)))
    return finished


def index(connection: sa.Connection, aggregate_id: int | None = None) -> list[PrecachedImage]:
    """Return the results of the newest request of the aggregate (None: of each aggregate)."""
    return rows.to_objects(PrecachedImage, connection.execute(
        sa.select(TABLE).where(*rows.equal(TABLE.c.aggregate_id, aggregate_id))
        .order_by(TABLE.c.aggregate_id, TABLE.c.host, TABLE.c.image_id)))


def forget(connection: sa.Connection, host: str, aggregate_id: int | None = None) -> None:
    """Remove a host that was deleted or has left the aggregate."""
    connection.execute(sa.delete(TABLE).where(TABLE.c.host == host, *rows.equal(TABLE.c.aggregate_id, aggregate_id)))
