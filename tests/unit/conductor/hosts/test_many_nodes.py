"""Hosts with many nodes and processes with many hosts: paged reports and shared heartbeats."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from nova.compute.reports import NodeReports
from nova.conductor import announcer
from nova.conductor.endpoints.by_hosts import Heartbeat
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import allocations, compute_nodes, services
from nova.db.servers import actions, servers
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.node import ComputeNode
from nova.objects.servers import states
from nova.objects.servers.action import Action
from tests.unit.conductor.books import Books, at, ctx, node, server, set_columns


def _nodes(*numbers: int) -> list[ComputeNode]:
    return [node("h1", f"n{number}", uuid=_uuid(number)) for number in numbers]


def _uuid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def _known(core: Books) -> set[int]:
    return {int(found.uuid[:8], 16) for found in core.db.read(lambda connection: compute_nodes.index(connection))}


# --- reports -----------------------------------------------------------------------------------------------
def test_report_of_new_nodes_takes_a_constant_number_of_statements(host: Books) -> None:
    announcer.report_nodes(host, "h1", _nodes(1))
    one = len(host.statements())
    announcer.report_nodes(host, "h1", _nodes(*range(1, 60)))
    assert len(host.statements()) <= one + 2  # existing nodes are read
    assert _known(host) == set(range(1, 60))


def test_report_of_unchanged_nodes_only_reads(host: Books) -> None:
    announcer.report_nodes(host, "h1", _nodes(*range(1, 40)))
    host.statements()
    host.sent.take()
    announcer.report_nodes(host, "h1", _nodes(*range(1, 40)))
    statements = host.statements()
    assert {statement.split()[0] for statement in statements} == {"SELECT"}
    assert len(statements) <= 5
    assert host.sent.take() == []


def test_new_nodes_are_published_to_schedulers_in_order_of_id(host: Books) -> None:
    made = announcer.report_nodes(host, "h1", _nodes(3, 1, 2))
    ids = {one.uuid: one.id for one in host.db.read(lambda connection: compute_nodes.index(connection))}
    assert {one.uuid: one.id for one in made} == ids
    [delta] = host.sent.take()
    assert [state.node_uuid for state in delta.states] == [_uuid(1), _uuid(2), _uuid(3)]


def test_page_of_a_node_report_affects_only_its_range(host: Books) -> None:
    announcer.report_nodes(host, "h1", _nodes(*range(1, 10)))
    announcer.report_nodes(host, "h1", _nodes(4, 6), after=_uuid(3), upto=_uuid(6))
    assert _known(host) == {1, 2, 3, 4, 6, 7, 8, 9}
    announcer.report_nodes(host, "h1", _nodes(7), after=_uuid(6))
    assert _known(host) == {1, 2, 3, 4, 6, 7}
    announcer.report_nodes(host, "h1", _nodes(2), upto=_uuid(3))
    assert _known(host) == {2, 4, 6, 7}


def test_node_with_claims_is_not_removed_by_a_page(host: Books) -> None:
    announcer.report_nodes(host, "h1", _nodes(1, 2, 3))
    host.db.write(lambda connection: allocations.claim(connection, new_uuid(), at(_uuid(2)), {"VCPU": 1}, "p1", "u1"))
    announcer.report_nodes(host, "h1", _nodes(3), after=_uuid(1), upto=_uuid(3))
    assert _known(host) == {1, 2, 3}


class _Driver:
    def __init__(self, nodes: list[ComputeNode]) -> None:
        self.all = nodes

    def nodes(self) -> list[ComputeNode]:
        return list(self.all)

    def shared_nodes(self) -> None: ...


class _Told:
    """The conductor side of node reports; ``pages`` are the sizes of the received pages."""

    def __init__(self, core: Books) -> None:
        self.core = core
        self.pages: list[int] = []
        self.broken = False

    def report_nodes(self, _ctx: Any, host_name: str, nodes: list[ComputeNode], after: str, upto: str | None) -> None:
        if self.broken:
            raise OSError("nobody answers")
        self.pages.append(len(nodes))
        announcer.report_nodes(self.core, host_name, nodes, after, upto)

    def take(self) -> list[int]:
        taken, self.pages = self.pages, []
        return taken


def test_host_reports_only_changed_pages_of_nodes(host: Books) -> None:
    driver, told = _Driver(_nodes(*range(600, 0, -1))), _Told(host)
    reports = NodeReports("h1", driver, told)  # type: ignore[arg-type]
    reports.report()
    pages = told.take()
    assert sum(pages) == 600
    assert max(pages) <= 250
    assert _known(host) == set(range(1, 601))
    reports.report()
    assert told.take() == []
    driver.all[0] = node("h1", "n600", uuid=_uuid(600), vcpus=99)
    reports.report()
    assert told.take() == [pages[-1]]
    del driver.all[0]
    reports.report()
    assert told.take() == [pages[-1] - 1]
    assert _known(host) == set(range(1, 600))
    reports.report(full=True)
    assert sum(told.take()) == 599


def test_failed_node_report_is_repeated(host: Books) -> None:
    told = _Told(host)
    reports = NodeReports("h1", _Driver(_nodes(1)), told)  # type: ignore[arg-type]
    told.broken = True
    with pytest.raises(OSError, match="nobody answers"):
        reports.report()
    told.broken = False
    reports.report()
    assert told.take() == [1]


# --- heartbeats --------------------------------------------------------------------------------------------
def test_heartbeat_of_many_hosts_takes_a_single_statement(core: Books) -> None:
    hosts = [f"h{number}" for number in range(30)]
    for name in hosts:
        Heartbeat(core).register(ctx(), name, "nova-compute", "compute", 1)
    core.sent.take()
    core.statements()
    assert Heartbeat(core).beat_all(ctx(), "nova-compute", {name: [] for name in hosts}) == []
    assert len(core.statements()) == 1
    assert core.sent.take() == []


def test_shared_heartbeat_publishes_returned_hosts_and_returns_unknown_ones(core: Books) -> None:
    for name in ("h1", "h2", "h3"):
        Heartbeat(core).register(ctx(), name, "nova-compute", "compute", 1)
    set_columns(core, tables.services, tables.services.c.host != "h3", up=False)
    core.sent.take()
    beaten = Heartbeat(core).beat_all(ctx(), "nova-compute", {name: [] for name in ("h1", "h2", "h3", "h4")})
    assert beaten == ["h4"]
    [delta] = core.sent.take()
    assert delta.services == {"h1": (True, False), "h2": (True, False)}
    assert all(service.up for service in core.db.read(services.index))


def test_shared_heartbeat_renews_the_leases_of_every_host(core: Books) -> None:
    for name in ("h1", "h2"):
        Heartbeat(core).register(ctx(), name, "nova-compute", "compute", 1)
    old = utcnow() - datetime.timedelta(seconds=5)
    rows = [Action(uuid=new_uuid(), instance_uuid=new_uuid(), action="create", owner=owner, lease_until=old,
                   outcome=outcome, request_id="req-1", start_time=old)
            for owner, outcome in (("compute@h1", None), ("compute@h2", None), ("compute@h2", None),
                                   ("compute@h1", "success"))]
    core.db.write(lambda connection: actions.insert(connection, rows))
    mine, others, moved, ended = (row.uuid for row in rows)
    Heartbeat(core).beat_all(ctx(), "nova-compute", {"h1": [mine, moved, ended], "h2": [others]})
    renewed = {uuid for uuid in (mine, others, moved, ended) if _lease(core, uuid) > utcnow()}
    assert renewed == {mine, others}
    assert _lease(core, mine) > utcnow() + datetime.timedelta(seconds=CONF.conductor.lease - 5)


def _lease(core: Books, uuid: str) -> datetime.datetime:
    found = core.db.read(lambda connection: actions.get(connection, uuid))
    assert found is not None
    assert found.lease_until is not None
    return found.lease_until


# --- guests ------------------------------------------------------------------------------------------------
def test_expected_guests_are_paged_and_flagged_settled(core: Books) -> None:
    for number in range(7):
        server(core, "h1", power_state=states.RUNNING, launched_at=utcnow() if number else None,
               task_state="rebooting" if number == 1 else None)
    server(core, "h2")
    found, marker = [], None
    while True:
        page = core.db.read(lambda connection, after=marker: servers.expected(connection, "h1", 3, after))
        found += page
        if len(page) < 3:
            break
        marker = page[-1].uuid
    assert len(found) == 7
    assert [one.uuid for one in found] == sorted(one.uuid for one in found)
    assert sum(one.settled for one in found) == 5
    assert {one.power_state for one in found} == {states.RUNNING}


# --- zones -------------------------------------------------------------------------------------------------
def test_zone_availability_takes_two_statements(core: Books) -> None:
    from nova.db.hosts import aggregates

    for number in range(5):
        Heartbeat(core).register(ctx(), f"h{number}", "nova-compute", "compute", 1)
    made = core.db.write(lambda connection: aggregates.create(connection, "a", "east"))
    for name in ("h0", "h1"):
        core.db.write(lambda connection, name=name: aggregates.add_host(connection, made.id, name))

    def available(zone: str) -> bool:
        core.statements()
        answer = core.db.read(lambda connection: services.zone_is_available(connection, zone))
        assert len(core.statements()) == 2
        return answer

    assert available("east")
    assert available("nova")
    assert not available("west")
    set_columns(core, tables.services, tables.services.c.host.in_(["h0", "h1"]), disabled=True)
    assert not available("east")
    assert available("nova")
    set_columns(core, tables.services, tables.services.c.host.in_(["h2", "h3", "h4"]), disabled=True)
    assert not available("nova")
