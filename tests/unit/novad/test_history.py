"""Rollbacks: random sequences of changes compared with a model, and journals of the previous release."""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nova.common.errors import Refused, ReportedError
from nova.novad.daemon import Daemon
from nova.novad.errors import Failed
from nova.novad.options import Options
from tests.unit.novad.platforms import parse
from tests.unit.novad.runtimes import FakeRuntime, Killed

TEXT = """
name = "suite"
[components.db]
image = "registry/db"
version = "1"
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
volumes = [{name = "rows", destination = "/rows"}]
[components.conductor]
image = "registry/conductor"
version = "1"
depends = ["db"]
data_of = ["db"]
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
volumes = [{name = "rows", destination = "/rows"}]
"""
NAMES = ("conductor", "db")
REGISTRY = {f"registry/{name}:{version}": "good" for name in NAMES for version in "1234"} | {
    f"registry/{name}:broken": "broken" for name in NAMES}
QUIET = lambda _name, _what: None  # noqa: E731


class Novad:
    """A daemon with a fake runtime; programs write ``tokens`` to their volume."""

    def __init__(self, directory: pathlib.Path, text: str = TEXT, keep: int = 8) -> None:
        self.directory, self.text = directory, text
        self.options = Options(data_dir=str(directory), keep_backups=keep, keep_days=0)
        self.runtime = FakeRuntime(dict(REGISTRY))
        self.start()

    def start(self) -> None:
        self.runtime.before = lambda _verb, _name: None
        self.daemon = Daemon(self.options, parse(self.text, "toml"), self.runtime)
        self.daemon.check_components()

    def write(self, name: str, token: str) -> None:
        with (self.directory / "volumes" / name / "rows" / "tokens").open("a") as file:
            file.write(f"{token}\n")

    def found(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Return version and data of each running component, after checking that the journal agrees."""
        assert self.daemon.journal.unfinished() == []
        known = {name: one.component.tag for name, one in self.daemon.journal.components().items()}
        runs = {name.removeprefix("suite-"): self.runtime.images[self.runtime.made[name].image][0].rpartition(":")[2]
                for name in self.runtime.running}
        assert runs == known
        return {name: (version, self.data(name)) for name, version in known.items()}

    def data(self, name: str) -> tuple[str, ...]:
        place = self.directory / "volumes" / name / "rows" / "tokens"
        return tuple(place.read_text().split()) if place.exists() else ()


@dataclasses.dataclass(frozen=True)
class State:
    """A state of a component in the model: ``before`` is the target of a rollback."""

    made: int
    version: str
    before: State | None = None
    copy_of: int = 0


class Model:
    """The expected history: each change creates immutable states, and stores the data from before it."""

    def __init__(self) -> None:
        self.ident = 0  # of the last deployment
        self.data: dict[str, tuple[str, ...]] = collections.defaultdict(tuple)
        self.saved: dict[tuple[str, int], tuple[str, ...]] = {}
        self.lives: dict[str, list[tuple[int, State | None]]] = {name: [(0, None)] for name in NAMES}

    def now(self, name: str) -> State | None:
        return self.lives[name][-1][1]

    def at(self, name: str, ident: int) -> State | None:
        return [state for made, state in self.lives[name] if made <= ident][-1]

    def last(self, name: str) -> State | None:
        """Return the current state, or the one in which the component was removed."""
        return next((state for _made, state in reversed(self.lives[name]) if state is not None), None)

    def end(self, name: str, state: State) -> int:
        return next(made for made, _state in self.lives[name] if made > state.made)

    def change(self, states: dict[str, State | None], data: dict[str, tuple[str, ...]],
               also: tuple[str, ...] = ()) -> None:
        """Apply a deployment that sets these states, and replaces the data of some components."""
        for name in {*states, *data, *also}:
            if self.now(name) is not None or self.data[name]:
                self.saved[name, self.ident] = self.data[name]
        self.data.update(data)
        for name, state in states.items():
            self.lives[name].append((self.ident, state))

    def deploy(self, versions: dict[str, str]) -> None:
        self.ident += 1
        states: dict[str, State | None] = {
            name: State(self.ident, version, self.last(name)) for name, version in versions.items()
            if (now := self.now(name)) is None or now.version != version}
        self.change(states, {}, self.written_by(states))

    def written_by(self, states: dict[str, State | None]) -> tuple[str, ...]:
        return ("db",) if states.get("conductor") and self.now("db") else ()

    def way_back(self, names: tuple[str, ...], to: int | None) -> tuple[dict[str, State], dict[str, tuple[str, int]]]:
        """Return the target states of a rollback, and the saved data to restore with them."""
        targets, ends = {}, {}
        for name in names or NAMES:
            now = self.now(name)
            target = None if now is None else now.before if to is None else self.at(name, to)
            if now is None or target is None or target.made == now.made:
                continue
            end = self.end(name, target)
            if target.made != now.copy_of or self.data[name] != self.saved.get((name, end)):
                targets[name], ends[name] = target, end
        if "conductor" in targets and self.now("db") is not None:
            moments = [made for made, state in self.lives["conductor"]
                       if made >= ends["conductor"] and state is not None and ("db", made) in self.saved]
            if moments and moments[0] < ends.get("db", moments[0] + 1):
                ends["db"] = moments[0]
        return targets, {name: (name, end) for name, end in ends.items()}

    def roll_back(self, targets: dict[str, State], saved: dict[str, tuple[str, int]]) -> None:
        self.ident += 1
        data = {name: self.saved[key] for name, key in saved.items()}
        self.change({name: State(self.ident, target.version, target.before, target.made)
                     for name, target in targets.items()}, data, self.written_by(dict(targets)))


class Comparison:
    """A runner that applies each operation to novad and to the model."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.novad, self.model, self.covered = Novad(directory), Model(), collections.Counter[str]()
        self.tokens = 0

    @property
    def kept(self) -> set[tuple[str, int]]:
        return {(backup.component, backup.deployment) for backup in self.novad.daemon.journal.backups()}

    def run(self, kind: str, *arguments: object) -> None:
        for name in NAMES:
            if self.model.now(name) is not None:
                self.tokens += 1
                self.novad.write(name, f"t{self.tokens}")
                self.model.data[name] += (f"t{self.tokens}",)
        self.covered[kind + getattr(self, kind)(*arguments)] += 1
        expected = {name: (state.version, self.model.data[name]) for name in NAMES if (state := self.model.now(name))}
        assert self.novad.found() == expected, kind

    def deploy(self, versions: dict[str, str]) -> str:
        if "conductor" in versions and "db" not in versions and self.model.now("db") is None:
            with pytest.raises(Refused, match="depends on components that are not deployed"):
                self.novad.daemon.deploy(versions, QUIET)
            return " refused"
        self.novad.daemon.deploy(versions, QUIET)
        self.model.deploy(versions)
        return ""

    def fail(self, name: str) -> str:
        versions = {"db": "1", name: "broken"} if self.model.now("db") is None else {name: "broken"}
        with pytest.raises(Failed, match="The previous state was restored"):
            self.novad.daemon.deploy(versions, QUIET)
        self.model.ident += 1
        self.undone()
        return ""

    def undone(self) -> None:
        """Record the backups of a rolled-back deployment, which are retained."""
        self.model.saved.update({key: self.model.data[key[0]] for key in self.kept if key[1] == self.model.ident})

    def rollback(self, names: tuple[str, ...], to: int | None) -> str:
        names = tuple(name for name in names if self.model.now(name) is not None)
        to = None if to is None else 1 + to % max(1, self.model.ident)
        targets, saved = self.model.way_back(names, to)
        act: Callable[[], None] = lambda: self.novad.daemon.rollback(names, to, QUIET)  # noqa: E731
        if not targets:
            with pytest.raises(Refused, match="Nothing to roll back to"):
                act()
            return " to nothing"
        if not set(saved.values()) <= self.kept:
            with pytest.raises(Refused, match=r"removed \(keep"):
                act()
            return " to data that are gone"
        act()
        self.model.roll_back(targets, saved)
        return " to a number" if to else ""

    def create(self) -> str:
        self.novad.daemon.back_up("", QUIET)
        self.model.ident += 1
        self.model.change({}, {}, tuple(name for name in NAMES if self.model.now(name)))
        return ""

    def restore(self, which: int) -> str:
        backups = [one for one in self.novad.daemon.journal.backups() if self.model.now(one.component)]
        if not backups:
            return " of nothing"
        backup = backups[which % len(backups)]
        name, now = backup.component, self.model.now(backup.component)
        self.novad.daemon.restore(backup.id, QUIET)
        self.model.ident += 1
        assert now is not None
        writer = self.model.at(name, backup.deployment - 1) or now
        states: dict[str, State | None] = {name: State(self.model.ident, writer.version, now)}
        self.model.change(states, {name: self.model.saved[name, backup.deployment]}, self.model.written_by(states))
        return ""

    def prune(self, keep: int) -> str:
        newest = {name: [one.id for one in self.novad.daemon.journal.backups(name)][:keep] for name in NAMES}
        self.novad.daemon.options = msgspec.structs.replace(self.novad.daemon.options, keep_backups=keep)
        self.novad.daemon.prune()
        assert {name: [one.id for one in self.novad.daemon.journal.backups(name)] for name in NAMES} == newest
        return ""

    def restart(self) -> str:
        self.novad.daemon.restart([], QUIET)
        return ""

    def remove(self) -> str:
        self.novad.daemon.remove(False, False, QUIET)
        self.model.ident += 1
        self.model.change({name: None for name in NAMES if self.model.now(name)}, {})
        return ""

    def kill(self, number: int, names: tuple[str, ...]) -> str:
        """Kill novad at an effect of a deployment or rollback, and restart it."""
        left = [number]

        def before(_verb: str, _name: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        last = self.novad.daemon.journal.deployments(1)
        self.novad.runtime.before = before
        try:
            if names:
                self.novad.daemon.rollback([name for name in names if self.model.now(name)], None, QUIET)
            else:
                self.novad.daemon.deploy(dict.fromkeys(NAMES, "4"), QUIET)
        except (Killed, ReportedError):
            pass
        self.novad.start()
        after = self.novad.daemon.journal.deployments(1)
        self.model.ident += len(after) and after[0].id - (last[0].id if last else 0)
        if after == last:  # The rollback was refused.
            return ""
        if after[0].state != "done":
            self.undone()
            return ""
        self.model.ident -= 1
        if not names:
            self.model.deploy(dict.fromkeys(NAMES, "4"))
            return " after a deployment"
        self.model.roll_back(*self.model.way_back(tuple(name for name in names if self.model.now(name)), None))
        return " after a rollback"


_NAMES = st.sampled_from([(), ("db",), ("conductor",), NAMES])
_OPERATIONS = [
    (8, st.tuples(st.just("deploy"), st.dictionaries(st.sampled_from(NAMES), st.sampled_from("1234"), min_size=1))),
    (4, st.tuples(st.just("rollback"), _NAMES, st.none())),
    (3, st.tuples(st.just("rollback"), _NAMES, st.integers(0, 20))),
    (1, st.tuples(st.just("fail"), st.sampled_from(NAMES))), (1, st.tuples(st.just("create"))),
    (3, st.tuples(st.just("restore"), st.integers(0, 20))), (1, st.tuples(st.just("prune"), st.integers(1, 3))),
    (1, st.tuples(st.just("restart"))), (1, st.tuples(st.just("remove"))),
    (2, st.tuples(st.just("kill"), st.integers(0, 25), _NAMES))]
_OPERATION = st.sampled_from([one for weight, one in _OPERATIONS for _time in range(weight)]).flatmap(lambda one: one)


def test_random_change_sequences_match_the_model():
    covered: collections.Counter[str] = collections.Counter()

    @settings(max_examples=20, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
              report_multiple_bugs=False)
    @given(st.lists(_OPERATION, min_size=12, max_size=20))
    def check(operations):
        directory = pathlib.Path(tempfile.mkdtemp())
        compared = Comparison(directory)
        try:
            for version in "123":
                compared.run("deploy", {"db": version, "conductor": version})
            compared.run("rollback", (), None)
            compared.run("rollback", ("db",), 1)  # to deployment 2, of whose state the current one is a copy
            for kind, *arguments in operations:
                compared.run(kind, *arguments)
            covered.update(compared.covered)
        finally:
            compared.novad.daemon.journal.close()
            shutil.rmtree(directory)

    check()
    print(", ".join(f"{kind}: {number}" for kind, number in sorted(covered.items())))
    assert {"deploy", "fail", "rollback", "rollback to a number", "rollback to nothing", "create", "restore", "prune",
            "restart", "remove", "kill"} <= set(covered)


def deployed(novad: Novad, *versions: str) -> None:
    for version in versions:
        novad.daemon.deploy({"db": version, "conductor": "1"}, QUIET)
        novad.write("db", f"v{version}")


@pytest.fixture
def novad(tmp_path):
    return Novad(tmp_path, keep=20)


def test_rollback_targets_the_previous_state_and_not_a_rolled_back_version(novad):
    deployed(novad, "1", "2")
    novad.daemon.rollback(["db"], None, QUIET)
    novad.write("db", "third")
    deployed(novad, "2")
    novad.daemon.rollback(["db"], None, QUIET)
    assert novad.found()["db"] == ("1", ("v1", "third"))
    with pytest.raises(Refused, match="Nothing to roll back to"):
        novad.daemon.rollback(["db"], None, QUIET)
    novad.daemon.rollback(["db"], 2, QUIET)
    assert novad.found()["db"] == ("2", ("v1", "v2"))


def test_rollback_to_a_copied_state_discards_data_written_to_the_copy(novad):
    deployed(novad, "1", "2")
    for _time in range(2):
        novad.daemon.rollback(["db"], 1, QUIET)
        assert novad.found()["db"] == ("1", ("v1",))
        novad.write("db", "later")
    novad.daemon.rollback(["db"], 3, QUIET)
    assert novad.found()["db"] == ("1", ("v1", "later"))
    with pytest.raises(Refused, match="Nothing to roll back to"):
        novad.daemon.rollback(["db"], 5, QUIET)


def test_rollback_after_a_restore_reverts_the_restore(novad):
    deployed(novad, "1", "2", "3")
    backup = next(one for one in novad.daemon.journal.backups("db") if one.deployment == 2)
    novad.daemon.restore(backup.id, QUIET)
    assert novad.found()["db"] == ("1", ("v1",))
    novad.daemon.rollback(["db"], None, QUIET)
    assert novad.found()["db"] == ("3", ("v1", "v2", "v3"))
    novad.daemon.rollback(["db"], None, QUIET)
    assert novad.found()["db"] == ("2", ("v1", "v2"))


def test_rollback_restores_data_from_before_the_first_writer_change(novad):
    """The upgrade of the database is newer than that of the conductor in the same rollback."""
    deployed(novad, "1")
    novad.daemon.deploy({"conductor": "2"}, QUIET)
    novad.write("db", "a column of conductor 2")
    novad.daemon.deploy({"db": "2"}, QUIET)
    novad.daemon.rollback([], None, QUIET)
    assert novad.found() == {"db": ("1", ("v1",)), "conductor": ("1", ())}


def test_rollback_to_a_state_without_data_restores_no_data(novad):
    deployed(novad, "1")
    volumes = 'volumes = [{name = "rows", destination = "/rows"}]\n'
    novad.text = TEXT.replace(volumes, "", 1)
    shutil.rmtree(novad.directory / "volumes" / "db")
    novad.start()
    novad.daemon.deploy({"db": "2"}, QUIET)
    novad.text = TEXT
    novad.start()
    novad.daemon.deploy({"db": "3"}, QUIET)
    novad.write("db", "v3")
    novad.daemon.rollback(["db"], None, QUIET)
    novad.daemon.deploy({"db": "3"}, QUIET)
    assert novad.data("db") == ()


def former_release(novad: Novad) -> None:
    """Convert the journal to the format of the previous release, which records no states."""
    novad.daemon.journal.close()
    with sqlite3.connect(novad.directory / "journal.sqlite") as connection:
        connection.execute("drop table states")
        connection.execute("delete from facts where name = 'states-recorded'")
        for ident, changes in connection.execute("select id, changes from deployments").fetchall():
            parts = [{key: value for key, value in one.items() if key != "state"} for one in json.loads(changes)]
            connection.execute("update deployments set changes = ? where id = ?", (json.dumps(parts), ident))
    novad.start()


def test_journal_of_the_previous_release_yields_the_same_states(novad):
    deployed(novad, "1", "2")
    novad.daemon.rollback(["db"], None, QUIET)
    deployed(novad, "2", "3")
    novad.daemon.rollback(["db"], 2, QUIET)
    with pytest.raises(Failed):
        novad.daemon.deploy({"db": "broken"}, QUIET)
    novad.daemon.restore(novad.daemon.journal.backups("db")[-1].id, QUIET)
    novad.daemon.deploy({"conductor": "2"}, QUIET)
    novad.daemon.rollback(["conductor"], None, QUIET)
    novad.daemon.remove(False, False, QUIET)
    deployed(novad, "1")
    before = {name: novad.daemon.journal.states(name) for name in NAMES}
    assert len(before["db"]) == 9
    former_release(novad)
    assert {name: novad.daemon.journal.states(name) for name in NAMES} == before
    deployed(novad, "2")
    novad.daemon.rollback(["db"], None, QUIET)
    assert novad.found()["db"][0] == "1"


def test_states_of_deployments_by_an_older_release_are_recorded_at_startup(novad):
    deployed(novad, "1", "2")
    novad.daemon.journal.close()
    with sqlite3.connect(novad.directory / "journal.sqlite") as connection:
        before = connection.execute("select * from states order by deployment").fetchall()
        connection.execute("delete from states where deployment = 2")
        connection.execute("update facts set value = '1' where name = 'states-recorded'")
    novad.start()
    with sqlite3.connect(novad.directory / "journal.sqlite") as connection:
        assert connection.execute("select * from states order by deployment").fetchall() == before
