"""The text index of servers: a search reads blocks with the texts of 1,000 servers, instead of the rows of servers.

Blocks are compressed (Zstandard): the names of a million servers take 0.5 MB in 1,000 blocks, their addresses 9 MB.

A server is in at most one block (``instances.text_block``), which contains its current texts. A statement that changes
these texts or deletes the server removes it from its block (:func:`nova.db.servers.servers.update`). The texts stay in
the block, so a match in a block is only a candidate: the search then compares the row. Servers that are in no block are
few, and are candidates of every search.

Conductors of earlier releases do not remove servers from blocks. A counter in the table ``versions`` stores the time up
to which the index is complete; searches do not use the index if its counter is older than ``FRESH``."""

import array
import datetime
import heapq
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from nova.db import tables, versions
from nova.db.servers.servers import INDEXED_TEXTS, TABLE
from nova.db.sql import clock, scans
from nova.objects.expression import Finder

BLOCKS, TEXTS, SERVICES = tables.text_blocks, tables.block_texts, tables.services
SIZE = 1000  # number of servers of a block
FRESH = 60.0  # age of the counter, in seconds, above which searches do not use the index
# First service version of nova-conductor that maintains the index and reads blocks compressed by Zstandard (of version
# 2: by zlib).
_VERSION = 3
_ZSTANDARD = b"\x28\xb5\x2f\xfd"  # the first bytes of data in Zstandard format
_COUNTER = "text-index"
_UNCHANGED = 10  # seconds without a change before a server is indexed: texts of a new server change several times
_OVERLAP = 120  # seconds before the counter's time from which advance() searches for changes, for late transactions
_AT_ONCE = 32  # number of blocks whose texts are read by one statement
_BATCH = 1000  # number of candidates at which a batch ends
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Finders = Sequence[tuple[str, Finder]]  # (column, function that finds the next line in the texts of this column)
# Sort key of a server: creation time in microseconds (negative if the newest server comes first), and id.
Place = tuple[int, int]


def complete(connection: sa.Connection, seconds: float = FRESH) -> bool:
    """Return True if the counter was set less than ``seconds`` ago, so that blocks have the current texts."""
    return clock.now().timestamp() - versions.get(connection, _COUNTER) / 1000 < seconds


def has_old_conductors(connection: sa.Connection) -> bool:
    """Return True while conductors run that do not remove servers from their blocks."""
    return connection.execute(sa.select(SERVICES.c.id).where(
        SERVICES.c.binary == "nova-conductor", SERVICES.c.up == sa.true(),
        SERVICES.c.version < _VERSION).limit(1)).first() is not None


def advance(connection: sa.Connection) -> bool:
    """Set the counter to the current time and return True. If the counter is old, first remove servers that have
    changed since from their blocks. If there are more than 1,000, remove 1,000 and return False: call it again."""
    last = versions.get(connection, _COUNTER)
    if last and not complete(connection):
        since = _EPOCH + datetime.timedelta(milliseconds=last, seconds=-_OVERLAP)
        for deleted in (False, True):
            changed = sa.select(TABLE.c.id).where(TABLE.c.deleted == deleted, TABLE.c.updated_at >= since,
                                                  TABLE.c.text_block.is_not(None)).limit(SIZE)
            ids = list(connection.scalars(changed))
            connection.execute(sa.update(TABLE).where(TABLE.c.id.in_(ids)).values(text_block=None))
            if len(ids) == SIZE:
                return False
    versions.bump(connection, _COUNTER)
    return True


def pack(connection: sa.Connection) -> int:
    """Create a block of 1,000 servers that are in no block; return their number, or 0 if there are fewer."""
    for deleted in (False, True):
        unchanged = sa.or_(TABLE.c.updated_at.is_(None), TABLE.c.updated_at < clock.overdue(_UNCHANGED))
        unpacked, = scans.ranges(TABLE, [("id", "asc")], [{"deleted": deleted, "text_block": None}], [unchanged])
        texts = [sa.type_coerce(TABLE.c[name], sa.Text).label(name) for name in INDEXED_TEXTS]
        statement, = unpacked.selects([TABLE.c.id, TABLE.c.created_at, *texts])
        # Skip rows that another transaction has locked: they are changing.
        servers = connection.execute(statement.limit(SIZE).with_for_update(skip_locked=True)).all()
        if len(servers) == SIZE:
            _insert(connection, deleted, servers)
            return SIZE
    return 0


