"""Invariants of a node without a running change.

The data of a component are lines of its writers (see tests.crash.novad.runtime), and rows that a user wrote.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

from tests.crash.novad.runtime import WRITTEN
from tests.crash.novad.world import World

VOLUMES = {"db": ("rows", "cache"), "api": ("state",), "conductor": ()}


@dataclasses.dataclass
class Seen:
    """The state of a node at one moment."""

    components: dict[str, dict[str, Any]]
    data: dict[str, list[str]]  # by component; without caches
    secrets: dict[str, str]
    backups: dict[int, tuple[str, tuple[str, ...]]]  # by id: component, lines
    last: int  # deployment


def look(world: World) -> Seen:
    return Seen(
        components=world.components(), data={name: _lines(world.data / "volumes" / name) for name in VOLUMES},
        secrets={path.name: path.read_text() for path in (world.data / "secrets").glob("*")} if (
            world.data / "secrets").exists() else {},
        backups={ident: (component, tuple(_lines(world.data / path))) for ident, component, path in world.rows(
            "select id, component, path from backups where path != ''")},
        last=max((ident for ident, in world.rows("select id from deployments")), default=0))


def check(world: World, before: Seen, what: str, words: tuple[str, ...] = (), done: bool | None = None) -> Seen:
    """Check the node after a change and return its state (``done``: True if novad reported success, None if
    unknown)."""
    now = look(world)
    rows = world.rows("select id, kind, state, changes from deployments where id > ? order by id", before.last)
    committed = [row for row in rows if row[2] == "done"]
    assert len(rows) <= 1, rows
    if what not in ("restart", "prune"):
        assert done is None or done == bool(committed), (done, rows)
    changes = json.loads(committed[0][3]) if committed else []
    _check_components(before, now, changes)
    _check_containers(world, now)
    gone = what == "remove" and "volumes" in words and bool(committed)
    for name in VOLUMES:
        _check_data(name, before, now, next((one for one in changes if one["name"] == name), None), gone)
    _check_secrets(before, now, what, words, bool(committed))
    _check_backups(world, before, now, what)
    _check_left_over(world, now, gone)
    return now


def _check_components(before: Seen, now: Seen, changes: list[dict[str, Any]]) -> None:
    """Check that the components are those of the last committed deployment, and no mixture."""
    expected = dict(before.components)
    for change in changes:
        if change.get("after") is None:
            expected.pop(change["name"])
        else:
            expected[change["name"]] = change["after"]
    assert now.components == expected


def _check_containers(world: World, now: Seen) -> None:
    containers = world.runtime.all()
    assert set(containers) == {f"suite-{name}" for name in now.components}
    for name, deployed in now.components.items():
        found = containers[f"suite-{name}"]
        assert found["running"], name
        assert (found["image"], found["labels"]["io.nova.deployment"]) == (
            deployed["image"], str(deployed["deployment"])), name
        secret = now.secrets.get("db", "")
        if name == "conductor":
            assert found["env"] == {"URL": f"db://user:{secret}@db"}
        for source, _destination, read_only in found["mounts"]:
            if read_only:
                text = pathlib.Path(source).read_text()
                assert text in (f"root = {secret}", f"password = {secret}", "an option"), (name, text)
    networks = {path.name for path in (world.directory / "runtime/networks").iterdir()}
    assert networks <= {"suite-inner"}
    assert now.components or not networks, networks


def _reference(deployed: dict[str, Any]) -> str:
    return f"{deployed['component']['image']}:{deployed['component']['version']}"


def _check_data(name: str, before: Seen, now: Seen, change: dict[str, Any] | None, gone: bool) -> None:
    """Check that all former data, or those of the rollback, are present, and otherwise only lines of deployed
    components."""
    lines = now.data[name]
    if gone:
        assert lines == [], name
        return
    base = before.data[name]
    if change and change.get("restore"):
        component, kept = before.backups[change["restore"]]
        assert component == name
        base = list(kept)
    assert lines[:len(base)] == base, (name, base, lines)
    known = {_reference(deployed) for other, deployed in now.components.items() if other in (
        name, *(("conductor",) if name == "db" else ()))}
    if name == "db" and "db" in now.components and "conductor" not in now.components:
        known |= {line for line in lines if "conductor" in line}  # of a conductor removed in the same deployment
    assert set(lines[len(base):]) <= known, (name, base, lines)


def _check_secrets(before: Seen, now: Seen, what: str, words: tuple[str, ...], committed: bool) -> None:
    if what == "remove" and "secrets" in words and committed:
        assert now.secrets == {}
    elif what == "rotate":
        assert (now.secrets.get("db") != before.secrets.get("db")) == committed
    else:
        for name, value in before.secrets.items():
            assert now.secrets.get(name) == value, name


def _check_backups(world: World, before: Seen, now: Seen, what: str) -> None:
    """Check that earlier backups are unchanged unless retention removed them, and that new backups have the former
    data."""
    for ident, (component, lines) in now.backups.items():
        if ident in before.backups:
            assert before.backups[ident] == (component, lines), ident
        else:
            was = before.data[component]
            assert list(lines)[:len(was)] == was, (ident, component)
            assert set(lines[len(was):]) <= {_reference(one) for one in before.components.values()}, (ident, lines)
    for component in VOLUMES:
        ids = [ident for ident in {**before.backups, **now.backups} if {**before.backups, **now.backups}[ident][0]
               == component]
        kept = [ident for ident in ids if ident in now.backups]
        assert kept == ids[len(ids) - len(kept):], "an older backup was retained instead of a newer backup"
        assert len(kept) >= min(len(ids), 2), (component, ids, kept)
    named = {path for path, in world.rows("select path from backups where path != ''")}
    root = world.data / "backups"
    assert {str(path.relative_to(world.data)) for path in root.glob("*/*")} == named


def _check_left_over(world: World, now: Seen, gone: bool) -> None:
    """Check that there are no unknown files."""
    data = world.data
    assert {path.name for path in (data / "files").iterdir()} == set(now.components)
    strange = [str(path.relative_to(data)) for path in data.rglob("*") if path.name.startswith(".") and
               path.name not in (".salt", ".dump") and path != data / "secrets/.past-db"]  # for the masker of logs
    assert strange == [], strange
    volumes = {str(path.relative_to(data / "volumes")) for path in (data / "volumes").glob("*/*")}
    assert volumes <= {f"{name}/{volume}" for name, those in VOLUMES.items() for volume in those}
    assert not gone or os.listdir(data / "volumes") == []
    assert {path.name for path in data.iterdir()} <= {
        "journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm", "journal.sqlite.reserve", "volumes",
        "backups", "files", "secrets", "shared-secret", "lock", "novad.sock"}


def _lines(place: pathlib.Path) -> list[str]:
    """Return the lines in the backed-up volumes below a component's directory, or in a dump."""
    if (place / ".dump").exists():
        return (place / ".dump").read_text().splitlines()
    found: list[str] = []
    for volume in sorted(place.iterdir()) if place.is_dir() else []:
        if volume.is_dir() and volume.name != "cache" and not volume.name.startswith("."):
            for path in sorted(volume.rglob("*")):
                assert path.name == WRITTEN, path
                found += path.read_text().splitlines()
    return found
