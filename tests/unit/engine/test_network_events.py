"""What an outside network service tells of many servers at once holds up nobody."""

import threading

import msgspec
import pytest

from nova.conductor.control import ConductorControl
from nova.conductor.engine import Engine
from nova.conductor.network_events import told
from nova.db import servers
from nova.objects.external_event import ExternalEvent
from nova.objects.network import FixedIp
from nova.service.turns import Turns
from tests.unit.engine.test_engine_properties import CTX


@pytest.fixture(autouse=True)
def _servers(machine):
    for _time in range(2):
        machine.boot(3, twice=False)
    machine.calm_down()


def test_a_project_does_not_wait_for_the_interfaces_of_all_servers(machine):
    pool, gate, order = Turns(dict.fromkeys(("database", "scheduler", "outside"), 1)), threading.Event(), []

    def renewed(ctx, instance):
        order.append("interfaces")
        return instance.network_info

    machine.world.allocator.renewed = renewed
    engine = Engine(machine.world, pool)
    engine.in_background("other", lambda: gate.wait(60))
    told(engine, [ExternalEvent(name="network-changed", instance_uuid=uuid) for uuid in machine.uuids])
    engine.in_background("project", lambda: order.append("project"))
    gate.set()
    pool.shutdown()
    assert sorted(order) == ["interfaces"] * len(machine.uuids) + ["project"]
    assert order.index("project") <= 1


def test_addresses_that_change_while_an_interface_is_bound_elsewhere_are_kept(machine):
    """The service tells of them while it is asked for the binding."""
    uuid = machine.uuids[0]
    instance = machine.row(uuid)
    changed = [FixedIp(address="10.0.0.9", version=4, prefix=28, cidr="10.0.0.0/28")]

    class Service:
        external = True

        def bind(self, ctx, instance, vifs, host):
            now = [msgspec.structs.replace(vif, fixed_ips=changed) for vif in instance.network_info]
            machine.world.db.write(lambda connection: servers.update(connection, uuid, {"network_info": now}))
            return [msgspec.structs.replace(vif, vif_type=f"bound to {host}") for vif in vifs]

    machine.world.allocator = Service()
    ctl = ConductorControl(machine.world, CTX, instance)
    ctl.outside_interfaces.bind("b")
    machine.world.db.write(ctl.apply)
    found = machine.row(uuid).network_info
    assert [(vif.vif_type, vif.fixed_ips) for vif in found] == [("bound to b", changed)]
    assert ctl.instance.network_info == found
