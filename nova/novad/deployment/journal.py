"""The journal: past and present deployments, and backups, in an SQLite file.

A deployment is written before its first effect, and each of its stages before it begins: after a kill, the next daemon
reads what it must undo. Everything else (containers, directories) can be created again from the journal.
"""

import contextlib
import itertools
import os
import pathlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from nova.common.errors import ReportedError
from nova.novad.platform import Component, Volume

_T = TypeVar("_T", bound=msgspec.Struct)

RUNNING, DONE, UNDONE, STUCK = "running", "done", "undone", "stuck"
PENDING = "pending"  # Finished on this node; the control node decides whether the changes stay.
_RECORDED = "states-recorded"  # Name of a fact: the newest deployment whose states are recorded.
_RESERVE = 1024 * 1024  # Bytes of the disk reserved for the journal, in case a component fills the disk.
_SCARCE = 256 * 1024  # Free bytes below which the reserve is released.
_PLENTY = 16 * _RESERVE  # Free bytes above which the reserve is created again.

_SCHEMA = """
create table if not exists deployments (
    id integer primary key autoincrement, kind text not null, state text not null, stage text not null,
    changes text not null, started real not null, ended real, error text not null default '');
create table if not exists components (name text primary key, deployed text not null);
create table if not exists backups (
    id integer primary key autoincrement, component text not null, deployment integer not null, writer integer not null,
    version text not null, path text not null, size integer not null, made real not null);
create table if not exists owed (id integer primary key autoincrement, kind text not null, name text not null);
create table if not exists facts (name text primary key, value text not null);
create table if not exists given (
    deployment integer primary key, coordinator text not null, number integer not null, origin text not null);
create table if not exists asked (
    deployment integer not null, address text not null, node text not null, components text not null default '',
    settled integer not null default 0, primary key (deployment, address));
create table if not exists states (
    component text not null, deployment integer not null, parent integer not null, source integer not null,
    origin integer not null, removed integer not null, primary key (component, deployment)) without rowid;
create index if not exists backups_by_component on backups (component, deployment);
"""
_PARTICIPATIONS = ("select asked.*, state = ? from asked join deployments on id = deployment where "
                   "({}) order by deployment, node")


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """A deployed component. ``image``: its id, which no tag can change."""

    name: str
    component: Component
    image: str
    digest: str = ""
    version: str = ""
    deployment: int = 0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a component by a deployment. ``after``: None for a removal; ``before``: None for a new component.
    ``restore``: the backup with the data to restore, or 0 to keep the data. ``state``: in a rollback, the deployment
    that created the target state; 0 for components that only get other data, and in journals of older releases."""

    name: str
    before: Deployed | None = None
    after: Deployed | None = None
    restore: int = 0
    state: int = 0

    @property
    def volumes(self) -> list[Volume]:
        """Return the volumes that the component has before or after the change."""
        return [*{volume.name: volume for deployed in (self.after, self.before) if deployed is not None
                  for volume in deployed.component.volumes}.values()]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a component, see :mod:`nova.novad.deployment.history`. ``deployment``: the deployment that created it.
    ``parent``: the state that a rollback from this state restores, or 0. ``source``: the state that a rollback copied.
    ``origin``: the deployment of its image and configuration. ``removed``: the component was removed."""

    component: str = ""
    deployment: int = 0
    parent: int = 0
    source: int = 0
    origin: int = 0
    removed: bool = False


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment. ``stage``: see :mod:`nova.novad.deployment.deploy`. Times are seconds since 1970."""

    id: int
    kind: str
    state: str
    stage: str
    changes: list[Change]
    started: float
    ended: float | None = None
    error: str = ""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The control node of a deployment, its number there, and whether its removal includes volumes and secrets."""

    coordinator: str
    node: str
    number: int
    volumes: bool = False
    secrets: bool = False


