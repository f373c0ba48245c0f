"""Kill novad (SIGKILL) at every place of every change: the platform has the old or the new state.

Places: before, in the middle of and after each verb of the runtime, before and after each write of the journal, before
each change of a file, in the middle of each copy. With ``--quick`` a few places of each change.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from tests.crash.novad import checks
from tests.crash.novad.points import ALL_FULL, FAULT, FULL, KILL
from tests.crash.novad.world import World

_QUICK = 2  # places of each change


@dataclasses.dataclass(frozen=True)
class Case:
    """A change, and the state before it."""

    what: str
    words: tuple[str, ...] = ()
    fails: bool = False
    keep: int = 2  # backups, during the preparation
    prepare: Callable[[World], None] = lambda _world: None


def _upgraded(world: World) -> None:
    """Deploy three versions, with more backups than retention allows."""
    for words in (("db=2", "conductor=2"), ("db=3",)):
        assert world.ask("deploy", *words).error == ""


def _backed_up(world: World) -> None:
    for _time in range(4):
        assert world.ask("backup").error == ""


def _dumped(world: World) -> None:
    """Create a first backup that is a dump of version 1."""
    assert world.ask("backup").error == ""
    assert (world.data / world.rows("select path from backups where id = 1")[0][0] / ".dump").exists()
    assert world.ask("deploy", "db=2").error == ""


CASES = {
    "deploy": Case("deploy", ("db=2", "conductor=2", "api=2")),
    "a deployment that fails": Case("deploy", ("db=2", "conductor=2", "api=bad"), fails=True),
    "a component less": Case("deploy", prepare=lambda world: world.platform(api=False)),
    "rollback": Case("rollback", ("1", "db", "conductor"), prepare=_upgraded),
    "remove": Case("remove"),
    "remove all": Case("remove", ("volumes", "secrets")),
    "restart": Case("restart"),
    "rotate": Case("rotate", ("db",)),
    "backup": Case("backup", prepare=_backed_up),
    "restore a dump": Case("restore", ("1",), prepare=_dumped),
    "prune": Case("prune", keep=9, prepare=_backed_up),
    "first": Case("deploy"),
}


def _prepared(world: World, name: str) -> checks.Seen:
    """Prepare the node, stop novad and save the state; return the state."""
    case = CASES[name]
    world.keep = case.keep
    world.start()
    if name != "first":
        assert world.ask("deploy").error == ""
        (world.data / "volumes/db/rows/written").open("a").write("a row of a user\n")
        case.prepare(world)
    with world.client():
        pass
    world.settle()
    world.kill()
    world.keep = 2
    world.save(name)
    return checks.look(world)


def _places(world: World, name: str, then: str) -> list[int]:
    """Return the places that the change passes and at which such a fault is possible."""
    case = CASES[name]
    world.load(name)
    world.start()
    answer = world.ask(case.what, *case.words)
    assert bool(answer.error) == case.fails, (answer.error, world.log())
    world.settle()
    world.kill()
    story = world.story()
    assert len(story) > 3, story
    runtime = ("fetch", "create", "start", "stop", "remove", "network", "pipe")
    return [number for number, where in enumerate(story)
            if then == KILL or where.startswith(runtime) == (then == FAULT)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("then", [KILL, pytest.param(FAULT, marks=pytest.mark.full),
                                  pytest.param(FULL, marks=pytest.mark.full),
                                  pytest.param(ALL_FULL, marks=pytest.mark.full)])
def test_platform_is_consistent_after_a_kill_or_fault_of_novad_at_any_place(world: World, name: str, then: str,
                                                                            quick: bool) -> None:
    case = CASES[name]
    before = _prepared(world, name)
    places = _places(world, name, then)
    rng = random.Random(f"{name} {then}")
    if quick:
        places = sorted(rng.sample(places, min(_QUICK, len(places))))
    for number in places:
        world.load(name)
        world.start(at=number, then=then)
        answer = world.ask(case.what, *case.words)
        where = (world.story()[number:] or ["it did not come there"])[0]
        try:
            if then == KILL:
                assert answer.gone or name == "prune", answer
                world.kill()
                # Kill novad again during its rollback or cleanup.
                again = rng.randrange(30) if rng.random() < 0.5 else None
                world.start(at=again, from_start=True)
                if again is not None:
                    world.settle_or_die()
                    world.kill()
                    world.start()
            else:
                (world.directory / "relieved").touch()
            world.settle()
            world.kill()
            checks.check(world, before, case.what, case.words,
                         None if then == KILL or answer.error else not case.fails)
        except BaseException as error:
            error.add_note(f"{then} at place {number}: {where}\nanswer: {answer}\n{world.log()}")
            raise
