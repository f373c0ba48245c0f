"""Costs of moves and attachments are independent of the numbers of hosts and servers."""

import collections

import pytest
import yaml

from nova import bus, context
from nova.compute.service import compute_of
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network
from nova.rpcapi.volumes import Volumes
from tests.functional.client import wait_for
from tests.functional.conftest import remove_servers
from tests.functional.services.test_costs import measured
from tests.functional.volumes.test_volumes import attach, make

_HOSTS, _SERVERS = 24, 40
# Maximum number of messages per operation.
_BUDGETS = {"resize and confirm": 25, "resize and revert": 25, "live migrate": 25,
            "attach a volume": 8, "detach a volume": 8, "attach an interface": 8, "detach an interface": 8}


@pytest.fixture
def more_hosts(suite, admin, tmp_path):
    """Return ``more_hosts()``, which adds hosts until the end of the test."""
    running = []

    def add():
        path = tmp_path / "fleet.yaml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "rack", "hosts": _HOSTS, "vcpus": 64}]}))
        CONF.set_override("scenario", str(path), group="fake")
        running.append(compute_of(suite.transport))
        running[0].start()
        wait_for(lambda: len(suite.scheduler.fleet) >= _HOSTS, reason="the scheduler has received reports of all hosts")

    yield add
    remove_servers(admin)
    CONF.clear_override("scenario", group="fake")
    for fleet in running:
        fleet.stop()
        for service in fleet.services:
            [row] = admin.get("/os-services", host=service.host)["services"]
            admin.delete(f"/os-services/{row['id']}")


@pytest.fixture
def volume(suite, admin, second):
    """Create a volume of a pool shared by all hosts, so that the moved server may have it, too."""
    CONF.set_override("shared", True, group="volume")
    made = make(admin)
    yield made
    remove_servers(admin)
    bus.client(suite.transport, Volumes).delete(context.admin(), made)
    CONF.clear_override("shared", group="volume")


@pytest.fixture
def network(admin, networks):
    made = networks.create(context.admin(), Network(
        uuid=new_uuid(), label="many", cidr="10.31.0.0/24", gateway="", bridge=""))
    yield made.uuid
    remove_servers(admin)
    networks.delete(context.admin(), made.uuid)


class Costs:
    """Counters for operations on a server: messages by kind, and statements by prefix."""

    def __init__(self, suite, admin, flavors, server, volume, network):
        self._suite, self._admin, self._flavors = suite, admin, flavors
        self._server, self._volume, self._network = server, volume, network

    def all(self):
        """Run each operation once and return name -> (messages, statements); the server is unchanged afterwards."""
        ports = []

        def action(name, value=None):
            return lambda: self._admin.action(self._server, name, value)

        def resize():
            now = self._admin.server(self._server, version="2.1")["flavor"]["id"]
            other = next(flavor for flavor in self._flavors if flavor != now)
            return self._admin.action(self._server, "resize", {"flavorRef": other})

        def attach_interface():
            ports.append(self._admin.post(f"/servers/{self._server}/os-interface", {
                "interfaceAttachment": {"net_id": self._network}})["interfaceAttachment"]["port_id"])

        return {
            "resize and confirm": self._of(resize, action("confirmResize")),
            "resize and revert": self._of(resize, action("revertResize")),
            "live migrate": self._of(action("os-migrateLive", {"host": None, "block_migration": "auto"})),
            "attach a volume": self._of(lambda: attach(self._admin, self._server, self._volume)),
            "detach a volume": self._of(lambda: self._admin.delete(
                f"/servers/{self._server}/os-volume_attachments/{self._volume}")),
            "attach an interface": self._of(attach_interface),
            "detach an interface": self._of(lambda: self._admin.delete(
                f"/servers/{self._server}/os-interface/{ports[0]}"))}

    def _of(self, *requests):
        """Return the counts of several requests together, without the periodic updates of schedulers."""
        messages, statements = collections.Counter(), collections.Counter()
        for request in requests:
            _answer, sent, run = measured(self._suite, self._admin, request)
            told = sent.pop("scheduler.delta", 0)
            messages.update(sent)
            statements.update(" ".join(statement.split()[:6]) for statement in run[:len(run) - told])
        return messages, statements


def least(first, second, choose=min):
    """Return the cheaper round of each operation, without occasional lookups and messages of a slow machine."""
    return {name: choose(first[name], second[name], key=lambda costs: (costs[0].total(), costs[1].total()))
            for name in first}


def grown(few, many):
    """Return name -> the messages and statements that exceed the counts of the small deployment."""
    return {name: [now - before for now, before in zip(many[name], few[name], strict=True)] for name in few
            if any(now.total() > before.total() for now, before in zip(many[name], few[name], strict=True))}


def test_move_and_attachment_costs_are_independent_of_fleet_size(suite, admin, pair, flavor, image_id, volume,
                                                                         network, more_hosts):
    server = pair.boot(networks=[{"uuid": network}])
    costs = Costs(suite, admin, [flavor, admin.flavor(vcpus=2)], server, volume, network)
    rounds = costs.all(), costs.all()
    for name, (messages, _statements) in least(*rounds).items():
        assert messages.total() <= _BUDGETS[name], (name, messages)
    # A progress report that arrives after the end of its step writes nothing: take the round with all reports.
    few = least(*rounds, choose=max)
    more_hosts()
    # The servers belong to the same project and network.
    admin.boot(flavor, image_id, min_count=_SERVERS, max_count=_SERVERS, networks=[{"uuid": network}])
    wait_for(lambda: {each["status"] for each in admin.get("/servers/detail")["servers"]} == {"ACTIVE"}, 60)
    many = costs.all()
    for _again in range(3):
        if grown(few, many):
            many = least(many, costs.all())
    assert grown(few, many) == {}
