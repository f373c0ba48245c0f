"""Costs of the start of a host with many guests, counted with the real conductor on SQLite."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import pytest

from nova import conf, context
from nova.compute.host import Machine
from nova.compute.reconcile import Reconciler
from nova.conductor.endpoints.by_hosts import Guests
from nova.conf import CONF
from nova.db.servers import servers
from nova.network.base import NoNetwork
from nova.objects.base import new_uuid, utcnow
from nova.objects.servers import states
from nova.objects.servers.guest import Resumed
from nova.objects.servers.instance import Instance
from nova.virt.fake.driver import FakeDriver
from tests.unit.conductor.books import Books, flavor
from tests.unit.databases import new_database


class Counted:
    """A counting proxy of the conductor; ``resume`` starts no operations."""

    def __init__(self, core: Books) -> None:
        self._guests, self.asked = Guests(core, None), collections.Counter[str]()  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            self.asked[name] += 1
            return getattr(self._guests, name)(*arguments)

        return ask

    def resume(self, _ctx: Any, _host: str, waiting: list[str], _begun: list[str], at_once: int) -> Resumed:
        self.asked["resume"] += 1
        return Resumed(waiting=waiting[at_once:], begun=waiting[:at_once])


class Idle:
    """A runner without any operation on guests."""

    def busy(self, _uuid: str) -> bool:
        return False


@pytest.fixture
def core(tmp_path: Any) -> Iterator[Books]:
    conf.register()
    before = CONF.state_path
    CONF.set_override("state_path", str(tmp_path))
    CONF.set_override("resume_guests_state_on_host_boot", True)
    books = Books(new_database(tmp_path))
    yield books
    books.db.close()
    CONF.set_override("state_path", before)  # (used by other tests in this process)
    CONF.clear_override("resume_guests_state_on_host_boot")


def _booted(core: Books, number: int) -> tuple[collections.Counter[str], int, Resumed]:
    """Start a host whose guests do not run. Return the calls, the number of statements, and the resumed guests."""
    host, driver = f"host{number}", FakeDriver(f"host{number}")
    machine = Machine(name=host, driver=driver, network=NoNetwork(), images=None, cache=None)  # type: ignore[arg-type]
    Reconciler(machine, Counted(core), Idle()).resume_guests()  # type: ignore[arg-type]  # (the host has no guests yet)
    made = [Instance(uuid=new_uuid(), project_id="p1", user_id="u1", display_name="vm", hostname="vm", host=host,
                     flavor=flavor(), vm_state=states.ACTIVE, power_state=states.RUNNING, launched_at=utcnow(),
                     created_at=utcnow()) for _number in range(number)]
    core.db.write(lambda connection: servers.insert(connection, made))
    for instance in made:
        driver.state.guests.add(instance.uuid, states.SHUTDOWN)
    driver.boot = "another"
    conductor = Counted(core)
    reconciler = Reconciler(machine, conductor, Idle())  # type: ignore[arg-type]
    core.statements()
    reconciler.start(context.admin())
    reconciler.resume_guests()
    statements = len(core.statements())
    reconciler.stop()
    told = Resumed(waiting=reconciler._resumption._waiting, begun=reconciler._resumption._begun)
    return conductor.asked, statements, told


def test_start_of_a_host_with_500_guests_costs_the_same_statements_as_with_two(core: Books) -> None:
    few, many = _booted(core, 2), _booted(core, 499)
    assert few[:2] == many[:2]
    assert many[0] == {"evictions": 1, "expected": 1, "resume": 1}
    assert (len(few[2].begun), len(few[2].waiting)) == (2, 0)
    assert (len(many[2].begun), len(many[2].waiting)) == (10, 489)
