"""The table of novad instances discovered by mDNS."""

import concurrent.futures
import contextlib
import pathlib
import threading

import grpc
import pytest

from nova.novad.client import Client
from nova.novad.mdns import Instance
from nova.novad.nodes import discovery as module
from nova.novad.nodes.discovery import Discovery, certificate_names
from tests.certificates import authority
from tests.functional.client import wait_for


class Network:
    """A fake network with reachable addresses and a clock; ``run()`` stands in for the background thread."""

    def __init__(self, monkeypatch):
        self.good, self.tried, self.now = set(), [], 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.table = Discovery({}, threading.Event(), self._names)

    def _names(self, url, _files):
        self.tried.append(url)
        self.now += 0.1 if url in self.good else module.LIMIT
        return self.table._entries if url in self.good else []

    def add(self, name, *ports, scheme="tls"):
        urls = tuple(f"{scheme}://10.0.0.1:{port}" for port in ports)
        self.table.add(Instance(name=name, node=name, version="1", roles=(), addresses=urls))

    def run(self, seconds):
        end = self.now + seconds
        while self.now < end:
            entry = self.table._next()
            if entry is None or entry.due > self.now:
                self.now += 0.5
            else:
                self.table._try(entry)


@pytest.fixture
def network(monkeypatch):
    return Network(monkeypatch)


def test_new_node_is_tried_before_failed_instances(network):
    for number in range(module.MOST - 1):
        network.add(f"s{number}", number + 1)
    network.run(module.MOST * module.LIMIT * 3)
    network.good.add("tls://10.0.0.1:9999")
    network.add("n2", 9999)
    begun = network.now
    while not network.table.trusted():
        network.run(0.1)
    assert network.now - begun <= 2 * module.LIMIT
    assert network.table.trusted() == [("n2", "tls://10.0.0.1:9999")]


def test_expected_node_is_found_at_once_among_hostile_instances(network):
    """Strangers announce instances faster than they can be tried; a node of the platform has a new address."""
    network.table._expected = lambda: {"n2"}
    network.good.add("tls://10.0.0.1:9999")
    for number in range(2 * module.MOST):
        network.add(f"s{number}", number + 1)
    network.run(module.LIMIT)
    network.add("n2", 9999)
    for number in range(2 * module.MOST, 4 * module.MOST):
        network.add(f"s{number}", number + 1)
    begun = network.now
    while not network.table.trusted():
        assert network.now - begun <= 2 * module.LIMIT
        network.run(0.1)
    assert network.table.trusted() == [("n2", "tls://10.0.0.1:9999")]
    assert len(network.table._entries) <= module.MOST


def test_full_table_evicts_the_longest_failing_instance_but_no_trusted_node(network):
    network.good.add("tls://10.0.0.1:1")
    network.add("known", 1)
    for number in range(3 * module.MOST):
        network.add(f"s{number}", number + 2)
        network.run(module.LIMIT)
        assert len(network.table._entries) <= module.MOST
    kept = set(network.table._entries)
    assert kept == {"known", *(f"s{number}" for number in range(2 * module.MOST + 1, 3 * module.MOST))}


def test_table_full_of_trusted_nodes_accepts_no_new_instance(network):
    for number in range(module.MOST):
        network.good.add(f"tls://10.0.0.1:{number + 1}")
        network.add(f"n{number}", number + 1)
    network.run(module.MOST)
    network.add("stranger", 9999)
    assert "stranger" not in network.table._entries


def test_addresses_of_an_instance_are_tried_in_order(network):
    network.good.add("tls://10.0.0.1:3")
    network.add("n2", 1, 2, 3)
    network.run(30)
    assert network.tried[:3] == [f"tls://10.0.0.1:{port}" for port in (1, 2, 3)]
    assert network.table.trusted() == [("n2", "tls://10.0.0.1:3")]


def test_attempts_become_rarer_and_stop(network):
    network.add("stranger", 1)
    network.run(300)
    early = len(network.tried)
    network.run(10 * module._FORGOTTEN)
    assert (early <= 10, len(network.tried) <= 15, len(network.table._entries)) == (True, True, 0)


