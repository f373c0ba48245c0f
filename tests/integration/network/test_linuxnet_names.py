"""Host names in the DNS of a network, with namespaces as guests."""

from __future__ import annotations

import os

import pytest

from nova.conf import CONF
from nova.network.linux.dhcp import DhcpServer
from nova.network.linux.state_files import StateFiles
from nova.objects.networks.network import ServedDomain
from tests.integration.network.linuxnet_lab import Net, needs_root, rules, wait

pytestmark = [needs_root, pytest.mark.root]


def test_host_names_resolve_on_their_network(lab):
    net = Net()
    asking, named = net.instance(5), net.instance(6, hostname="db")
    lab.driver.plug(named, rules())
    guest = lab.booted(asking)
    assert lab.guest(named).dhcp()["ip"] == "10.77.0.6"
    answer = guest.run("busybox", "nslookup", "db.novalocal", "10.77.0.1")
    assert "10.77.0.6" in answer.stdout


def test_guest_cannot_take_reserved_or_existing_host_names(lab):
    net = Net()
    asking, named = net.instance(5), net.instance(6, hostname="db")
    evil, worse = net.instance(7, hostname="Metadata"), net.instance(8, hostname="not a name!")
    lab.driver.plug(asking, rules())
    for server in (named, evil, worse):
        lab.driver.plug(server, rules())
    guest = lab.booted(asking)
    assert lab.guest(named).dhcp()["hostname"] == "db"
    assert "hostname" not in lab.guest(evil).dhcp(name="gateway")
    assert lab.guest(worse).dhcp(name="db")["ip"] == "10.77.0.8"
    found = {name: guest.run("busybox", "nslookup", f"{name}.novalocal", "10.77.0.1").stdout.split("Name:")[-1]
             for name in ("metadata", "gateway", "db", "wpad")}
    assert "169.254.169.254" in found["metadata"]
    assert "10.77.0.1" in found["gateway"]
    assert "10.77.0.6" in found["db"]
    assert not [name for name, answer in found.items() if "10.77.0.7" in answer or "10.77.0.8" in answer]


def test_duplicate_host_name_belongs_to_its_first_guest(lab):
    net = Net()
    asking, first, second = net.instance(5), net.instance(6, hostname="db"), net.instance(7, hostname="DB")
    for server in (asking, first, second):
        lab.driver.plug(server, rules())
    guest, owner, other = lab.booted(asking), lab.guest(first), lab.guest(second)

    def found():
        return [address for address in ("10.77.0.6", "10.77.0.7") if address in guest.run(
            "busybox", "nslookup", "db.novalocal", "10.77.0.1").stdout]

    assert owner.dhcp()["hostname"] == "db"
    assert other.dhcp(name="db")["ip"] == "10.77.0.7"
    assert found() == ["10.77.0.6"]
    lab.fresh().start([second, asking, first])
    assert other.dhcp(name="db")["ip"] == "10.77.0.7"
    assert found() == ["10.77.0.6"]
    # The name is free again when its owner is renamed or removed.
    first.hostname = "database"
    lab.driver.plug(first, rules())
    lab.driver.plug(second, rules())
    assert owner.dhcp()["hostname"] == "database"
    assert other.dhcp()["hostname"].lower() == "db"
    assert found() == ["10.77.0.7"]
    lab.driver.unplug(second)
    first.hostname = "db"
    lab.driver.plug(first, rules())
    assert owner.dhcp()["hostname"] == "db"
    assert found() == ["10.77.0.6"]


# --- names of floating addresses -----------------------------------------------------------------------
def served(domain="example.test", version=1, gone=False, **names):
    return ServedDomain(domain=domain, version=version, names=names, removed=gone)


def answer(guest, name):
    """Return the addresses with which the guest's dnsmasq answers for a name."""
    found = guest.run("busybox", "nslookup", "-type=a", name, guest.vif.fixed_ips[0].gateway).stdout
    return [line.split()[-1] for line in found.split("Name:", 1)[-1].splitlines() if line.startswith("Address")
            and not line.endswith(":53")]


def answers(guest, name, wanted):
    """Return True if the name resolves to these addresses within a while. dnsmasq reloads names on a signal."""
    return wait(lambda: answer(guest, name) == wanted)


class Asked:
    """A conductor for the network back end that records its polls."""

    def __init__(self, *domains):
        self.domains = {domain.domain: domain for domain in domains}
        self.questions = []

    def names(self, _ctx, host, known):
        self.questions.append((host, known))
        gone = [served(domain, version, gone=True) for domain, version in known.items() if domain not in self.domains]
        return gone + [told for told in self.domains.values() if told.version > known.get(told.domain, -1)]

    def rules(self, _ctx, known, grouped=False):
        return {}

    def present(self, _ctx, *_args, **_more):
        return []


