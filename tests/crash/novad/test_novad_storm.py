"""Successive changes, each with a fault.

``pytest tests/crash/novad/test_novad_storm.py --seed 7 --seeds 1`` repeats the plan of seed 7; the moments of faults
differ.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tests.crash.novad import checks
from tests.crash.novad.points import ALL_FULL, FAULT, FULL, KILL
from tests.crash.novad.world import Answer, World

_CHANGES, _QUICK_CHANGES = 20, 6
_LONGEST = 0.5  # maximum of seconds until a fault
_PLACES = 60


class Storm:
    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.told: list[str] = []
        self._row = 0
        # (component, deployment) -> the data at the end of the state that the deployment created
        self._left: dict[tuple[str, int], list[str]] = {}

    def run(self, changes: int) -> None:
        self.world.start()
        assert self.world.ask("deploy").error == ""
        self.world.settle()
        for _number in range(changes):
            self._live()
            before = checks.look(self.world)
            what, words = self._change(before)
            answer = self._with_fault(what, words)
            self.told.append(f"  -> {answer}")
            self._return()
            self.world.settle()
            self.world.kill()
            now = checks.check(self.world, before, what, words, None if answer.error else True)
            self._remember(before, now)
            self.world.start()
        self.world.settle()

    def _live(self) -> None:
        """Simulate writes of users, failures of containers, and changes of the platform file."""
        rows = self.world.data / "volumes/db/rows"
        if rows.is_dir() and self.rng.random() < 0.7:
            self._row += 1
            with (rows / "written").open("a") as file:
                file.write(f"row {self._row}\n")
        if self.rng.random() < 0.2:
            name = self.rng.choice(["suite-db", "suite-conductor", "suite-api"])
            self.told.append(f"{name} ends")
            self.world.runtime.end(name)
        if self.rng.random() < 0.15:
            self.world.kill()
            self.world.platform(api=self.rng.random() < 0.5)
            self.world.start()
        self.world.settle()

    def _change(self, before: checks.Seen) -> tuple[str, tuple[str, ...]]:
        rng = self.rng
        what = rng.choices(
            ("deploy", "upgrade", "rollback", "remove", "restart", "rotate", "backup", "restore", "prune"),
            (2, 6, 4, 1, 1, 2, 2, 3, 1))[0]
        words: tuple[str, ...] = ()
        if what == "upgrade":
            names = rng.sample(["db", "conductor", "api"], rng.randint(1, 3))
            words = tuple(f"{name}={rng.choice(_VERSIONS[name])}" for name in names)
            what = "deploy"
        elif what == "rollback":
            words = (str(rng.randint(0, before.last)), *rng.sample(["db", "conductor", "api"], rng.randint(0, 2)))
        elif what == "remove":
            words = tuple(word for word in ("volumes", "secrets") if rng.random() < 0.5)
        elif what == "restore":
            words = (str(rng.choice([1, *before.backups])),)
        elif what == "rotate":
            words = ("db",)
        return what, words

    def _with_fault(self, what: str, words: tuple[str, ...]) -> Answer:
        rng = self.rng
        fault = rng.choice(["none", "kill", "kill at", "kill at", FAULT, FULL, ALL_FULL, "away", "away and kill"])
        at = rng.randrange(_PLACES)
        self.told.append(f"{what} {' '.join(words)}: {fault} {at}")
        if fault in (FAULT, FULL, ALL_FULL, "kill at"):
            self.world.kill()
            self.world.start(at=at, then=KILL if fault == "kill at" else fault)
            return self.world.ask(what, *words)
        if fault == "none":
            return self.world.ask(what, *words)
        threads = [threading.Timer(rng.random() * _LONGEST, act) for act in self._acts(fault)]
        for thread in threads:
            thread.start()
        try:
            return self.world.ask(what, *words)
        finally:
            for thread in threads:
                thread.join()

    def _acts(self, fault: str) -> list[Callable[[], None]]:
        def away() -> None:
            (self.world.directory / "runtime/away").touch()
        return [act for word, act in (("away", away), ("kill", self.world.strike)) if word in fault]

    def _return(self) -> None:
        """End all external faults; novad may be killed repeatedly while it recovers."""
        while self.rng.random() < 0.4:
            self.world.kill()
            self.world.start(at=self.rng.randrange(40), from_start=True)
            time.sleep(self.rng.random() * 0.3)
        (self.world.directory / "runtime/away").unlink(missing_ok=True)
        (self.world.directory / "relieved").touch()
        if not self.world.alive() or self.rng.random() < 0.3:
            self.world.kill()
            self.world.start()
        self.world.settle_or_die()
        if not self.world.alive():
            self.world.kill()
            self.world.start()

    def _remember(self, before: checks.Seen, now: checks.Seen) -> None:
        """Check that a rollback of a single component restored the data at the end of its target state."""
        made = self.world.rows("select component, deployment, source from states where deployment > ?", before.last)
        for name, deployment, source in made:
            known = self._left.get((name, source))
            if known is not None and len(made) == 1:
                assert now.data[name][:len(known)] == known, name
            (former,), = self.world.rows("select max(deployment) from states where component = ? and deployment < ?",
                                         name, deployment)
            if former is not None:
                self._left[name, former] = before.data[name]


_VERSIONS = {"db": "1234", "conductor": ("1", "2", "3", "sick"), "api": ("1", "2", "bad")}


def test_platform_is_consistent_after_changes_with_random_faults(world: World, seed: int, quick: bool) -> None:
    storm = Storm(world, seed)
    try:
        storm.run(_QUICK_CHANGES if quick else _CHANGES)
    except BaseException as error:
        error.add_note("\n".join([*storm.told, world.log()]))
        raise
