"""Services: registration, liveness, changes by operators, and deltas published to schedulers."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor.endpoints.by_hosts import Guests, Heartbeat
from nova.conductor.endpoints.hosts import Aggregates, Hypervisors, Services
from nova.conf import CONF
from nova.db import tables
from nova.db.hosts import allocations, drains, services
from nova.db.servers import actions
from nova.db.sql import clock
from nova.db.volumes import share_accesses
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.drain import Drain, DrainedServer
from nova.objects.hosts.service import WorkerStats
from nova.objects.images.image import Image
from nova.objects.servers.action import Action
from tests.unit.conductor.books import Books, at, ctx, node, server, set_columns


def _register(core: Books, host: str = "h1", binary: str = "nova-compute") -> Any:
    return Heartbeat(core).register(ctx(), host, binary, binary.removeprefix("nova-"), 1)


def _silent(core: Books, seconds: int, host: str = "h1") -> None:
    """Set the last heartbeat of the service ``seconds`` back."""
    set_columns(core, tables.services, tables.services.c.host == host,
                last_seen=utcnow() - datetime.timedelta(seconds=seconds))


def _mark_down(core: Books) -> list[str]:
    return core.db.write(services.mark_down)


# --- liveness --------------------------------------------------------------------------------
def test_new_service_is_up_and_published_to_schedulers(core: Books) -> None:
    service = _register(core)
    assert (service.up, service.disabled, service.availability_zone) == (True, False, "nova")
    assert [delta.services for delta in core.sent.take()] == [{"h1": (True, False)}]
    assert _register(core).uuid == service.uuid


def test_service_deltas_have_increasing_generations(core: Books) -> None:
    told = []

    def hear() -> None:
        told.extend(delta.service_generations["h1"] for delta in core.sent.take() if delta.services)

    service = _register(core)
    hear()
    _silent(core, 120)
    _mark_down(core)
    core.fleet.services(core.db.read(lambda connection: services.flags(connection, ["h1"])))
    hear()
    Heartbeat(core).beat(ctx(), "h1", "nova-compute", [])
    hear()
    Services(core).update(ctx(), service.uuid, disabled=True)
    hear()
    _silent(core, 120)
    _mark_down(core)
    assert Heartbeat(core).beat_all(ctx(), "nova-compute", {"h1": []}) == []
    hear()
    assert _register(core).generation == told[-1] + 1
    hear()
    Heartbeat(core).beat(ctx(), "h1", "nova-compute", [])
    hear()  # no change, no delta
    assert told == sorted(set(told))
    assert len(told) == 6
    Services(core).delete(ctx(), service.uuid)
    assert _register(core).generation >= told[0]


def test_host_registers_with_the_identity_of_its_machine(core: Books) -> None:
    def register(host: str, identity: str | None) -> str | None:
        return Heartbeat(core).register(ctx(), host, "nova-compute", "compute", 1, identity).identity

    one, other = new_uuid(), new_uuid()
    assert register("h1", None) is None
    assert register("h1", one) == one
    assert register("h1", one) == one
    assert register("h1", None) == one  # a nova-compute of the previous release
    core.sent.take()
    with pytest.raises(exception.HostIdentityMismatch, match="another machine is registered by this name"):
        register("h1", other)
    with pytest.raises(exception.HostIdentityMismatch, match="its machine is registered as nova-compute of host h1"):
        register("h2", one)
    assert core.sent.take() == []
    assert [service.host for service in Services(core).index(ctx())] == ["h1"]
    assert register("h2", other) == other


def test_machine_can_register_a_new_name_after_service_deletion(core: Books) -> None:
    one = new_uuid()
    service = Heartbeat(core).register(ctx(), "h1", "nova-compute", "compute", 1, one)
    Services(core).delete(ctx(), service.uuid)
    assert Heartbeat(core).register(ctx(), "h2", "nova-compute", "compute", 1, one).identity == one


def test_services_other_than_compute_are_internal_and_not_published(core: Books) -> None:
    assert _register(core, "c1", "nova-conductor").availability_zone == "internal"
    assert core.sent.take() == []


def test_enable_new_services_false_registers_computes_disabled(core: Books, settings: Any) -> None:
    settings("enable_new_services", False)
    assert _register(core).disabled
    assert _register(core).disabled_reason
    assert not _register(core, "c1", "nova-conductor").disabled
    Services(core).update_by_host(ctx(), "h1", "nova-compute", disabled=False)
    assert not _register(core).disabled


def test_service_without_heartbeat_is_down_at_once(core: Books) -> None:
    uuid = _register(core).uuid
    _silent(core, CONF.service_down_time + 1)
    assert not Services(core).get(ctx(), uuid).up
    assert not core.db.read(lambda connection: services.host_up(connection, "h1"))
    Heartbeat(core).beat(ctx(), "h1", "nova-compute", [])
    assert Services(core).get(ctx(), uuid).up
    assert core.db.read(lambda connection: services.host_up(connection, "h1"))


def test_service_is_marked_down_once_and_its_return_is_published(core: Books) -> None:
    _register(core)
    _register(core, "h2")
    core.sent.take()
    _silent(core, CONF.service_down_time + 1)
    assert _mark_down(core) == ["h1"]
    assert _mark_down(core) == []
    flags = core.db.read(lambda connection: services.flags(connection, ["h1", "h2", "h3"]))
    assert {host: (found.up, found.disabled) for host, found in flags.items()} == {
        "h1": (False, False), "h2": (True, False)}
    Heartbeat(core).beat(ctx(), "h1", "nova-compute", [])
    assert [delta.services for delta in core.sent.take()] == [{"h1": (True, False)}]


def test_heartbeat_takes_a_single_statement_and_publishes_nothing(core: Books) -> None:
    _register(core)
    core.sent.take()
    core.statements()
    Heartbeat(core).beat(ctx(), "h1", "nova-compute", [])
    assert len(core.statements()) == 1
    assert core.sent.take() == []


def test_heartbeat_of_an_unregistered_service_is_refused(core: Books) -> None:
    with pytest.raises(exception.HostBinaryNotFound):
        Heartbeat(core).beat(ctx(), "h1", "nova-compute", [])


def test_heartbeat_renews_leases_and_returns_lost_actions(core: Books) -> None:
    _register(core)
    old = utcnow() - datetime.timedelta(seconds=5)
    rows = [Action(uuid=new_uuid(), instance_uuid=new_uuid(), action="create", owner=owner, lease_until=old,
                   outcome=outcome, request_id="req-1", start_time=old)
            for owner, outcome in (("compute@h1", None), ("compute@h2", None), ("compute@h1", "superseded"))]
    core.db.write(lambda connection: actions.insert(connection, rows))
    lost = Heartbeat(core).beat(ctx(), "h1", "nova-compute", [row.uuid for row in rows])
    assert lost == [rows[1].uuid, rows[2].uuid]
    renewed = core.db.read(lambda connection: actions.get(connection, rows[0].uuid))
    assert renewed is not None
    assert renewed.lease_until is not None
    assert renewed.lease_until > utcnow() + datetime.timedelta(seconds=CONF.conductor.lease - 5)
    other = core.db.read(lambda connection: actions.get(connection, rows[1].uuid))
    assert other is not None
    assert other.lease_until == old


# --- operators -------------------------------------------------------------------------------
def test_service_disable_and_enable_are_published(core: Books) -> None:
    uuid = _register(core).uuid
    core.sent.take()
    endpoint = Services(core)
    disabled = endpoint.update(ctx(), uuid, disabled=True, reason="broken fan")
    assert (disabled.disabled, disabled.disabled_reason, disabled.up) == (True, "broken fan", True)
    enabled = endpoint.update(ctx(), uuid, disabled=False)
    assert (enabled.disabled, enabled.disabled_reason) == (False, None)
    assert [delta.services for delta in core.sent.take()] == [{"h1": (True, True)}, {"h1": (True, False)}]


def test_forced_down_overrides_heartbeats(core: Books) -> None:
    uuid = _register(core).uuid
    core.sent.take()
    endpoint = Services(core)
    assert not endpoint.update(ctx(), uuid, forced_down=True).up
    Heartbeat(core).beat(ctx(), "h1", "nova-compute", [])
    assert not endpoint.get(ctx(), uuid).up
    assert endpoint.update(ctx(), uuid, forced_down=False).up
    assert [delta.services for delta in core.sent.take()] == [{"h1": (False, False)}, {"h1": (True, False)}]


def test_service_list_is_filtered_by_host_and_binary(core: Books) -> None:
    for host, binary in (("h1", "nova-compute"), ("h2", "nova-compute"), ("h1", "nova-conductor")):
        _register(core, host, binary)
    core.statements()
    found = Services(core).index(ctx())
    assert [(one.host, one.binary) for one in found] == [
        ("h1", "nova-compute"), ("h2", "nova-compute"), ("h1", "nova-conductor")]
    assert len(core.statements()) == 2
    assert len(Services(core).index(ctx(), host="h1")) == 2
    assert len(Services(core).index(ctx(), host="h1", binary="nova-compute")) == 1


def test_unknown_service_is_not_found(core: Books) -> None:
    endpoint = Services(core)
    for call in (lambda: endpoint.get(ctx(), "x"), lambda: endpoint.delete(ctx(), "99"),
                 lambda: endpoint.delete(ctx(), "9" * 30), lambda: endpoint.update(ctx(), new_uuid(), disabled=True)):
        with pytest.raises(exception.ServiceNotFound):
            call()
    with pytest.raises(exception.HostBinaryNotFound, match="nova-compute on host h9"):
        endpoint.update_by_host(ctx(), "h9", "nova-compute", disabled=True)


def test_delete_of_a_service_with_servers_is_refused(core: Books) -> None:
    uuid = _register(core).uuid
    [found] = Guests(core, None).report_nodes(ctx(), "h1", [node("h1")])  # type: ignore[arg-type]
    server(core, "h1")
    with pytest.raises(exception.ServiceInUse):
        Services(core).delete(ctx(), uuid)
    assert Hypervisors(core).get(ctx(), found.uuid).inventory("VCPU").total == 8


def test_delete_of_a_service_with_share_accesses_is_refused(core: Books) -> None:
    """The server is deleted, but the share service was unavailable: it needs the host's address to revoke the
    access."""
    uuid, share, instance = _register(core).uuid, new_uuid(), new_uuid()
    core.db.write(lambda connection: share_accesses.want(connection, share, "h1", instance))
    with pytest.raises(exception.ServiceInUse, match=share):
        Services(core).delete(ctx(), uuid)
    core.db.write(lambda connection: share_accesses.leave(connection, share, "h1", instance))
    core.db.write(lambda connection: share_accesses.removed(connection, share, "h1", instance))
    Services(core).delete(ctx(), uuid)


def test_delete_of_a_compute_service_removes_nodes_and_aggregate_hosts(core: Books) -> None:
    service = _register(core)
    _register(core, "h2")
    guests = Guests(core, None)  # type: ignore[arg-type]
    [gone] = guests.report_nodes(ctx(), "h1", [node("h1")])
    [stays] = guests.report_nodes(ctx(), "h2", [node("h2")])
    aggregate = Aggregates(core).create(ctx(), "rack", "z1")
    for host in ("h1", "h2"):
        Aggregates(core).add_host(ctx(), aggregate.id, host)
    core.db.write(lambda connection: allocations.claim(connection, new_uuid(), at(gone.uuid), {"VCPU": 1}, "p1", "u1"))
    core.sent.take()

    Services(core).delete(ctx(), str(service.id))

    told = core.sent.take()
    assert [delta.removed for delta in told if delta.removed] == [[gone.uuid]]
    assert any(delta.reload for delta in told)
    assert [one.uuid for one in Hypervisors(core).index(ctx())] == [stays.uuid]
    assert Aggregates(core).get(ctx(), aggregate.id).hosts == ["h2"]
    for table, column in ((tables.inventories, "provider_uuid"), (tables.allocations, "provider_uuid"),
                          (tables.providers, "uuid")):
        left = core.db.read(lambda connection, table=table, column=column: {
            row._mapping[column] for row in connection.execute(table.select())})
        assert gone.uuid not in left


# --- load ------------------------------------------------------------------------------------
def test_delete_of_a_compute_service_leaves_no_row_with_its_host(core: Books) -> None:
    """Every table with a host column is checked, so that new tables are covered."""
    service = _register(core)
    Guests(core, None).report_nodes(ctx(), "h1", [node("h1")])  # type: ignore[arg-type]
    aggregate = Aggregates(core).create(ctx(), "rack")
    Aggregates(core).add_host(ctx(), aggregate.id, "h1")
    Aggregates(core).cache_images(ctx(), aggregate.id, [Image(id="i", disk_format="raw")])
    drain = Drain(uuid=new_uuid(), host="h1", created_at=utcnow())
    line = DrainedServer(drain_uuid=drain.uuid, instance_uuid=new_uuid(), since=utcnow())

    def others(connection: sa.Connection) -> None:
        drains.begin(connection, drain)
        drains.take(connection, drain.uuid, "me", clock.after(60))
        drains.note(connection, drain.uuid, "me", clock.after(60), [line])

    core.db.write(others)
    assert {"services", "compute_nodes", "drains", "precached_images"} == _naming(core, "h1")
    Services(core).delete(ctx(), service.uuid)
    assert not _naming(core, "h1")
    assert not core.db.read(lambda connection: connection.execute(sa.select(tables.drain_servers)).all())


def _naming(core: Books, host: str) -> set[str]:
    """Return the tables with a row of this host."""
    return {table.name for table in tables.metadata.tables.values() if "host" in table.c and core.db.read(
        lambda connection, table=table: connection.execute(sa.select(table).where(table.c.host == host)).first())}


def test_heartbeat_stores_the_load_of_the_workers(core: Books) -> None:
    uuid = _register(core).uuid
    assert Services(core).get(ctx(), uuid).load is None
    loads = [WorkerStats(worker=0, per_second=4.5, rss_mb=60), WorkerStats(worker=1, busy=3)]
    Heartbeat(core).beat(ctx(), "h1", "nova-compute", [], loads)
    assert Services(core).get(ctx(), uuid).load == loads


def test_heartbeat_of_the_previous_release_has_no_load(core: Books) -> None:
    uuid = _register(core).uuid
    Heartbeat(core).beat(ctx(), "h1", "nova-compute", [])
    assert Services(core).get(ctx(), uuid).load is None


def test_api_services_are_hidden_from_the_service_list(core: Books) -> None:
    _register(core, "a1", "nova-api")
    _register(core)
    assert [service.binary for service in Services(core).index(ctx())] == ["nova-compute"]
    assert [service.binary for service in Services(core).index(ctx(), binary="nova-api")] == []
    listed = core.db.read(lambda connection: services.index(connection, hidden=True))
    assert sorted(service.binary for service in listed) == ["nova-api", "nova-compute"]