def test_floating_ip_names_resolve_on_each_network(lab):
    blue, green = (lab.booted(Net(cidr).instance(5)) for cidr in ("10.77.0", "10.78.0"))
    assert answer(blue, "www.example.test") == []
    lab.driver.refresh_names([served(www="203.0.113.7", mail="203.0.113.8"), served("other.test", 1, a="203.0.113.9")])
    for guest in (blue, green):
        assert answers(guest, "www.example.test", ["203.0.113.7"])
        assert answers(guest, "A.Other.test", ["203.0.113.9"])


def test_changed_and_removed_floating_ip_names_are_updated(lab):
    guest = lab.booted(Net().instance(5))
    lab.driver.refresh_names([served(version=2, www="203.0.113.7", mail="203.0.113.8")])
    assert answers(guest, "mail.example.test", ["203.0.113.8"])
    lab.driver.refresh_names([served(version=4, www="203.0.113.9")])
    assert answers(guest, "mail.example.test", [])
    lab.driver.refresh_names([served(version=3, www="203.0.113.1", mail="203.0.113.8"),
                              served("o.test", a="203.0.113.2")])
    assert answers(guest, "a.o.test", ["203.0.113.2"])
    assert answer(guest, "www.example.test") == ["203.0.113.9"]
    assert answer(guest, "mail.example.test") == []
    lab.driver.refresh_names([served(version=5, gone=True)])
    assert answers(guest, "www.example.test", [])
    lab.driver.refresh_names([served(version=4, www="203.0.113.9"), served("o.test", 2, b="203.0.113.3")])
    assert answers(guest, "b.o.test", ["203.0.113.3"])
    assert answer(guest, "www.example.test") == []


def test_floating_ip_names_survive_a_restart_and_are_polled_at_start(lab):
    server = Net().instance(5)
    guest = lab.booted(server)
    lab.driver.refresh_names([served(version=2, www="203.0.113.7"), served("old.test", 1, a="203.0.113.1")])
    assert answers(guest, "www.example.test", ["203.0.113.7"])
    lab.driver.stop()
    desk = Asked(served(version=3, www="203.0.113.8"), served("new.test", 1, a="203.0.113.2"))
    again = lab.fresh()
    again.connect("here", desk)
    again.start([server])
    assert answers(guest, "www.example.test", ["203.0.113.8"])
    assert answers(guest, "a.new.test", ["203.0.113.2"])
    assert answer(guest, "a.old.test") == []
    assert desk.questions[0] == ("here", {"example.test": 2, "old.test": 1})
    assert wait(lambda: len(desk.questions) == 2)  # no further changes


def test_new_network_resolves_known_floating_ip_names(lab):
    lab.driver.refresh_names([served(www="203.0.113.7")])
    assert answer(lab.booted(Net().instance(5)), "www.example.test") == ["203.0.113.7"]


def test_restarted_dnsmasq_resolves_floating_ip_names(lab):
    net = Net()
    server = net.instance(5)
    guest = lab.booted(server)
    lab.driver.start([server])
    lab.driver.refresh_names([served(www="203.0.113.7")])
    process = DhcpServer(StateFiles(CONF.state_path).network(net.id), lab.tag)
    process.stop()
    assert wait(lambda: process.pid() is not None, 10)
    assert answers(guest, "www.example.test", ["203.0.113.7"])


def test_floating_ip_names_cannot_replace_names_of_the_network(lab):
    guest = lab.booted(Net().instance(5, hostname="db"))
    assert guest.dhcp()["hostname"] == "db"
    lab.driver.refresh_names([served("novalocal", 1, metadata="203.0.113.7", db="203.0.113.8", new="203.0.113.9"),
                              served("x.test", 1, d="203.0.113.3", **{
                                  "a b": "203.0.113.1", "c": "203.0.113.2 evil.test"})])
    assert answers(guest, "d.x.test", ["203.0.113.3"])
    assert answer(guest, "metadata.novalocal") == ["169.254.169.254"]
    assert answer(guest, "db.novalocal") == ["10.77.0.5"]
    assert answer(guest, "new.novalocal") == []
    assert answer(guest, "evil.test") == []


def test_floating_ip_names_are_removed_with_the_last_network(lab):
    server = Net().instance(5)
    lab.booted(server)
    lab.driver.refresh_names([served(www="203.0.113.7")])
    folder = f"/run/nova-{lab.tag}"
    assert os.path.exists(f"{folder}/floating-names")
    lab.driver.unplug(server)
    assert not os.path.exists(folder)
