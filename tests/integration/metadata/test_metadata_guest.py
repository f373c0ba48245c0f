"""Access of guests to their metadata at 169.254.169.254 through the message bus."""

from __future__ import annotations

import json
import socket
import time

import pytest

from nova import bus, exception
from nova.api.guest_metadata.service import MetadataService
from nova.conf import CONF
from nova.network.linux import netns
from nova.rpcapi import CONDUCTOR
from nova.rpcapi.by_hosts import Guests
from nova.rpcapi.servers import Servers
from tests.integration.network.linuxnet_lab import Net, needs_root, rules, sh

pytestmark = [needs_root, pytest.mark.root]


class Conductor:
    """Serves the instances of this test; all other methods return None."""

    def __init__(self):
        self.instances = []

    def by_address(self, ctx, network_id, address):
        for instance in self.instances:
            for vif in instance.network_info:
                if vif.network_id == network_id and address in vif.addresses():
                    return instance
        raise exception.InstanceNotFound(instance_id=address)

    def get(self, ctx, uuid, project_id=None, deleted=False):
        for instance in self.instances:
            if instance.uuid == uuid:
                return instance
        raise exception.InstanceNotFound(instance_id=uuid)

    def set_password(self, ctx, uuid, items):
        instance = self.get(ctx, uuid)
        instance.system_metadata = {**instance.system_metadata, **items}

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda ctx, **_kwargs: None


@pytest.fixture
def service(lab, monkeypatch):
    monkeypatch.setattr("nova.api.guest_metadata.namespaces.INTERVAL", 0.05)
    conductor = Conductor()
    transport = bus.transport.messaging.get_rpc_transport(CONF, url="fake://")
    server = bus.serve(transport, CONDUCTOR, "host", [(Guests, conductor), (Servers, conductor)])
    CONF.set_override("port", _free_port(), group="metadata")
    running = MetadataService(transport)
    running.start()
    yield conductor
    running.stop()
    server.stop()
    server.wait()
    CONF.clear_override("port", group="metadata")


def _free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def fetch(guest, path, *more):
    done = guest.run("curl", "-s", "-m", "5", "-w", "\n%{http_code}", *more, f"http://169.254.169.254{path}")
    body, _newline, status = done.stdout.rpartition("\n")
    return int(status), body


def ready(guest):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if fetch(guest, "/")[0] == 200:
            return
        time.sleep(0.1)
    raise AssertionError("the metadata service does not answer")


def test_guests_with_equal_addresses_read_their_own_metadata(lab, service):
    one, two = Net(), Net()
    mine, theirs = one.instance(5, hostname="mine"), two.instance(5, hostname="theirs")
    service.instances += [mine, theirs]
    for instance, name in ((mine, "mine"), (theirs, "theirs")):
        lab.driver.plug(instance, rules())
        guest = lab.guest(instance)
        guest.dhcp()
        ready(guest)
        assert fetch(guest, "/latest/meta-data/hostname") == (200, f"{name}.novalocal")
        assert json.loads(fetch(guest, "/openstack/latest/meta_data.json")[1])["uuid"] == instance.uuid
    path = "/openstack/latest/password"
    assert fetch(guest, path, "-d", "c2VjcmV0")[0] == 200
    assert fetch(guest, path) == (200, "c2VjcmV0")
    assert fetch(guest, path, "-d", "again")[0] == 409
    assert service.instances[0].system_metadata == {}


def test_guest_with_a_forged_address_cannot_read_metadata(lab, service):
    net = Net()
    thief, victim = net.instance(5), net.instance(6, hostname="victim")
    service.instances += [thief, victim]
    lab.driver.plug(victim, rules())
    guest = lab.booted(thief)
    ready(guest)
    sh("ip", "-n", guest.ns, "address", "add", "10.77.0.6/24", "dev", "eth0")
    assert fetch(guest, "/latest/meta-data/hostname", "--interface", "10.77.0.6")[0] == 0


def test_metadata_is_served_again_on_a_recreated_network(lab, service):
    net = Net()
    instance = net.instance(5)
    service.instances.append(instance)
    for _ in range(2):
        lab.driver.plug(instance, rules())
        guest = lab.guest(instance)
        guest.static()
        ready(guest)
        guest.remove()
        lab.driver.unplug(instance)
        assert netns.identity(net.namespace) is None
