"""A host that returns while it is given up: it is asked again, rather than decided about behind its back."""

from __future__ import annotations

import concurrent.futures
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from nova.conductor.engine import Engine
from nova.db import actions, instances, models, services
from nova.objects.base import utcnow
from nova.objects.instance import Instance
from nova.operations import REGISTRY
from tests.unit.conductor.books import Books, ctx, server, set_columns

LONG_AGO = datetime.timedelta(hours=1)


class Later(concurrent.futures.Executor):
    """Runs what it was given when it is told to."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.work.append(lambda: function(*args, **kwargs))

    def run(self) -> None:
        while self.work:
            self.work.pop(0)()


@pytest.fixture
def engine(core: Books) -> Engine:
    core.db.write(lambda connection: services.register(connection, "h1", "nova-compute", "compute", 1))
    set_columns(core, models.services, models.services.c.host == "h1", last_seen=utcnow() - LONG_AGO)
    return Engine(core, Later())


def _being_deleted(core: Books, engine: Engine) -> Instance:
    """A server whose delete has asked its host, which does not answer."""
    instance = server(core, "h1", vm_state="active", launched_at=utcnow())
    action = engine.new_action(ctx(), REGISTRY["delete"], instance, {"host": "h1"})
    action.lease_until = utcnow() - LONG_AGO
    core.db.write(lambda connection: actions.insert(connection, [action]))
    core.db.write(lambda connection: instances.update(connection, instance.uuid, {"action_uuid": action.uuid}))
    return instance


def _deleted(core: Books, instance: Instance) -> bool:
    return core.db.read(lambda connection: instances.get(connection, instance.uuid, deleted=True)).deleted


def test_a_host_that_stays_away_is_not_waited_for(core: Books, engine: Engine) -> None:
    instance = _being_deleted(core, engine)
    engine.recover(ctx())
    engine._pool.run()  # type: ignore[attr-defined]
    assert _deleted(core, instance)


def test_a_host_that_is_back_before_the_commit_is_not_skipped(core: Books, engine: Engine) -> None:
    instance = _being_deleted(core, engine)
    engine.recover(ctx())
    core.db.write(lambda connection: services.beat(connection, "h1", "nova-compute"))
    engine._pool.run()  # type: ignore[attr-defined]
    assert not _deleted(core, instance)
    [action] = core.db.read(lambda connection: actions.index(connection, instance.uuid, None, None, None, None))
    assert (action.step, action.outcome, action.owner) == ("destroy", None, None)