def test_withdrawn_instances_and_instances_without_tls_are_removed(network):
    network.add("n2", 1)
    network.add("n3", 2)
    network.add("plain", 3, scheme="tcp")
    network.table.remove("n2")
    network.add("n3", 2, scheme="tcp")
    assert len(network.table._entries) == 0
    network.run(20)
    assert network.tried == []


def test_confirmed_address_is_kept_while_it_works_whatever_is_announced(network):
    network.good.add("tls://10.0.0.1:1")
    network.add("n2", 1)
    network.run(10)
    network.add("n2", 7, 8)
    network.table.remove("n2")
    network.add("n2", 9, scheme="tcp")
    for number in range(2 * module.MOST):
        network.add(f"s{number}", number + 20)
    network.run(200)
    assert network.table.trusted() == [("n2", "tls://10.0.0.1:1")]
    assert not {"tls://10.0.0.1:7", "tls://10.0.0.1:8"} & set(network.tried)


def test_latest_announcement_is_tried_when_the_confirmed_address_fails(network):
    network.good.add("tls://10.0.0.1:1")
    network.add("n2", 1)
    network.run(10)
    network.add("n2", 7, 8)
    network.good = {"tls://10.0.0.1:8"}
    network.run(120)
    assert network.table.trusted() == [("n2", "tls://10.0.0.1:8")]


def test_withdrawn_instance_is_removed_once_its_confirmed_address_fails(network):
    network.good.add("tls://10.0.0.1:1")
    network.add("n2", 1)
    network.run(10)
    network.table.remove("n2")
    network.good.clear()
    network.run(2 * module._FIRST_PAUSE)
    assert len(network.table._entries) == 0


def test_dropped_instance_is_offered_again_and_found_when_it_becomes_reachable(monkeypatch):
    told = Instance(name="n2", node="n2", version="1", roles=(), addresses=("tls://10.0.0.1:1",))
    ended, reachable, failed = threading.Event(), threading.Event(), threading.Event()

    class Announced:
        """A watch that reports an instance once, as zeroconf does."""

        def __init__(self):
            self.instances = [(True, told)]

        def events(self, _seconds):
            ended.wait(0.01)
            while self.instances:
                yield self.instances.pop()

        def close(self):
            pass

    def names(_url, _files):
        failed.set()
        return discovery._entries if reachable.is_set() else []

    monkeypatch.setattr(module, "Watch", Announced)
    monkeypatch.setattr(module, "_BROWSE", 0.1)
    monkeypatch.setattr(module, "_FORGOTTEN", -1.0)  # The first failure drops an instance.
    discovery = Discovery({}, ended, names)
    discovery.start()
    try:
        assert failed.wait(20)
        reachable.set()
        wait_for(discovery.trusted, 20, "the instance is offered again")
    finally:
        ended.set()
        discovery.stop()


@pytest.mark.parametrize(("certificate", "node", "accepted"), [
    ({}, "n2", True), ({}, "n3", False), ({}, "N2", False), ({"names": ["n3"]}, "n3", True),
    ({"names": ["n3"]}, "n2", False), ({"addresses": ["127.0.0.2"]}, "n2", False)])
def test_certificate_must_name_the_address_and_the_announced_node(certificate, node, accepted):
    with authority() as ca, serving(ca.issue("n2", **certificate)) as url:
        assert (node in certificate_names(url, {"NOVA_CACERT": ca.file})) is accepted
        with authority() as other:
            assert certificate_names(url, {"NOVA_CACERT": other.file}) == []
        if accepted:  # The connection that carries the secret of the node has the same rule.
            with contextlib.closing(Client(url, "s", {"NOVA_CACERT": ca.file},
                                           [("grpc.ssl_target_name_override", node)])) as client:
                grpc.channel_ready_future(client._channel).result(timeout=10)


@contextlib.contextmanager
def serving(pair):
    """Serve gRPC with a certificate; yield the address."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    files = [tuple(pathlib.Path(path).read_bytes() for path in (pair.key, pair.certificate))]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(files))
    server.start()
    try:
        yield f"tls://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
