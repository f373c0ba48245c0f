"""Kill novad, and podman's service, at random moments of random changes on a node with podman."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nova.novad.runtime.service import PodmanService
from tests.integration.novad import novad_node
from tests.integration.novad.novad_node import Node, Registry, wait_for
from tests.integration.novad.test_novad import _PLATFORM as PLATFORM
from tests.integration.novad.test_novad import registry  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.full,
              pytest.mark.skipif(bool(novad_node.missing()), reason=novad_node.missing())]

_SEEDS = 4  # maximum of seeds, since each takes minutes
_CHANGES = 6
_LONGEST = 5.0  # maximum of seconds until a kill
_BOUND = 90.0


class Storm:
    def __init__(self, node: Node, name: str, seed: int) -> None:
        self.node, self.name, self.rng = node, name, random.Random(seed)
        self.told: list[str] = []

    def run(self) -> None:
        self.node.nova("deploy")
        for number in range(_CHANGES):
            (self.node.data / "volumes/db/state/written").open("a").write(f"row-{number}\n")
            before = {name: self.node.written(name) for name in ("db", "web")}
            kept = self._kept()
            last = self._rows("select max(id) from deployments")[0][0]
            words = self._words(last)
            self.told.append(f"{' '.join(words)}")
            self._strike(words)
            self.node.start()
            wait_for(self._settled, "the node has settled", lambda: "\n".join([*self.told, self.node.log()]), _BOUND)
            self._check(before, kept, last)

    def _words(self, last: int) -> list[str]:
        rng = self.rng
        return rng.choice([
            ["deploy", f"db={rng.choice('123')}", f"web={rng.choice(['1', '2', 'broken'])}"],
            ["deploy", f"db={rng.choice('123')}"], ["deploy", f"web={rng.choice('123')}"],
            ["rollback", rng.choice(["db", "web"]), "--to", str(rng.randint(1, last))], ["restart"],
            ["secrets", "rotate", "key"], ["backup", "create"]])

    def _strike(self, words: list[str]) -> None:
        with subprocess.Popen(self.node.command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              env=self.node.environment()) as client:
            time.sleep(self.rng.random() * _LONGEST)
            if self.rng.random() < 0.4:
                with contextlib.suppress(OSError, ValueError):
                    os.kill(int((PodmanService(self.node.data / "podman").run / "podman.pid").read_text()),
                            signal.SIGKILL)
                self.told.append("podman's service is killed")
                time.sleep(self.rng.random())
            self.node.kill()
            client.wait(60)

    def _rows(self, statement: str, *values: int) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.node.data / "journal.sqlite", timeout=20)) as connection:
            return list(connection.execute(statement, values))

    def _kept(self) -> dict[int, list[str]]:
        return {ident: (self.node.data / path / "state/written").read_text().splitlines()
                for ident, path in self._rows("select id, path from backups where path != ''")}

    def _components(self) -> dict[str, Any]:
        return {name: json.loads(text) for name, text in self._rows("select name, deployed from components")}

    def _settled(self) -> bool:
        if self._rows("select 1 from deployments where state in ('running', 'stuck')") or self._rows(
                "select 1 from owed"):
            return False
        found = json.loads(self.node.podman("ps", "--all", "--format", "json") or "[]")
        return {one["Names"][0]: (one["ImageID"], one["State"]) for one in found} == {
            f"{self.name}-{name}": (deployed["image"], "running") for name, deployed in self._components().items()}

    def _check(self, before: dict[str, list[str]], kept: dict[int, list[str]], last: int) -> None:
        done = self._rows("select changes from deployments where id > ? and state = 'done'", last)
        changes = {one["name"]: one for one in (json.loads(done[0][0]) if done else [])}
        for name, deployed in self._components().items():
            base = kept[restore] if (restore := changes.get(name, {}).get("restore")) else before[name]
            lines = (self.node.data / "volumes" / name / "state/written").read_text().splitlines()
            assert lines[:len(base)] == base, (name, base, lines)
            assert set(lines[len(base):]) <= {deployed["component"]["version"]}, (name, base, lines)
        known = {path for path, in self._rows("select path from backups where path != ''")}
        assert {str(path.relative_to(self.node.data)) for path in (self.node.data / "backups").glob("*/*")} == known
        assert [path for part in ("secrets", "files", "volumes", "backups")
                for path in (self.node.data / part).rglob(".*") if path.name not in (".salt", ".past-key")] == []


@pytest.fixture
def named(registry: Registry, tmp_path: pathlib.Path) -> Iterator[tuple[Node, str]]:  # noqa: F811
    name = f"k{os.getpid()}"
    with novad_node.node(tmp_path, PLATFORM.format(name=name, host=registry.host)) as made:
        yield made, name


def test_podman_containers_and_data_match_a_single_deployment(named: tuple[Node, str], seed: int,
                                                              request: pytest.FixtureRequest) -> None:
    if seed >= request.config.getoption("--seed") + _SEEDS:
        pytest.skip("a few seeds are enough")
    storm = Storm(*named, seed)
    try:
        storm.run()
    except BaseException as error:
        error.add_note("\n".join([*storm.told, storm.node.log()]))
        raise
