"""Tunnel peers: publication of the hosts of a VXLAN network, once per change and ordered by version."""

from __future__ import annotations

import pytest

from nova import exception
from nova.conductor.endpoints.by_hosts import NetworkHosts
from nova.conductor.endpoints.networks import Networks
from nova.db.hosts import network_hosts, services
from nova.db.networks import networks
from nova.objects.base import utcnow
from nova.objects.hosts.service import Service
from nova.objects.networks.network import Network, Peers
from tests.unit.conductor.books import Books, ctx


@pytest.fixture
def desk(core: Books) -> NetworkHosts:
    return NetworkHosts(core)


@pytest.fixture
def tunnel(core: Books) -> str:
    return _network(core, 1)


def _network(core: Books, number: int, vni: int | None = 0) -> str:
    return Networks(core).create(ctx(), Network(
        uuid="", label=f"n{number}", cidr=f"10.{number}.0.0/24", gateway="", bridge="", vni=vni)).uuid


def _present(desk: NetworkHosts, host: str, known: dict[str, int], complete: bool = False,
             address: str = "") -> list[Peers]:
    return desk.present(ctx(), host, address or f"192.0.2.{host[1:]}", known, complete)


def _told(core: Books) -> dict[str, Peers]:
    """Return the last update of every host since the last call."""
    core.peers.flush(everything=True)
    told, core.sent.peers = dict(core.sent.peers), []
    return told


def test_new_tunnel_host_is_published_to_all_peers(core: Books, desk: NetworkHosts, tunnel: str) -> None:
    [alone] = _present(desk, "h1", {tunnel: 0})
    assert alone.hosts == {"h1": "192.0.2.1"}
    _told(core)
    [both] = _present(desk, "h2", {tunnel: 0})
    assert both.hosts == {"h1": "192.0.2.1", "h2": "192.0.2.2"}
    assert both.version > alone.version
    assert _told(core) == {"h1": both, "h2": both}


def test_unchanged_tunnel_host_only_reads_and_publishes_nothing(core: Books, desk: NetworkHosts, tunnel: str) -> None:
    [known] = _present(desk, "h1", {tunnel: 0})
    _told(core)
    core.statements()
    for complete in (False, True):
        assert _present(desk, "h1", {tunnel: known.version}, complete) == []
    statements = core.statements()
    assert len(statements) == 4
    assert all(statement.startswith("SELECT") for statement in statements)
    assert _told(core) == {}


def test_tunnel_host_with_an_old_version_gets_current_peers(core: Books, desk: NetworkHosts, tunnel: str) -> None:
    [known] = _present(desk, "h1", {tunnel: 0})
    [newer] = _present(desk, "h2", {tunnel: 0})
    assert _present(desk, "h1", {tunnel: known.version}) == [newer]


def test_removed_or_changed_tunnel_host_is_published_to_peers(core: Books, desk: NetworkHosts, tunnel: str) -> None:
    other = _network(core, 2)
    for host in ("h1", "h2"):
        _present(desk, host, {tunnel: 0, other: 0})
    _told(core)
    _present(desk, "h2", {other: 0}, complete=True)
    told = _told(core)
    assert set(told) == {"h1"}
    assert (told["h1"].network_id, set(told["h1"].hosts)) == (tunnel, {"h1"})
    _present(desk, "h2", {other: 0}, address="192.0.2.99")
    assert _told(core)["h1"].hosts == {"h1": "192.0.2.1", "h2": "192.0.2.99"}


def test_tunnel_peer_changes_are_merged_into_a_single_message(core: Books, desk: NetworkHosts, tunnel: str) -> None:
    for number in range(1, 20):
        _present(desk, f"h{number}", {tunnel: 0})
    core.peers.flush(everything=True)
    assert [host for host, _peers in core.sent.peers] == sorted(f"h{number}" for number in range(1, 20))
    assert {len(peers.hosts) for _host, peers in core.sent.peers} == {19}


def test_networks_without_vni_have_no_tunnel_peers(core: Books, desk: NetworkHosts) -> None:
    plain = _network(core, 3, vni=None)
    assert _present(desk, "h1", {plain: 0, "unknown": 0}) == []


def test_deleted_hosts_and_networks_have_no_tunnel_peers(core: Books, desk: NetworkHosts, tunnel: str) -> None:
    for host in ("h1", "h2"):
        _present(desk, host, {tunnel: 0})
    service = Service(id=1, uuid="s", host="h2", binary="nova-compute", topic="compute", created_at=utcnow())
    core.db.write(lambda connection: services.delete(connection, service))
    [left] = core.db.read(lambda connection: network_hosts.newer(connection, {tunnel: 0}))
    assert set(left.hosts) == {"h1"}
    core.db.write(lambda connection: networks.delete(connection, tunnel))
    assert core.db.read(lambda connection: network_hosts.newer(connection, {tunnel: 0})) == []
    with pytest.raises(exception.NetworkNotFound):
        Networks(core).get(ctx(), tunnel)
