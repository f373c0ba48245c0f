"""Requests to hold a process in the middle of a step.

::

    points = Points(directory)
    with Cluster(..., launcher=points.launcher) as nova:
        hold = points.hold(operation="build", step="start", server="web", when="after")
        nova.api.boot("web")
        nova.kill(hold.wait())

See tests.crash.service for the points and the facts that select them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any, Literal

from nova.operations import REGISTRY
from nova.operations.framework.base import CONDUCTOR, Operation, Step
from tests.integration.processes import eventually

When = Literal["before", "after"]
_REACHED = 90.0
# A held step occupies a thread.
OPTIONS = {"conductor": {"threads": 64, "outside_threads": 64},
           "DEFAULT": {"max_concurrent_builds": 0, "max_concurrent_snapshots": 0}}


class Hold:
    """A request to stop a process at a point; it takes effect once."""

    def __init__(self, wish: pathlib.Path, held: pathlib.Path, what: str) -> None:
        self._wish, self._held, self._what = wish, held, what

    def holder(self) -> str | None:
        """Return the name of the process that is, or was, held."""
        return self._held.read_text() or None if self._held.exists() else None

    def wait(self, timeout: float = _REACHED) -> str:
        """Wait until a process is held; return its name."""
        return str(eventually(self.holder, timeout, f"a process reaches {self._what}", interval=0.02))

    def release(self) -> None:
        """Let the held process continue, and hold no other process here."""
        self._wish.unlink(missing_ok=True)


class Points:
    """The points at which processes are held. ``directory`` must exist and belong to one cluster."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._wishes, self._held = directory / "wishes", directory / "held"
        self._wishes.mkdir()
        self._held.mkdir()
        self.launcher = [sys.executable, "-m", "tests.crash.service", str(directory)]
        self._numbers = itertools.count()
        self._holds: list[Hold] = []

    def hold(self, point: str = "step", when: When = "before", **facts: Any) -> Hold:
        """Hold the first process that reaches this point."""
        return self._wish("hold", when, facts | {"point": point})

    def fail(self, point: str = "step", when: When = "after", **facts: Any) -> Hold:
        """Make the work at this point fail, once."""
        return self._wish("fail", when, facts | {"point": point})

    def release_all(self) -> None:
        for hold in self._holds:
            hold.release()
        self._holds.clear()

    def _wish(self, then: str, when: str, facts: dict[str, Any]) -> Hold:
        name = f"{next(self._numbers):06d}"
        new = self._wishes / f"{name}.new"
        new.write_text(json.dumps({"id": name, "then": then, "when": when, "facts": facts}))
        new.rename(self._wishes / name)
        hold = Hold(self._wishes / name, self._held / name, f"{when} {facts}")
        self._holds.append(hold)
        return hold


# The failing step that triggers the compensation of an operation (or of a step), where it is not the end of the last
# step: after the switchover of a live migration, or after an upload, no compensation is possible.
FAILING: dict[str, tuple[str, When]] = {"live_migrate": ("migrate", "before"), "resize": ("receive", "after"),
                                        "migrate": ("receive", "after"), "create_backup": ("upload", "after"),
                                        "shelve": ("upload", "after"), "unshelve": ("start", "after"),
                                        "volume_snapshot_create": ("change", "before"),
                                        "volume_snapshot_delete": ("change", "before"),
                                        "extend_volume": ("grow", "before"),
                                        # A failure at the end of these steps is compensated by the step itself.
                                        "volume_snapshot_create.hand_over": ("hand_over", "after"),
                                        "volume_snapshot_delete.hand_over": ("hand_over", "after"),
                                        "extend_volume.hand_over": ("hand_over", "after")}
# Operations that need their own round: an evacuation needs a down host (tests.crash.test_moves), the other operations
# need volumes of an external service (tests.crash.test_cinder).
ALONE = frozenset({"evacuate", "create_volume_image", "volume_snapshot_create", "volume_snapshot_delete",
                   "extend_volume"})
# The condition of steps of servers with shares.
SHARED = "shares"
# The conditions of steps that need an external service, or a share.
_OUTSIDE = ("outside_volumes", "outside_interfaces", "plugs", "follows", "binds_volumes", "binds_interfaces",
            "unbinds_volumes", "unbinds_interfaces", SHARED)
# Steps for a server that was shelved and then soft-deleted, or shelved twice; tested as steps of delete.
_AGAIN = frozenset({("reclaim", "drop_image"), ("shelve", "drop_former")})
# Steps of servers with shares that are tested as steps of another operation.
_ALIKE = frozenset({("migrate", "open_shares"), ("reclaim", "close_shares")})


@dataclasses.dataclass(frozen=True)
class Case:
    """A step of an operation, or its compensation."""

    operation: type[Operation]
    step: Step
    undo: bool = False

    def __str__(self) -> str:
        return f"{self.operation.name}.{self.step.undo if self.undo else self.step.name}"

    @property
    def place(self) -> str:
        return "conductor" if self.step.place == CONDUCTOR else "compute"

    def hold(self, points: Points, server: str, when: When) -> Hold:
        """Hold the process that runs this step for the server; for a compensation, also trigger it by a failure."""
        if self.undo:
            step, failing = FAILING.get(f"{self.operation.name}.{self.step.name}") or FAILING.get(
                self.operation.name, (ordinary(self.operation)[-1].name, "after"))
            points.fail(operation=self.operation.name, step=step, undo=False, server=server, when=failing)
        return points.hold(operation=self.operation.name, step=self.step.name, undo=self.undo, server=server,
                           when=when)


def ordinary(operation: type[Operation]) -> list[Step]:
    """Return the steps that need no external service, no shares, and no repeated operation."""
    return [step for step in operation.steps
            if step.when not in _OUTSIDE and (operation.name, step.name) not in _AGAIN]


def shared(operation: type[Operation]) -> list[Step]:
    """Return the steps of servers with shares."""
    return [step for step in operation.steps if step.when == SHARED and (operation.name, step.name) not in _ALIKE]


def cases(operations: Iterable[type[Operation]] = tuple(REGISTRY.values())) -> list[Case]:
    """Return every step and compensation of every operation that can be requested beside other operations."""
    found = []
    for operation in operations:
        if operation.name in ALONE:
            continue
        steps = [*ordinary(operation), *shared(operation)]
        found += [Case(operation, step) for step in steps]
        found += [Case(operation, step, undo=True) for step in steps if step.undo]
    return found
