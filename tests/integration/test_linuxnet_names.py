"""Names in the DNS of a network. Namespaces play the guests."""

from __future__ import annotations

import pytest

from tests.integration.linuxnet_lab import (
    Net,
    lab_fixture,  # noqa: F401
    needs_root,
    rules,
)

pytestmark = [needs_root, pytest.mark.root]


def test_names_resolve_on_the_network(lab):
    net = Net()
    asking, named = net.instance(5), net.instance(6, hostname="db")
    lab.driver.plug(named, rules())
    guest = lab.booted(asking)
    assert lab.guest(named).dhcp()["ip"] == "10.77.0.6"
    answer = guest.run("busybox", "nslookup", "db.novalocal", "10.77.0.1")
    assert "10.77.0.6" in answer.stdout


def test_no_guest_takes_the_name_of_what_others_trust(lab):
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


def test_a_name_is_that_of_the_guest_that_had_it_first(lab):
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
    # It is free again with its owner, or when that is called otherwise.
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
