"""Fixtures of tests with Neutron."""

import pytest

from nova.conf import CONF, register_external_services
from nova.network.neutron.allocator import NeutronAllocator
from tests.functional.client import Client, wait_for
from tests.functional.conftest import remove_servers
from tests.functional.networks.neutron_server import NeutronServer
from tests.functional.networks.test_plugging import tell


@pytest.fixture
def neutron(suite):
    server = NeutronServer()
    register_external_services()
    CONF.set_override("endpoint_override", server.url, group="neutron")
    core = suite.conductor.core
    before = core.allocator
    core.allocator = NeutronAllocator()
    yield server
    server.faults.clear()
    remove_servers(Client(suite.url))
    core.allocator = before
    CONF.clear_override("endpoint_override", group="neutron")
    server.stop()


@pytest.fixture
def blue(neutron):
    return neutron.network("blue")


@pytest.fixture
def boot(member, flavor, image_id):
    return lambda *networks: member.boot(flavor, image_id, networks=list(networks))


def plug(admin, neutron, server, count=1):
    """Send the plug events of the server's ports as soon as the ports are bound."""
    ports = wait_for(lambda: len(found := [port for port in neutron.ports(device_id=server)
                                           if port["binding:host_id"]]) == count and found)
    wait_for(lambda: all(tell(admin, server, port["id"]) == 200 for port in ports))
    return ports


@pytest.fixture
def server(admin, neutron, blue, boot):
    uuid = boot({"uuid": blue})
    plug(admin, neutron, uuid)
    admin.wait(uuid, "ACTIVE")
    return uuid
