"""The overview of a deployment, read from database rows."""

from __future__ import annotations

import datetime

import pytest

from nova.conductor.announcer import report_nodes
from nova.conductor.endpoints.by_hosts import Heartbeat
from nova.conductor.endpoints.hosts import Overviews
from nova.db import tables
from nova.db.maintenance import overview as overview_rows
from nova.db.servers import actions
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.overview import Capacity, NodeOverview, OperationOverview, Overview
from nova.objects.servers.action import Action, Event
from nova.objects.servers.instance import Instance
from tests.unit.conductor.books import Books, ctx, node, server, set_columns

LATER = datetime.timedelta(minutes=1)


@pytest.fixture
def hosts(core: Books) -> None:
    for host in ("h1", "h2", "h3"):
        Heartbeat(core).register(ctx(), host, "nova-compute", "compute", 1)
        report_nodes(core, host, [node(host)])


def look(core: Books, limit: int = 10) -> Overview:
    return Overviews(core).get(ctx(), limit)


def began(core: Books, instance: Instance, action: str, holds: bool = False, **changes: object) -> Action:
    made = Action(**{"uuid": new_uuid(), "instance_uuid": instance.uuid, "action": action, "operation": action,
                     "request_id": f"req-{action}", "project_id": "p1", "start_time": utcnow(), **changes})
    core.db.write(lambda connection: actions.follow(connection, made))
    if holds:
        set_columns(core, tables.instances, tables.instances.c.uuid == instance.uuid, action_uuid=made.uuid)
    return made


def the(overview: Overview, action: str) -> OperationOverview:
    (found,) = [each for each in overview.operations if each.operation == action]
    return found


def change_service(core: Books, host: str, **values: object) -> None:
    set_columns(core, tables.services, tables.services.c.host == host, **values)


def test_overview_of_an_empty_deployment_is_empty(core: Books) -> None:
    overview = look(core)
    assert (overview.node_count, overview.servers, overview.unfinished) == (0, 0, 0)
    assert (overview.nodes, overview.operations, overview.failures, overview.capacity) == ([], [], [], {})


@pytest.mark.usefixtures("hosts")
def test_overview_capacity_is_the_sum_of_all_nodes_with_ratios(core: Books) -> None:
    set_columns(core, tables.inventories, tables.inventories.c.resource_class == "VCPU", used=5)
    overview = look(core, limit=1)
    assert overview.node_count == 3
    assert overview.capacity["VCPU"] == Capacity(total=3 * 8 * 4, used=15)
    assert overview.capacity["MEMORY_MB"] == Capacity(total=3 * (16384 - 512), used=0)
    (shown,) = overview.nodes
    assert shown.capacity["VCPU"] == Capacity(total=32, used=5)


@pytest.mark.usefixtures("hosts")
def test_overview_lists_down_hosts_before_disabled_and_busy_hosts(core: Books) -> None:
    change_service(core, "h3", disabled=True, disabled_reason="new disks")
    set_columns(core, tables.compute_nodes, tables.compute_nodes.c.host == "h2", num_io_ops=4)

    def order() -> list[str]:
        return [each.host for each in look(core).nodes]

    assert order() == ["h3", "h2", "h1"]
    change_service(core, "h1", last_seen=utcnow() - datetime.timedelta(hours=1))
    assert order() == ["h1", "h3", "h2"]
    by_host: dict[str, NodeOverview] = {each.host: each for each in look(core).nodes}
    assert (by_host["h1"].up, by_host["h2"].up, by_host["h3"].up) == (False, True, True)
    assert (by_host["h3"].disabled, by_host["h3"].reason) == (True, "new disks")
    assert [(each.binary, each.up, each.down, each.disabled) for each in look(core).services] == [
        ("nova-compute", 2, 1, 1)]


def test_overview_shows_the_state_and_owner_of_operations(core: Books) -> None:
    instance, other = server(core, host="h1"), server(core, host="h1")
    began(core, instance, "reboot", holds=True, step="reboot", owner="compute@h1", lease_until=utcnow() + LATER)
    began(core, instance, "attach_volume", queued=True)
    began(core, other, "rebuild", holds=True, step="plug", waits_for="network-vif-plugged:7")
    for name, changes in {"stop": {"owner": "conductor@c1:9", "lease_until": utcnow() + LATER},
                          "resize": {"owner": "conductor@c1:9", "lease_until": utcnow() - LATER},
                          "create": {"owner": "compute@h2", "lease_until": utcnow() + LATER, "undoing": True}}.items():
        began(core, other, name, **changes)
    overview = look(core)
    assert overview.unfinished == 6
    assert (the(overview, "reboot").state, the(overview, "reboot").owner) == ("host", "compute@h1")
    assert (the(overview, "attach_volume").state, the(overview, "attach_volume").behind) == ("queued", "reboot")
    assert (the(overview, "rebuild").state, the(overview, "rebuild").events) == ("waiting", ["network-vif-plugged:7"])
    assert [the(overview, name).state for name in ("stop", "resize", "create")] == ["conductor", "overdue", "undoing"]


def test_overview_shows_oldest_operations_and_latest_failures(core: Books) -> None:
    instance = server(core, host="h1")
    for number in range(4):
        began(core, instance, f"wait-{number}")
        began(core, instance, f"fail-{number}", outcome="error", finish_time=utcnow(), events=[
            Event(event="place", start_time=utcnow(), result="Error", details=f"no {number}")])
        began(core, instance, f"good-{number}", outcome="success", finish_time=utcnow())
    overview = look(core, limit=2)
    assert [each.operation for each in overview.operations] == ["wait-0", "wait-1"]
    assert overview.unfinished == 4
    assert [(each.operation, each.message) for each in overview.failures] == [("fail-3", "no 3"), ("fail-2", "no 2")]
    assert overview.failures[0].server_name == instance.display_name


def test_overview_shows_failures_of_purged_servers(core: Books) -> None:
    instance = server(core)
    began(core, instance, "create", outcome="error")
    core.db.write(lambda connection: connection.execute(tables.instances.delete()))
    (failed,) = look(core).failures
    assert (failed.server_uuid, failed.server_name) == (instance.uuid, None)


@pytest.mark.usefixtures("hosts")
def test_overview_takes_a_constant_number_of_statements(core: Books) -> None:
    core.statements()
    look(core)
    few = len(core.statements())
    for _ in range(20):
        began(core, server(core), "stop")
        began(core, server(core), "start", outcome="error")
    core.statements()
    look(core, limit=100)
    assert len(core.statements()) == few <= 9


def test_overview_counts_boots_by_minute(core: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        began(core, server(core), "build", outcome="success", finish_time=utcnow())
    began(core, server(core), "build", outcome="error", finish_time=utcnow())
    began(core, server(core), "stop", outcome="success", finish_time=utcnow())
    assert look(core).boots == [0] * 29 + [3]
    monkeypatch.setattr(overview_rows, "_LATEST", 2)
    assert look(core).boots[:29] == [-1] * 29
