"""The service over an in-memory bus, with a fake conductor for the fleet and heartbeats."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from nova import bus, context, exception
from nova.conf import CONF
from nova.objects.hosts.scheduling import FleetDelta, FleetPage, NodeUsage
from nova.objects.hosts.service import Service
from nova.rpcapi import CONDUCTOR, HEARTBEATS, SCHEDULER, by_hosts
from nova.rpcapi.scheduler import Scheduler
from nova.scheduler import manager
from nova.scheduler import service as services
from nova.scheduler.filters.affinity import DifferentHostFilter, SameHostFilter
from nova.scheduler.filters.service import AggregateNumInstancesFilter, IoOpsFilter, NumInstancesFilter
from tests.unit.scheduler.builders import filters, node, spec, weighers


class Conductor:
    """A fake conductor that implements by_hosts.Fleet and by_hosts.Heartbeat."""

    def __init__(self) -> None:
        self.states = [node(f"n{number}") for number in range(4)]
        self.registered: list[tuple[str, str, str]] = []
        self.beats = 0
        self.readings = 0
        self.fail = False

    def page(self, ctx, marker=None, limit=500) -> FleetPage:
        self.readings += 1
        if self.fail:
            raise exception.ServiceUnavailable()
        return FleetPage(states=self.states)

    def register(self, ctx, host, binary, topic, version, identity, connector, belongs_to, returning) -> Service:
        self.registered.append((host, binary, topic))
        return Service(uuid="s", host=host, binary=binary)

    def beat(self, ctx, host, binary, running, load) -> list[str]:
        self.beats += 1
        return []

    def beat_all(self, ctx, binary, running) -> list[str]:
        return []


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "condition not met in time"
        time.sleep(0.01)


@pytest.fixture
def transport():
    CONF([], project="nova", default_config_files=[])
    made = bus.connect(CONF, url="kombu+memory://")
    yield made
    made.cleanup()


@pytest.fixture
def conductor(transport):
    made = Conductor()
    servers = [bus.serve(transport, CONDUCTOR, "conductor", [(by_hosts.Fleet, made)]),
               bus.serve(transport, HEARTBEATS, "conductor", [(by_hosts.Heartbeat, made)])]
    yield made
    bus.stop_taking(*servers)
    for server in servers:
        server.wait()


@pytest.fixture
def start(transport, conductor, monkeypatch):
    monkeypatch.setattr(services, "load_filters", filters)
    monkeypatch.setattr(services, "load_weighers", weighers)
    started = []

    def make(worker: int = 0) -> services.SchedulerService:
        made = services.SchedulerService(transport, worker, host="here")
        made.start()
        started.append(made)
        return made

    yield make
    for made in started:
        made.stop()


@pytest.fixture
def scheduler(transport) -> Scheduler:
    return bus.client(transport, Scheduler)


def test_select_and_explain_over_the_bus(start, scheduler):
    start()
    found = scheduler.select(context.admin(), spec(2))
    assert [[selection.node for selection in choice] for choice in found] == [
        ["n0", "n2", "n3"], ["n1", "n0", "n2"]]
    assert found[0][0].host == found[0][0].node_uuid == "n0"
    verdicts = scheduler.explain(context.admin(), spec(requested_host="n3"))
    assert [(verdict.node, verdict.refused_by) for verdict in verdicts] == [
        ("n3", None), ("n0", "RequestedHost"), ("n1", "RequestedHost"), ("n2", "RequestedHost")]


def test_selections_contain_the_hints_that_filters_enforced(start, conductor, monkeypatch):
    """Claims check them again, since other servers may move meanwhile. Other hints and forced hosts are not checked."""
    monkeypatch.setattr(services, "load_filters", lambda: [*filters(), SameHostFilter(), DifferentHostFilter()])
    made = start(1)
    hinted = {"hints": {"different_host": "u", "same_host": ["v"], "cidr": "/24"}, "hint_hosts": {"v": "n1"}}
    for more, expected in (({}, []), (hinted, ["same_host", "different_host"]), ({**hinted, "force_host": "n1"}, [])):
        assert made.manager.select(context.admin(), spec(**more))[0][0].hints == expected


def test_selections_contain_the_limits_that_filters_enforced(start, scheduler, conductor, monkeypatch, settings):
    """Claims check them again, since several schedulers may select a node at once."""
    start()
    assert {(each.max_instances, each.max_io_ops) for each in scheduler.select(context.admin(), spec())[0]} == {(0, 0)}
    settings("filter_scheduler", max_instances_per_host=30, max_io_ops_per_host=5)
    conductor.states[0].aggregates = [{"max_instances_per_host": "20"}]
    monkeypatch.setattr(services, "load_filters", lambda: [
        *filters(), NumInstancesFilter(), AggregateNumInstancesFilter(), IoOpsFilter()])
    made = start(1)
    selections = made.manager.select(context.admin(), spec())[0]
    assert {each.node: (each.max_instances, each.max_io_ops) for each in selections} == {
        "n0": (20, 5), "n1": (30, 5), "n2": (30, 5)}
    [[forced]] = made.manager.select(context.admin(), spec(force_host="n0"))
    assert (forced.max_instances, forced.max_io_ops) == (0, 0)


def test_no_valid_host_is_raised_over_the_bus(start, scheduler):
    start()
    with pytest.raises(exception.NoValidHost) as caught:
        scheduler.select(context.admin(), spec(resources={"MEMORY_MB": 10**6}))
    assert "Requested 1; MEMORY_MB: 4 hosts refused" in caught.value.inside
    assert "4 hosts" not in str(caught.value)


def test_delta_reaches_every_worker(start, scheduler):
    made = [start(worker) for worker in range(3)]
    for service in made:
        assert service.manager._follower.ready.wait(10)
    scheduler.delta(context.admin(), FleetDelta(source="c", seq=1, services={"n1": (False, False)}, usage=[
        NodeUsage(node_uuid="n0", num_instances=7, generation=2)]))
    for service in made:
        until(lambda service=service: service.manager._fleet.state("n0").num_instances == 7)
        assert not service.manager._fleet.state("n1").up


def test_only_the_first_worker_sends_heartbeats(start, conductor):
    start(1)
    start(2)
    start(0)
    until(lambda: conductor.beats)
    assert conductor.registered == [("here", "nova-scheduler", SCHEDULER)]


def test_select_before_the_fleet_is_read_is_unavailable(start, scheduler, conductor, monkeypatch):
    conductor.fail = True
    monkeypatch.setattr(manager, "_FLEET_TIMEOUT", 0.1)
    start()
    with pytest.raises(exception.ServiceUnavailable, match="read the fleet"):
        scheduler.select(context.admin(), spec())
