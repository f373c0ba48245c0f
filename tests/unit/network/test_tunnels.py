"""Tunnels of a host: requests for the peers of its networks, and updates of peers."""

from __future__ import annotations

import contextlib

import pytest

import nova.conf
from nova import exception
from nova.conf import CONF
from nova.network.linux import plumbing
from nova.network.linux.state_files import HostNet, StateFiles
from nova.network.linux.tunnels import Tunnels
from nova.objects.networks.network import Peers


class Conductor:
    """A fake conductor that returns the peers of one network."""

    def __init__(self):
        self.requests = []
        self.away = False
        self.peers = Peers(network_id="n1", version=5, hosts={"h1": "192.0.2.1", "h2": "192.0.2.2"})

    def present(self, _ctx, host, address, networks, complete=False):
        if self.away:
            raise exception.ServiceUnavailable("away")
        self.requests.append((host, address, dict(networks), complete))
        return [self.peers] if networks.get("n1", self.peers.version) < self.peers.version else []


@pytest.fixture(name="conductor")
def conductor_fixture():
    return Conductor()


@pytest.fixture(name="state")
def state_fixture(tmp_path):
    nova.conf.register()
    CONF.set_override("tunnel_address", "192.0.2.1", group="network")
    yield StateFiles(str(tmp_path))
    CONF.clear_override("tunnel_address", group="network")


@pytest.fixture(name="tunnels")
def tunnels_fixture(state, conductor):
    result = Tunnels(state, lambda _network_id: contextlib.nullcontext())
    result.connect("h1", conductor)
    return result


def net(state, number=1, vni=7):
    result = HostNet(id=f"n{number}", bridge="br", cidr="10.0.0.0/24", gateway="10.0.0.1", vni=vni)
    state.save_network(result)
    return result


def test_tunnel_peers_are_requested_for_the_first_guest_only(tunnels, state, conductor):
    network = net(state)
    tunnels.up(network)
    assert conductor.requests == [("h1", "192.0.2.1", {"n1": 0}, False)]
    assert state.peers("n1") == conductor.peers
    tunnels.up(network)
    assert len(conductor.requests) == 1


def test_network_without_tunnels_sends_no_request(tunnels, state, conductor):
    network = net(state, vni=None)
    tunnels.up(network)
    tunnels.removed(network)
    assert conductor.requests == []
    for _time in range(2):
        tunnels.refresh()
    assert conductor.requests == [("h1", "192.0.2.1", {}, True)], "the empty list is not sent exactly once"


def test_tunnel_networks_are_set_up_while_the_conductor_is_unavailable(tunnels, state, conductor):
    conductor.away = True
    tunnels.up(net(state))
    with pytest.raises(exception.ServiceUnavailable):
        tunnels.refresh()
    conductor.away = False
    tunnels.refresh()
    assert state.peers("n1") == conductor.peers


def test_tunnel_networks_are_reported_in_a_single_call(tunnels, state, conductor):
    for number in (1, 2):
        net(state, number)
    state.save_peers(Peers(network_id="n2", version=3))
    net(state, 3, vni=None)
    tunnels.refresh()
    assert conductor.requests == [("h1", "192.0.2.1", {"n1": 0, "n2": 3}, True)]
    for number in (1, 2):
        state.delete_network(f"n{number}")
    for _time in range(2):
        tunnels.refresh()
    assert conductor.requests[1:] == [("h1", "192.0.2.1", {}, True)], "the removal is not sent exactly once"


def test_older_tunnel_peers_do_not_replace_newer_peers(tunnels, state, conductor):
    tunnels.up(net(state))
    for version in (4, 5):
        tunnels.update_peers(Peers(network_id="n1", version=version))
    assert state.peers("n1") == conductor.peers
    tunnels.update_peers(Peers(network_id="n1", version=6))
    assert state.peers("n1") == Peers(network_id="n1", version=6)


def test_tunnel_peers_of_unknown_networks_are_not_stored(tunnels, state):
    tunnels.update_peers(Peers(network_id="n9", version=6))
    assert state.networks() == []


def test_tunnel_address_defaults_to_my_ip(state):
    assert plumbing.tunnel_address() == "192.0.2.1"
    CONF.clear_override("tunnel_address", group="network")
    assert plumbing.tunnel_address() == CONF.my_ip
    CONF.set_override("tunnel_address", "a name", group="network")
    with pytest.raises(exception.NetworkSetupError):
        plumbing.tunnel_address()
