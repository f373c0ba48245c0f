"""Kill processes during calls to Neutron: operations continue, and no port is left over."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Iterator

import pytest
import requests

from nova.operations import REGISTRY
from tests.crash import invariants
from tests.crash.rounds import Operate, Round
from tests.crash.steps import OPTIONS, Case, Points, When
from tests.crash.test_steps import kill
from tests.functional.networks.neutron_server import NeutronServer
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

# The fields of data on which such steps depend.
_NEEDS = ("outside_interfaces", "plugs")
_OPERATIONS = ("build", "attach_interface", "detach_interface", "delete")


class Plugger(threading.Thread):
    """The agents of Neutron: a thread that plugs bound ports after a while, and reports them to Nova."""

    def __init__(self, neutron: NeutronServer, nova: Cluster) -> None:
        super().__init__(daemon=True)
        self._neutron, self._nova, self._over = neutron, nova, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.3):
            for port in self._neutron.ports(status="DOWN"):
                if port["binding:host_id"] and self._tell(port):
                    with self._neutron.lock:
                        row = self._neutron.rows["ports"].get(port["id"])
                        if row is not None and row["revision_number"] == port["revision_number"]:
                            row["status"] = "ACTIVE"

    def _tell(self, port: dict[str, str]) -> bool:
        """Return True if Nova has recorded the event."""
        event = {"server_uuid": port["device_id"], "name": "network-vif-plugged", "tag": port["id"]}
        try:
            answer = self._nova.api.request("POST", "/os-server-external-events", {"events": [event]})
        except requests.RequestException:
            return False
        return bool(answer.status_code == 200)

    def stop(self) -> None:
        self._over.set()
        self.join()


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Points:
    return Points(tmp_path_factory.mktemp("points"))


@pytest.fixture(scope="module")
def neutron() -> Iterator[NeutronServer]:
    server = NeutronServer()
    server.network(shared=True, cidr="10.60.0.0/24")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(rabbitmq: Rabbit, new_database: Callable[[], str | None], points: Points,
            neutron: NeutronServer) -> Iterator[Cluster]:
    options = {**OPTIONS, "network": {"driver": "neutron"},
               "neutron": {"endpoint_override": neutron.url}}
    made = Cluster(rabbitmq.new_vhost(), new_database(), computes=2, options=options, launcher=points.launcher)
    for name in ("compute-1", "compute-2"):
        _without_switch(made.directory / f"{name}.conf")
    with made:
        plugger = Plugger(neutron, made)
        plugger.start()
        yield made
        plugger.stop()


def _without_switch(config: pathlib.Path) -> None:
    """Disable the plugging of interfaces by the host."""
    config.write_text(config.read_text() + "[network]\ndriver = none\n")


def _cases() -> list[Case]:
    """Return the cases of operations that call Neutron."""
    return [case for name in _OPERATIONS for step in REGISTRY[name].steps if step.when in _NEEDS
            for case in (Case(REGISTRY[name], step), *([Case(REGISTRY[name], step, undo=True)] if step.undo else ()))]


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.full), "after"])
def test_kill_during_neutron_calls_leaves_no_port(nova: Cluster, points: Points, operate: Operate,
                                                  neutron: NeutronServer, when: When) -> None:
    everything = Round(nova, points, _cases(), when, operate)
    kill(nova, points, *everything.holders())
    everything.ends()
    eventually(lambda: _ports(neutron) == _interfaces(nova), invariants.BOUND,
               "the ports in Neutron and the interfaces in Nova are identical")


def _ports(neutron: NeutronServer) -> set[tuple[str, str]]:
    return {(port["device_id"], port["id"]) for port in neutron.ports()}


def _interfaces(nova: Cluster) -> set[tuple[str, str]]:
    return {(uuid, item["port_id"]) for uuid in nova.api.servers()
            for item in nova.api.get(f"/servers/{uuid}/os-interface")["interfaceAttachments"]}
