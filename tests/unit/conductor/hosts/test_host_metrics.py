"""Measurements of hosts: stored with their nodes, published to schedulers and, in the same transaction, as
notifications."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor import announcer
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import compute_nodes
from nova.db.maintenance import outbox
from nova.objects.base import utcnow
from nova.objects.hosts.node import ComputeNode, Metric
from nova.scheduler.hosts import Fleet
from tests.unit.conductor.books import Books, node

THEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, datetime.UTC)


def metrics(percent: int = 12, **more: int) -> list[Metric]:
    values = {"cpu.percent": percent, "cpu.user.time": 10**15, **more}
    return [Metric(name=name, value=value, source="fake", timestamp=THEN) for name, value in values.items()]


@pytest.fixture
def told(host: Books) -> Iterator[Books]:
    """Enable versioned and unversioned notifications."""
    CONF.set_override("driver", ["test"], group="oslo_messaging_notifications")
    CONF.set_override("notification_format", "both", group="notifications")
    host.outbox.configure()
    yield host
    CONF.clear_override("driver", group="oslo_messaging_notifications")
    CONF.clear_override("notification_format", group="notifications")


def report(core: Books, *nodes: ComputeNode) -> list[ComputeNode]:
    return announcer.report_nodes(core, "h1", nodes)


def writes(core: Books) -> list[str]:
    """Return the tables written since the last call."""
    lines = [line.split() for line in core.statements() if not line.startswith("SELECT")]
    return [line[1] if line[0] == "UPDATE" else line[2] for line in lines]


def waiting(core: Books) -> list[Any]:
    return core.db.read(lambda connection: connection.execute(
        tables.outbox.select().order_by(tables.outbox.c.id)).all())


def test_reported_metrics_are_stored_and_published_to_schedulers(host: Books) -> None:
    [made] = report(host, node("h1", metrics=metrics(12)))
    fleet = Fleet()
    for percent in (12, 90):
        report(host, node("h1", metrics=metrics(percent)))
        for delta in host.sent.take():
            fleet.upsert_all(delta.states)
        known = fleet.state(made.uuid)
        assert known is not None
        assert known.metrics == {"cpu.percent": percent, "cpu.user.time": 10**15}
    [read] = host.db.read(lambda connection: compute_nodes.states(connection, None, 10))
    assert read.metrics["cpu.percent"] == 90
    [shown] = host.db.read(compute_nodes.index)
    assert shown.metrics == metrics(90)


def test_scheduler_keeps_the_newest_metrics_if_deltas_are_reordered(host: Books) -> None:
    for percent in (12, 90):
        [made] = report(host, node("h1", metrics=metrics(percent)))
    fleet = Fleet()
    for delta in reversed(host.sent.take()):
        fleet.upsert_all(delta.states)
    known = fleet.state(made.uuid)
    assert known is not None
    assert known.metrics["cpu.percent"] == 90


def test_report_that_changes_only_metrics_writes_only_the_node(host: Books) -> None:
    report(host, node("h1", metrics=metrics(12)))
    host.statements()
    report(host, node("h1", metrics=metrics(13)))
    assert writes(host) == ["compute_nodes"]
    report(host, node("h1", metrics=metrics(13)))
    assert writes(host) == []


def test_node_without_monitors_writes_no_metrics(told: Books) -> None:
    report(told, node("h1"))
    told.statements()
    told.sent.take()
    report(told, node("h1"))
    assert writes(told) == []
    assert told.sent.take() == []
    assert waiting(told) == []


def test_disabled_monitors_clear_the_metrics_of_the_node(told: Books) -> None:
    [made] = report(told, node("h1", metrics=metrics()))
    before = len(waiting(told))
    told.sent.take()
    report(told, node("h1"))
    [delta] = told.sent.take()
    assert [(state.node_uuid, state.metrics) for state in delta.states] == [(made.uuid, {})]
    assert len(waiting(told)) == before


def test_metrics_update_is_not_logged_as_a_node_change(host: Books, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nova.conductor.announcer")
    report(host, node("h1", metrics=metrics(1)))
    assert "Compute node h1 of host h1 now has" in caplog.text
    caplog.clear()
    report(host, node("h1", metrics=metrics(2)))
    assert caplog.text == ""
    report(host, node("h1", vcpus=16, metrics=metrics(3)))
    assert "VCPU 16" in caplog.text


def test_metrics_update_is_notified_versioned_and_unversioned(told: Books) -> None:
    [made, _other] = report(told, node("h1", metrics=metrics(12)), node("h1", "unmeasured"))
    versioned, old = waiting(told)
    assert {(each.publisher_id, each.priority, each.lane) for each in (versioned, old)} == {
        ("nova-compute:h1", "INFO", outbox.partition_of(made.uuid))}
    assert (versioned.event_type, versioned.versioned) == ("metrics.update", True)
    assert versioned.payload == {
        "nova_object.name": "MetricsPayload", "nova_object.namespace": "nova", "nova_object.version": "1.0",
        "nova_object.data": {"host": "h1", "host_ip": "192.0.2.1", "nodename": "h1", "metrics": [
            {"nova_object.name": "MetricPayload", "nova_object.namespace": "nova", "nova_object.version": "1.0",
             "nova_object.data": {"name": name, "value": value, "numa_membw_values": None, "source": "fake",
                                  "timestamp": "2026-01-02T03:04:05Z"}}
            for name, value in (("cpu.percent", 12), ("cpu.user.time", 10**15))]}}
    assert (old.event_type, old.versioned) == ("compute.metrics.update", False)
    assert old.payload == {"host": "h1", "host_ip": "192.0.2.1", "nodename": "h1", "metrics": [
        {"name": "cpu.percent", "value": 0.12, "source": "fake", "timestamp": "2026-01-02T03:04:05.678000"},
        {"name": "cpu.user.time", "value": 10**15, "source": "fake", "timestamp": "2026-01-02T03:04:05.678000"}]}
    report(told, node("h1", metrics=metrics(12)), node("h1", "unmeasured"))
    assert len(waiting(told)) == 2
    report(told, node("h1", metrics=metrics(13)), node("h1", "unmeasured"))
    assert len(waiting(told)) == 4


def test_rolled_back_metrics_report_writes_no_notification(told: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: sa.Connection, _uuids: list[str]) -> None:
        assert len(connection.execute(tables.outbox.select()).all()) == 2
        raise OSError("the database is away")

    monkeypatch.setattr(compute_nodes, "states_of", fail)
    with pytest.raises(OSError, match="away"):
        report(told, node("h1", metrics=metrics()))
    assert waiting(told) == []
    assert told.db.read(compute_nodes.index) == []


def _measured(**changes: Any) -> list[Metric]:
    return [Metric(**{"name": "cpu.percent", "value": 1, "timestamp": utcnow(), **changes})]


@pytest.mark.parametrize("wrong", [
    _measured(name=""), _measured(name="x" * 65), _measured(name="a b"), _measured(name="a\n"),
    _measured(name="\u00e9"), _measured(value=101), _measured(value=-1), _measured(name="n", value=1 << 63),
    _measured(name="n", value=-(1 << 63) - 1), _measured(source="s" * 256),
    _measured(timestamp=datetime.datetime(2026, 1, 1)),
    _measured(timestamp=datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14)))),
    _measured(timestamp=datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-14)))),
    _measured(name="n", value=1) * 101])
def test_invalid_metrics_are_refused(told: Books, wrong: list[Metric]) -> None:
    report(told, node("h1", metrics=metrics(5)))
    before = len(waiting(told))
    with pytest.raises(exception.InvalidInput, match="metric"):
        report(told, node("h1", metrics=wrong))
    [state] = told.db.read(lambda connection: compute_nodes.states(connection, None, 10))
    assert state.metrics["cpu.percent"] == 5
    assert len(waiting(told)) == before


def test_largest_metric_values_are_stored_exactly(told: Books) -> None:
    edge = [metrics(100, large=(1 << 63) - 1, small=-(1 << 63))]
    report(told, node("h1", metrics=edge[0]))
    [state] = told.db.read(lambda connection: compute_nodes.states(connection, None, 10))
    assert state.metrics["large"] == (1 << 63) - 1
    assert len(waiting(told)) == 2
