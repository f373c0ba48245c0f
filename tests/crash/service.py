"""A service of Nova that a test can hold at certain points.

::

    python -m tests.crash.service DIRECTORY compute --config-file ...

The real program runs. At certain points it checks whether a test requests a stop there (a file in
``DIRECTORY/wishes``, see tests.crash.steps). If so, it writes a file to ``DIRECTORY/held`` and sleeps until the first
file is deleted or the process is killed. The points:

``step``   a step of an operation, or its compensation, on a conductor or a compute
``ask``    a message to another service; "after" is the arrival of the reply
``answer`` a message from another service; "after" is the end of the work, before the reply is sent
``submit`` a conductor accepted or advanced an operation: the rows are written, nothing else happened

The service also records each guest that the fake hypervisor creates or removes (``guests.journal`` in the state_path),
and uses exports of a volume service as local directories, because tests cannot mount them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from nova import bus, exception  # bus first: it selects oslo's threading back end
from nova.conf import CONF

_WISHES = pathlib.Path()
_HELD = pathlib.Path()


class Bad(exception.NovaException):
    """The error of a step in which a test injects a failure."""

    message = "The test wants this step to fail."


def passing(when: str, **facts: Any) -> None:
    """Stop here if a test requests it; each request takes effect once."""
    for wish in _wishes():
        wanted = wish["facts"] | {"when": wish["when"]}
        if any(facts.get(name, when if name == "when" else None) != value for name, value in wanted.items()):
            continue
        try:
            with open(_HELD / wish["id"], "x") as file:
                file.write(CONF.host)
        except FileExistsError:
            continue
        if wish["then"] == "fail":
            raise Bad()
        while (_WISHES / wish["id"]).exists():
            time.sleep(0.02)


def _wishes() -> Iterator[dict[str, Any]]:
    for name in os.listdir(_WISHES):
        if not name.endswith(".new") and not (_HELD / name).exists():
            with contextlib.suppress(FileNotFoundError):
                yield json.loads((_WISHES / name).read_text())


@contextlib.contextmanager
def _around(**facts: Any) -> Iterator[None]:
    passing("before", **facts)
    yield
    passing("after", **facts)


# --- the points ------------------------------------------------------------------------------------------
def _hold_steps() -> None:
    from nova.operations.framework.base import Operation, Step

    original = Operation.run

    def run(self: Operation, of: Step, where: Any, undo: bool) -> None:
        with _around(point="step", operation=self.name, step=of.name, undo=undo, server=self.instance.display_name):
            original(self, of, where, undo)

    Operation.run = run  # type: ignore[method-assign]


class _Held:
    """An object whose methods are points; ``inner`` is the object itself."""

    def __init__(self, inner: Any, point: str) -> None:
        self.inner = inner
        self._point = point

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.inner, name)

        @functools.wraps(method)
        def held(*args: Any, **kwargs: Any) -> Any:
            server = _server_of([*args, *kwargs.values()])
            with _around(point=self._point, method=name, server=server):
                return method(*args, **kwargs)

        return held


def _server_of(values: list[Any]) -> str | None:
    """Return the name of the server in the arguments of a message, or None if there is none."""
    from nova.objects.servers.order import StepOrder
    from nova.objects.servers.server_request import ServerCreate

    for value in values:
        if isinstance(value, ServerCreate):
            return value.name
        if isinstance(value, StepOrder):
            return value.instance.display_name
    return None


def _hold_messages() -> None:
    client, at, within, serve = bus.client, bus.at, bus.within, bus.serve
    bus.client = lambda *given, **named: _Held(client(*given, **named), "ask")  # type: ignore[assignment]
    bus.at = lambda proxy, host: _Held(at(proxy.inner, host), "ask")  # type: ignore[assignment]
    bus.within = lambda proxy, seconds: _Held(within(proxy.inner, seconds), "ask")  # type: ignore[assignment]

    def serving(transport: Any, topic: str, host: str, implementations: Any, **options: Any) -> Any:
        return serve(transport, topic, host, [
            (declared, _Held(implementation, "answer")) for declared, implementation in implementations], **options)

    bus.serve = serving


def _hold_conductor() -> None:
    from nova.conductor.saga import engine
    from nova.conductor.saga.engine import Engine

    # A held step occupies a thread, and no option sets the number of these threads.
    engine.SCHEDULER_THREADS = 64

    submit, start_builds = Engine.submit, Engine.start_builds

    def submitting(self: Engine, ctx: Any, run: Any) -> None:
        passing("before", point="submit", operation=run.operation.name, step=run.action.step,
                undo=run.action.undoing, server=run.instance.display_name)
        submit(self, ctx, run)

    def starting(self: Engine, ctx: Any, runs: list[Any]) -> None:
        passing("before", point="submit", operation="build", server=runs[0].instance.display_name)
        start_builds(self, ctx, runs)

    Engine.submit, Engine.start_builds = submitting, starting  # type: ignore[method-assign]


# --- the journal of guests ---------------------------------------------------------------------------------
# The methods that create or remove guests, by class.
_MAKERS = {"roles.Guests": ("spawn",), "roles.Power": ("on",), "moves.ColdMigration": ("finish", "revert"),
           "moves.LiveMigrationTarget": ("finish",), "host.FakeHost": ("take_over",)}
_REMOVERS = {"roles.Guests": ("destroy", "remove_orphan"), "roles.Disks": ("replace",),
             "moves.ColdMigration": ("open_disks",), "moves.LiveMigrationSource": ("migrate",)}


def _journal_guests() -> None:
    from nova.virt.fake.driver import FakeDriver
    from nova.virt.fake.host import FakeHost

    start = FakeDriver.start
    noted: dict[str, set[str]] = {}  # by host: the guests recorded in the journal
    lock = threading.Lock()

    def compare(host: FakeHost, uuid: str) -> None:
        """Record the guest if it appeared or vanished since the last check; driver methods may call each other."""
        with lock:
            guest = host.guests.find(uuid)
            here = guest is not None and not guest.incoming and not guest.went
            known = noted.setdefault(host.name, set())
            if here != (uuid in known):
                (known.add if here else known.discard)(uuid)
                with open(pathlib.Path(CONF.state_path) / "guests.journal", "a") as file:
                    # A single short write keeps lines whole if several processes write.
                    file.write(f"{'create' if here else 'remove'} {host.name} {uuid}\n")

    def starting(self: FakeDriver, on_event: Any) -> None:
        """Start the driver, and record the effects that a kill left unrecorded."""
        start(self, on_event)
        known = noted.setdefault(self.host, set())
        path = pathlib.Path(CONF.state_path) / "guests.journal"
        for line in path.read_text().splitlines() if path.exists() else []:
            verb, host, uuid = line.split()
            if host == self.host:
                (known.add if verb == "create" else known.discard)(uuid)
        for uuid in known | {guest.uuid for guest in self.guests.all()}:
            compare(self.state, uuid)

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def watched(self: Any, guest: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, guest, *args, **kwargs)
            finally:
                host = self if isinstance(self, FakeHost) else self.host
                compare(host, guest if isinstance(guest, str) else guest.uuid)

        return watched

    FakeDriver.start = starting  # type: ignore[method-assign]
    for where, methods in (*_MAKERS.items(), *_REMOVERS.items()):
        module, name = where.split(".")
        role = getattr(importlib.import_module(f"nova.virt.fake.{module}"), name)
        for method in methods:
            setattr(role, method, noting(getattr(role, method)))


class _Mounted:
    """os-brick's connector of a share that is a directory of this machine."""

    @staticmethod
    def connect_volume(info: dict[str, Any]) -> dict[str, str]:
        return {"path": os.path.join(info["export"].partition(":")[2], info["name"])}


def _mount_nothing() -> None:
    from nova.volume.cinder.host import CinderVolumes

    CinderVolumes._files = lambda _self, _info: _Mounted()  # type: ignore[method-assign]


def main() -> int:
    global _WISHES, _HELD
    directory, kind, arguments = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    _WISHES, _HELD = directory / "wishes", directory / "held"
    _hold_messages()
    _hold_steps()
    if kind == "conductor":
        _hold_conductor()
    if kind == "compute":
        _journal_guests()
        _mount_nothing()
    sys.argv = [f"nova-{kind}", *arguments]
    return int(importlib.import_module(f"nova.cmd.{kind}").main() or 0)


if __name__ == "__main__":
    sys.exit(main())