class Participation(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a node in a deployment. ``done``: it is committed; ``settled``: the node received the decision."""

    deployment: int
    address: str
    node: str
    components: str
    settled: bool
    done: bool


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a component before ``deployment``, written by deployment ``writer``. ``path``: "" if removed."""

    id: int
    component: str
    deployment: int
    writer: int
    version: str
    path: str
    size: int
    made: float


class CleanupTask(msgspec.Struct, frozen=True, kw_only=True):
    """A removal, see :mod:`nova.novad.deployment.containers`. ``id``: its row, or 0 if it is not stored yet."""

    kind: str
    name: str
    id: int = 0


class JournalFault(ReportedError):
    """The journal cannot be read. Nothing is deployed until an operator has repaired it."""


class Journal:
    """The journal. Each call is a transaction and may come from any thread. Raises JournalFault for a damaged file."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._closed = False
        self._reserve = path.with_name(f"{path.name}.reserve")
        self._reserved = self._reserve.exists()
        try:
            self._adjust_reserve()  # Without its reserve SQLite could not open the file on a full disk.
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            path.chmod(0o600)
            self._connection.executescript("pragma journal_mode = wal; pragma synchronous = full")
            verdict = self._connection.execute("pragma quick_check").fetchone()[0]
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
            self._connection.executescript(_SCHEMA)
        except (sqlite3.OperationalError, OSError) as error:  # For example, a full disk.
            raise JournalFault(f"The journal {path} cannot be opened: {error}") from None
        except sqlite3.Error as error:
            raise JournalFault(f"The journal {path} is damaged ({error}). Restore a copy, or move the file away: "
                               "containers and data stay as they are, and the next deploy takes them over.") from None

    def close(self) -> None:
        """Close the journal; later calls raise an error."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def begin(self, kind: str, stage: str, changes: Sequence[Change], origin: Origin | None = None) -> Deployment:
        started = time.time()
        with self._transaction() as connection:
            [(ident,)] = connection.execute(
                "insert into deployments (kind, state, stage, changes, started) values (?, ?, ?, ?, ?) returning id",
                (kind, RUNNING, stage, _text(list(changes)), started))
            if origin is not None:
                connection.execute("insert into given values (?, ?, ?, ?)",
                                   (ident, origin.coordinator, origin.number, _text(origin)))
        return Deployment(id=ident, kind=kind, state=RUNNING, stage=stage, changes=list(changes), started=started)

    def advance(self, ident: int, stage: str, changes: Sequence[Change] | None = None) -> None:
        self._execute("update deployments set stage = ?, changes = coalesce(?, changes) where id = ?", stage,
                      None if changes is None else _text(list(changes)), ident)

    def finish(self, ident: int, state: str, components: Sequence[Change], error: str = "",
               cleanup: Sequence[CleanupTask] = (), states: Sequence[State] = ()) -> None:
        """Write the end of a deployment, the deployed components, its states and its cleanup, in one transaction."""
        with self._transaction() as connection:
            connection.execute("update deployments set state = ?, ended = ?, error = ? where id = ?",
                               (state, time.time(), error, ident))
            for change in components:
                if change.after is None:
                    connection.execute("delete from components where name = ?", (change.name,))
                else:
                    connection.execute("insert or replace into components values (?, ?)",
                                       (change.name, _text(change.after)))
            connection.executemany("insert into owed (kind, name) values (?, ?)",
                                   [(task.kind, task.name) for task in cleanup])
            if state == DONE:
                _record(connection, ident, states)

    def deployments(self, limit: int = 100) -> list[Deployment]:
        """Return deployments, the newest first."""
        return self._structs(Deployment, "select * from deployments order by id desc limit ?", limit)

    def deployment(self, ident: int) -> Deployment | None:
        return next(iter(self._structs(Deployment, "select * from deployments where id = ?", ident)), None)

    def unfinished(self) -> list[Deployment]:
        """Return the deployments that were interrupted or whose rollback failed, the newest first."""
        return self._structs(Deployment, "select * from deployments where state in (?, ?) order by id desc", RUNNING,
                             STUCK)

    def states(self, component: str) -> list[State]:
        """Return the states of a component, the oldest first."""
        return self._structs(State, "select * from states where component = ? order by deployment", component)

    def unrecorded(self) -> Deployment | None:
        """Return the oldest successful deployment whose states are not recorded."""
        return next(iter(self._structs(
            Deployment, "select * from deployments where state = ? and id > coalesce((select cast(value as integer) "
            "from facts where name = ?), 0) order by id limit 1", DONE, _RECORDED)), None)

    def record(self, ident: int, states: Sequence[State]) -> None:
        with self._transaction() as connection:
            _record(connection, ident, states)

    def origins(self, idents: Sequence[int]) -> dict[int, Origin]:
        """Return the control nodes that requested these deployments. Deployments of this node have none."""
        rows = self._execute("select deployment, origin from given where deployment in "
                             "(select value from json_each(?))", _text(list(idents)))
        return {ident: msgspec.json.decode(text, type=Origin) for ident, text in rows}

    def given(self, coordinator: str, number: int) -> Deployment | None:
        """Return the deployment of this node that executes deployment ``number`` of a control node."""
        return next(iter(self._structs(
            Deployment, "select * from deployments where id = (select max(deployment) from given where coordinator = ? "
            "and number = ?)", coordinator, number)), None)

    def given_until(self, coordinator: str, number: int) -> int:
        """Return the id of the newest deployment here that executes one of a control node up to ``number``, or 0."""
        [(ident,)] = self._execute("select max(deployment) from given where coordinator = ? and number <= ?",
                                   coordinator, number)
        return int(ident or 0)

    def pending(self) -> Deployment | None:
        """Return the deployment that waits for the decision of the control node."""
        return next(iter(self._structs(Deployment, "select * from deployments where state = ?", PENDING)), None)

    def reopen(self, ident: int) -> None:
        """Mark a pending deployment to be undone, also after a restart of novad."""
        self._execute("update deployments set state = ? where id = ?", RUNNING, ident)

    def add_participant(self, ident: int, address: str, node: str) -> None:
        self._execute("insert or ignore into asked (deployment, address, node) values (?, ?, ?)", ident, address, node)

    def record_changes(self, ident: int, address: str, names: str) -> None:
        self._execute("update asked set components = ? where deployment = ? and address = ?", names, ident, address)

    def mark_informed(self, ident: int, address: str) -> None:
        self._execute("update asked set settled = 1 where deployment = ? and address = ?", ident, address)

    def participations(self, idents: Sequence[int]) -> dict[int, list[Participation]]:
        """Return the participations of the other nodes by deployment."""
        rows = self._structs(Participation, _PARTICIPATIONS.format("deployment in (select value from json_each(?))"),
                             DONE, _text(list(idents)))
        return {ident: list(nodes) for ident, nodes in itertools.groupby(rows, lambda node: node.deployment)}

    def unsettled(self) -> list[Participation]:
        """Return the participations of nodes that have not received the decision on a finished deployment."""
        return self._structs(Participation, _PARTICIPATIONS.format("not settled and state in (?, ?)"), DONE, DONE,
                             UNDONE)

    def components(self) -> dict[str, Deployed]:
        rows = self._execute("select name, deployed from components order by name")
        with self._damage("components"):
            return {name: msgspec.json.decode(text, type=Deployed) for name, text in rows}

    def add_backup(self, component: str, deployment: int, writer: Deployed, path: str, size: int) -> Backup:
        return self._structs(
            Backup, "insert into backups (component, deployment, writer, version, path, size, made) "
            "values (?, ?, ?, ?, ?, ?, ?) returning *", component, deployment, writer.deployment,
            writer.version or writer.component.tag, path, size, time.time())[0]

    def backups(self, component: str | None = None, dropped: bool = False) -> list[Backup]:
        """Return backups, the newest first."""
        return self._structs(Backup, "select * from backups where (? is null or component = ?) and (? or path != '') "
                                     "order by id desc", component, component, dropped)

    def backup(self, ident: int) -> Backup | None:
        """Return a backup, also a removed one."""
        return next(iter(self._structs(Backup, "select * from backups where id = ?", ident)), None)

    def drop_backup(self, ident: int, kind: str) -> None:
        """Mark a backup as deleted, so that a restore reports it; record its directory for cleanup, as ``kind``."""
        with self._transaction() as connection:
            connection.execute("insert into owed (kind, name) select ?, path from backups where id = ? and path != ''",
                               (kind, ident))
            connection.execute("update backups set path = '' where id = ?", (ident,))

    def cleanup_tasks(self) -> list[CleanupTask]:
        return self._structs(CleanupTask, "select kind, name, id from owed order by id")

    def cleanup_done(self, ident: int) -> None:
        self._execute("delete from owed where id = ?", ident)

    def fact(self, name: str) -> str:
        return next((str(value) for value, in self._execute("select value from facts where name = ?", name)), "")

    def set_fact(self, name: str, value: str) -> None:
        self._execute("insert or replace into facts values (?, ?)", name, value)

    def facts(self, prefix: str) -> dict[str, str]:
        """Return the facts whose names begin with the prefix, by the rest of their names."""
        rows = self._execute("select name, value from facts where substr(name, 1, ?) = ? order by name",
                             len(prefix), prefix)
        return {name.removeprefix(prefix): value for name, value in rows}

    def drop_fact(self, name: str) -> None:
        self._execute("delete from facts where name = ?", name)

    def _structs(self, kind: type[_T], statement: str, *values: object) -> list[_T]:
        """Return the rows of a statement, whose columns are the fields of ``kind``. The column changes is JSON."""
        structs = []
        for row in self._execute(statement, *values):
            fields = dict(zip(kind.__struct_fields__, row, strict=True))
            with self._damage(f"{kind.__name__} {row[0]}"):
                if "changes" in fields:
                    fields["changes"] = msgspec.json.decode(fields["changes"])
                structs.append(msgspec.convert(fields, kind, strict=False))
        return structs

    @contextlib.contextmanager
    def _damage(self, what: str) -> Iterator[None]:
        """Raise JournalFault for rows that cannot be decoded."""
        try:
            yield
        except msgspec.MsgspecError as error:
            raise JournalFault(f"The journal {self.path} is damaged: {what}: {error}") from None

    def _execute(self, statement: str, *values: object) -> list[Any]:
        with self._transaction() as connection:
            return connection.execute(statement, values).fetchall()

    def _adjust_reserve(self) -> None:
        """Release reserved space of a full disk, so that novad can roll back; reserve it again when there is room."""
        about = os.statvfs(self._reserve.parent)
        free = about.f_bfree * about.f_frsize
        if self._reserved and free < _SCARCE:
            self._reserve.unlink(missing_ok=True)
            self._reserved = False
        elif not self._reserved and free > _PLENTY:
            with contextlib.suppress(OSError), open(
                    os.open(self._reserve, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, _RESERVE)
                self._reserved = True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:  # SQLite itself would crash
                raise JournalFault(f"The journal {self.path} is closed: novad is stopping.")
            try:
                self._adjust_reserve()
                self._connection.execute("begin immediate")
                yield self._connection
                self._connection.execute("commit")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("rollback")
                if isinstance(error, sqlite3.Error | OSError):
                    raise JournalFault(f"The journal {self.path} cannot be used: {error}") from error
                raise


def _record(connection: sqlite3.Connection, ident: int, states: Sequence[State]) -> None:
    connection.executemany("insert or replace into states values (?, ?, ?, ?, ?, ?)", [
        (state.component, ident, state.parent, state.source, state.origin, state.removed) for state in states])
    connection.execute("insert or replace into facts values (?, ?)", (_RECORDED, str(ident)))


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()