def _microseconds(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


def _insert(connection: sa.Connection, deleted: bool, servers: Sequence[sa.Row[Any]]) -> None:
    created = [server.created_at for server in servers]
    block = connection.scalar(sa.insert(BLOCKS).values(
        deleted=deleted, oldest=min(created), newest=max(created)).returning(BLOCKS.c.id))
    places = array.array("q", [server.id for server in servers])
    places.extend(map(_microseconds, created))
    contents = {name: "\n".join((server._mapping[name] or "").replace("\n", "\r") for server in servers).encode()
                for name in INDEXED_TEXTS}
    import zstandard  # Only conductors that maintain or search the index load it.

    connection.execute(sa.insert(TEXTS), [
        {"block_id": block, "name": name, "content": zstandard.compress(content, 1)}
        for name, content in {"": places.tobytes(), **contents}.items()])
    connection.execute(sa.update(TABLE).where(TABLE.c.id.in_([server.id for server in servers])).values(
        text_block=block))


def dissolve(connection: sa.Connection, after: int, blocks: int = 10) -> int:
    """Check ``blocks`` blocks with ids above ``after``, and remove each that most of its servers have left. Return the
    greatest id of a checked block, or 0 if no further blocks exist."""
    size = sa.select(sa.func.count()).where(
        TABLE.c.deleted == BLOCKS.c.deleted, TABLE.c.text_block == BLOCKS.c.id).scalar_subquery()
    sizes = connection.execute(sa.select(BLOCKS.c.id, BLOCKS.c.deleted, size.label("size")).where(
        BLOCKS.c.id > after).order_by(BLOCKS.c.id).limit(blocks)).all()
    for block in sizes:
        if block.size < SIZE // 2:
            connection.execute(sa.update(TABLE).where(
                TABLE.c.deleted == block.deleted, TABLE.c.text_block == block.id).values(text_block=None))
            connection.execute(sa.delete(TEXTS).where(TEXTS.c.block_id == block.id))
            connection.execute(sa.delete(BLOCKS).where(BLOCKS.c.id == block.id))
    return sizes[-1].id if len(sizes) == blocks else 0


def candidates(connection: sa.Connection, newest_first: bool, begin: datetime.datetime | None, few: int,
               finders: Finders, prefixes: Sequence[scans.Prefix]) -> Iterator[list[int]] | None:
    """Return the ids of the servers that may match all ``finders``, in batches, in the order of creation from the time
    ``begin``. Servers with the same creation time are in one batch. None if the index is not complete, or if more than
    ``few`` servers are in no block."""
    if not complete(connection):
        return None
    sign = -1 if newest_first else 1
    # Read servers without a block before the blocks: a server that gets a block meanwhile is found twice, not missed.
    heap: list[Place] = []
    for prefix in prefixes:
        conditions = scans.has(TABLE, prefix)
        if not isinstance(prefix, sa.ColumnElement):
            conditions.append(TABLE.c.text_block.is_(None))
        rows = connection.execute(sa.select(TABLE.c.created_at, TABLE.c.id).where(*conditions).limit(few + 1)).all()
        if len(rows) > few:
            return None
        heap += [(sign * _microseconds(row.created_at), row.id) for row in rows]
    heapq.heapify(heap)
    deleted = [prefix["deleted"] for prefix in prefixes if not isinstance(prefix, sa.ColumnElement)]
    statement = sa.select(BLOCKS).where(BLOCKS.c.deleted.in_(deleted)).order_by(
        BLOCKS.c.newest.desc() if newest_first else BLOCKS.c.oldest)
    if begin is not None:
        statement = statement.where(BLOCKS.c.oldest <= begin if newest_first else BLOCKS.c.newest >= begin)
    blocks = connection.execute(statement).all()
    bounds = [sign * _microseconds(block.newest if newest_first else block.oldest) for block in blocks]
    matches = _matching(connection, finders, [block.id for block in blocks], sign)
    return _batches(heap, matches, bounds, None if begin is None else sign * _microseconds(begin))


def without(text: bytes) -> Finder:
    """Return a finder of the lines without ``text``. A line may contain ``text`` only once."""
    lines = re.compile(rb"(?:[^\n]*" + re.escape(text) + rb"[^\n]*(?:\n|\Z))*+")

    def find(content: bytes, position: int) -> int:
        if position == 0 and content.count(text) > content.count(b"\n"):
            return -1
        following = lines.match(content, position)
        assert following is not None  # The expression also matches zero lines.
        return following.end() if following.end() < len(content) else -1

    return find


def _batches(heap: list[Place], matches: Iterator[list[Place]], bounds: list[int],
             begin: int | None) -> Iterator[list[int]]:
    """Merge the servers of the heap with the matches by sort key; yield an id when no later block can precede it."""
    batch: list[int] = []
    for later, match in enumerate(itertools.chain(matches, [[]]), 1):
        for place in match:
            heapq.heappush(heap, place)
        while heap and (later >= len(bounds) or heap[0][0] < bounds[later]):
            created, number = heapq.heappop(heap)
            if begin is not None and created < begin:
                continue
            batch.append(number)
            if len(batch) >= _BATCH and not (heap and heap[0][0] == created):
                yield batch
                batch = []
        if batch:
            yield batch
            batch = []


def _matching(connection: sa.Connection, finders: Finders, blocks: Sequence[int], sign: int) -> Iterator[list[Place]]:
    """Yield the servers of each block that match."""
    for begin in range(0, len(blocks), _AT_ONCE):
        ids = blocks[begin:begin + _AT_ONCE]
        left, contents = list(ids), list[dict[int, bytes]]()
        for name, find in finders:
            contents.append(_contents(connection, left, name))
            left = [block for block, content in contents[-1].items() if find(content, 0) >= 0]
        places = _contents(connection, left, "")
        for block in ids:
            if block not in places:
                yield []
                continue
            numbers = array.array("q", places[block])
            size = len(numbers) // 2
            lines = set.intersection(*(_lines(content[block], find)
                                       for content, (_name, find) in zip(contents, finders, strict=True)))
            yield [(sign * numbers[size + line], numbers[line]) for line in lines]


def _contents(connection: sa.Connection, blocks: Sequence[int], name: str) -> dict[int, bytes]:
    if not blocks:
        return {}
    import zstandard

    decompress = zstandard.ZstdDecompressor().decompress
    return {row.block_id: (decompress if row.content[:4] == _ZSTANDARD else zlib.decompress)(row.content)
            for row in connection.execute(sa.select(TEXTS.c.block_id, TEXTS.c.content).where(
                TEXTS.c.block_id.in_(blocks), TEXTS.c.name == name))}


def _lines(content: bytes, find: Finder) -> set[int]:
    """Return the numbers of the lines that match."""
    lines, number, position = set[int](), 0, 0
    while (match := find(content, position)) >= 0:
        number += content.count(b"\n", position, match)
        lines.add(number)
        end = content.find(b"\n", match)
        if end < 0:
            break
        number, position = number + 1, end + 1
    return lines
