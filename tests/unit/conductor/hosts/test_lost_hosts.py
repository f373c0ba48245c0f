"""Operations on hosts that are down, and hosts that return before the operation skips them."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from nova.conductor.acceptance import start
from nova.conductor.saga.engine import Engine
from nova.db import tables
from nova.db.hosts import services
from nova.db.servers import actions, evictions, servers
from nova.db.volumes import volumes
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import Volume
from nova.operations import REGISTRY
from tests.unit.conductor.books import Books, ctx, server, set_columns

LONG_AGO = datetime.timedelta(hours=1)


class Later:
    """A thread pool that runs its work when ``run`` is called."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def submit(self, kind: str, project_id: str, function: Callable[..., Any], *args: Any) -> None:
        self.work.append(lambda: function(*args))

    def run(self) -> None:
        while self.work:
            self.work.pop(0)()


@pytest.fixture
def engine(core: Books) -> Engine:
    core.db.write(lambda connection: services.register(connection, "h1", "nova-compute", "compute", 1))
    set_columns(core, tables.services, tables.services.c.host == "h1", last_seen=utcnow() - LONG_AGO)
    return Engine(core, Later())  # type: ignore[arg-type]


def _being_deleted(core: Books, engine: Engine) -> Instance:
    """Return a server with a delete in progress whose host does not reply to the order."""
    instance = server(core, "h1", vm_state="active", launched_at=utcnow())
    action = engine.new_action(ctx(), REGISTRY["delete"], instance, {"host": "h1"})
    action.lease_until = utcnow() - LONG_AGO
    core.db.write(lambda connection: actions.insert(connection, [action]))
    core.db.write(lambda connection: servers.update(connection, instance.uuid, {"action_uuid": action.uuid}))
    return instance


def _deleted(core: Books, instance: Instance) -> bool:
    return core.db.read(lambda connection: servers.get(connection, instance.uuid, deleted=True)).deleted


def test_delete_on_a_down_host_completes_and_stores_an_eviction(core: Books, engine: Engine) -> None:
    instance = _being_deleted(core, engine)
    engine.recovery.recover()
    engine._pool.run()  # type: ignore[attr-defined]
    assert _deleted(core, instance)
    [word] = core.db.read(lambda connection: evictions.of_host(connection, "h1"))
    assert word.uuid == instance.uuid, "no eviction was stored for the host"


def test_volume_attachment_waits_for_a_down_host(core: Books, engine: Engine) -> None:
    instance = server(core, "h1", vm_state="active", launched_at=utcnow())
    volume = core.db.write(lambda connection: volumes.create(connection, Volume(
        uuid=new_uuid(), project_id="p1", size_gb=1)))
    start(engine, ctx(), instance.uuid, "attach_volume", {"volume_id": volume.uuid})
    for _look in range(3):
        set_columns(core, tables.actions, tables.actions.c.instance_uuid == instance.uuid,
                    lease_until=utcnow() - LONG_AGO)
        engine.recovery.recover()
        engine._pool.run()  # type: ignore[attr-defined]
    found = core.db.read(lambda connection: volumes.get(connection, volume.uuid))
    assert (found.status, found.instance_uuid, found.host) == ("attaching", instance.uuid, "h1")
    [order] = engine.recovery.resume("h1")
    assert (order.step, order.undo, [device.volume_id for device in order.instance.volumes]) == (
        "attach", False, [volume.uuid])


def test_delete_on_a_down_host_releases_its_attaching_volumes(core: Books, engine: Engine) -> None:
    instance = server(core, "h1", vm_state="active", launched_at=utcnow())
    volume = core.db.write(lambda connection: volumes.create(connection, Volume(
        uuid=new_uuid(), project_id="p1", size_gb=1)))
    start(engine, ctx(), instance.uuid, "attach_volume", {"volume_id": volume.uuid})
    engine._pool.run()  # type: ignore[attr-defined]
    start(engine, ctx(), instance.uuid, "delete", {})
    for _look in range(5):
        engine._pool.run()  # type: ignore[attr-defined]
        set_columns(core, tables.actions, tables.actions.c.outcome.is_(None), lease_until=utcnow() - LONG_AGO)
        engine.recovery.recover()
    engine._pool.run()  # type: ignore[attr-defined]
    assert _deleted(core, instance)
    found = core.db.read(lambda connection: volumes.get(connection, volume.uuid))
    assert (found.status, found.instance_uuid, found.host) == ("available", None, None)


def test_delete_waits_for_a_host_that_returns_before_the_commit(core: Books, engine: Engine) -> None:
    instance = _being_deleted(core, engine)
    engine.recovery.recover()
    core.db.write(lambda connection: services.beat(connection, "h1", "nova-compute"))
    engine._pool.run()  # type: ignore[attr-defined]
    assert not _deleted(core, instance)
    [action] = core.db.read(lambda connection: actions.index(connection, instance.uuid, None, None, None, None))
    assert (action.step, action.outcome, action.owner) == ("destroy", None, None)
