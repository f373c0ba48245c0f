"""Size and rate limits for reports of a compromised compute host."""

import datetime
import threading
import time

import pytest

from nova import exception
from nova.bus import deadlines
from nova.bus.message_signing import Keys
from nova.conductor.feeds.host_rates import HostRates
from nova.conf import CONF
from nova.db import tables
from nova.objects.hosts.service import WorkerStats
from nova.objects.servers.action import Failure
from nova.objects.servers.guest import GuestStatus
from nova.rpcapi.by_hosts import Guests, Heartbeat, NetworkHosts
from tests.functional.client import wait_for
from tests.functional.hosts.test_hostile_host import CTX, counted_volume, evil  # noqa: F401
from tests.functional.listening import listen
from tests.functional.several_hosts import SECOND


def test_size_of_host_load_and_connector_reports_is_limited(evil):  # noqa: F811
    """Check the worker limit: an empty worker is a single byte in a message, but an object in every service list."""
    before = evil.rows()
    with pytest.raises(exception.InvalidInput, match="load"):
        evil.proxy(Heartbeat).beat(CTX, SECOND, "nova-compute", [], [WorkerStats()] * 1001)
    for connector in ({"x": "y" * 100_000}, {"x": [[]] * 20_000}):
        with pytest.raises(exception.InvalidInput, match="connector"):
            evil.proxy(Heartbeat).register(CTX, SECOND, "nova-compute", "compute", 4, connector=connector)
    assert evil.rows() == before


@pytest.fixture
def network(evil):  # noqa: F811
    """Create a tunnel network on which the victim has an address."""
    def make(connection):
        connection.execute(tables.networks.insert().values(
            uuid="tenant", label="tenant", cidr="10.8.0.0/24", gateway="10.8.0.1", dns=[], mtu=1450,
            bridge="br-tenant", vni=77, next_offset=2, project_id="p",
            created_at=datetime.datetime.now(datetime.UTC)))
        connection.execute(tables.fixed_ips.insert().values(
            network_uuid="tenant", address="10.8.0.2", instance_uuid=evil.victim))

    def remove(connection):
        for table in (tables.fixed_ips, tables.network_hosts):
            connection.execute(table.delete().where(table.c.network_uuid == "tenant"))
        connection.execute(tables.networks.delete().where(tables.networks.c.uuid == "tenant"))

    evil.db.write(make)
    yield "tenant"
    evil.db.write(remove)


def test_invalid_tunnel_address_is_refused(evil, network):  # noqa: F811
    """Check addresses that would break the peer list of other hosts on the network."""
    desk = evil.proxy(NetworkHosts, CONF.host)
    for address in ("", "nonsense", "192.0.2.6\nlink del br0", "192.0.2.6/24", "fe80::1%eth0", "224.0.0.1", "0.0.0.0"):
        with pytest.raises(exception.InvalidInput, match="tunnel"):
            desk.present(CTX, CONF.host, address, {network: -1})
    for given, told in (("192.0.2.6", "192.0.2.6"), ("2001:DB8:0::6", "2001:db8::6")):
        [peers] = desk.present(CTX, CONF.host, given, {network: -1})
        assert peers.hosts == {CONF.host: told}


def test_repeated_volume_usage_is_notified_once(admin, evil):  # noqa: F811
    with counted_volume(admin, evil) as counted, listen(evil.suite) as listener:
        evil.proxy(Guests, CONF.host).volumes_used(CTX, CONF.host, [counted] * 5)
        evil.proxy(Guests).hypervisor_lost(CTX, SECOND, "192.0.2.1", Failure(message="reported after all others"))
        wait_for(lambda: len(listener.versioned) > 1, reason="the last report is published")
        assert [message["event_type"] for message in listener.versioned] == [
            "volume.usage", "libvirt.connect.error"]


def test_notification_rate_of_a_host_is_limited(evil, caplog, monkeypatch):  # noqa: F811
    """Check the limits of notifications, which are stored until they are sent, and of the log line about the host."""
    monkeypatch.setattr(evil.suite.conductor.core, "host_rates", HostRates(lost=10))
    with listen(evil.suite) as listener:
        for number in range(40):
            evil.proxy(Guests).hypervisor_lost(CTX, SECOND, "192.0.2.1", Failure(message=f"number {number}"))
        evil.proxy(Guests, CONF.host).hypervisor_lost(CTX, CONF.host, "192.0.2.2", Failure(message="another host's"))
        wait_for(lambda: any("another host's" in str(each) for each in listener.versioned),
                 reason="the report of the other host is published")
        assert 1 < len(listener.versioned) < 30
    assert 1 < sum("has lost its hypervisor" in record.getMessage() for record in caplog.records) < 30
    assert sum("exceed its rate limit" in record.getMessage() for record in caplog.records) == 1


def test_rate_of_actions_triggered_by_a_host_is_limited(admin, evil, monkeypatch):  # noqa: F811
    """Check the limit, since each action is a row of the server that replaces earlier ones in its list."""
    monkeypatch.setattr(evil.suite.conductor.core, "host_rates", HostRates(of_guest=3))
    wrong = GuestStatus(uuid=evil.victim, power_state=4)
    for _time in range(12):
        evil.proxy(Guests, CONF.host).power_states(CTX, CONF.host, [wrong])
        wait_for(lambda: admin.server(evil.victim)["OS-EXT-STS:task_state"] is None, reason="the report is processed")
    begun = admin.get(f"/servers/{evil.victim}/os-instance-actions")["instanceActions"]
    assert 3 <= sum(action["action"] == "stop" for action in begun) < 9


def test_step_result_size_is_limited(suite, admin, second, flavor, image_id, monkeypatch):
    """Check that the step fails, since lists read the results of many actions."""
    real = second.runner._report

    def report(job, told):
        told.results["plugs"] = ["x" * 300_000]
        real(job, told)

    monkeypatch.setattr(second.runner, "_report", report)
    uuid = admin.boot(flavor, image_id, availability_zone=f"nova:{SECOND}")
    assert "more than" in admin.wait(uuid, "ERROR")["fault"]["message"]
    kept = suite.conductor.core.db.read(lambda connection: connection.execute(
        tables.actions.select().where(tables.actions.c.instance_uuid == uuid)).all())
    assert kept
    assert len(str(kept)) < 300_000


@pytest.mark.parametrize("signed", [True, False])
def test_host_cannot_let_messages_of_another_machine_expire(suite, admin, evil, monkeypatch, signed):  # noqa: F811
    """Orders contain the clock id of the conductor's machine. A host repeats it with times from the future."""
    own, stamp = threading.current_thread(), deadlines.stamp

    def by_one_clock(seconds):
        ahead = 1e6 if threading.current_thread() is own else 0.0
        return {**stamp(seconds), "clock": "controller", "steady": time.monotonic() + ahead}

    monkeypatch.setattr(deadlines, "stamp", by_one_clock)
    if signed:
        evil.call("guests.whereabouts")
    else:
        monkeypatch.setattr(Keys, "sign", lambda *_arguments: {"by": "", "generation": 1, "mac": "x", "covers": []})
        with pytest.raises(exception.CallerRefused):
            evil.call("guests.whereabouts")
        monkeypatch.undo()
        monkeypatch.setattr(deadlines, "stamp", by_one_clock)
    assert admin.get(f"/servers/{evil.victim}")["server"]["id"] == evil.victim
