"""Guests resume after a host reboot if configured, with limited concurrency, if they should still run."""

import threading

import pytest

from nova.compute.service import ComputeService
from nova.conf import CONF
from nova.objects.servers import states
from tests.functional.client import wait_for
from tests.functional.conftest import remove_servers
from tests.functional.several_hosts import SECOND, Held, newest_action, set_service


class Booted:
    """The second host: powered off, and rebooted with guests that are not running."""

    def __init__(self, suite, service):
        self.suite, self.machine = suite, service.machine
        self.driver, self._off, self._service, self._boots = self.machine.driver, service, None, 0

    def off(self, *uuids):
        self._off.stop()
        for uuid in uuids:
            self.driver.state.guests.add(uuid, states.SHUTDOWN)

    def start(self, booted=True):
        if booted:
            self._boots += 1
            self.driver.boot = f"boot {self._boots}"
        self._service = self._off = ComputeService(self.suite.transport, host=SECOND, machine=self.machine)
        self._service.start()
        return self._service

    def stop(self):
        if self._service is not None:
            self._service.stop()

    def runs(self, uuid):
        return self.driver.guests.power_state(uuid) == states.RUNNING


@pytest.fixture
def host(suite, second, admin):
    CONF.set_override("resume_guests_state_on_host_boot", True)
    made = Booted(suite, second)
    yield made
    set_service(admin, SECOND, forced_down=False)
    remove_servers(admin)
    made.stop()
    CONF.clear_override("resume_guests_state_on_host_boot")
    CONF.clear_override("resume_guests_at_once", group="compute")


@pytest.fixture
def boot(admin, flavor, image_id):
    def boot():
        uuid = admin.boot(flavor, image_id, availability_zone=f"nova:{SECOND}")
        admin.wait(uuid, "ACTIVE")
        return uuid

    return boot


def test_guests_are_resumed_after_a_host_reboot(host, admin, boot):
    uuids = [boot(), boot()]
    host.off(*uuids)
    host.start()
    wait_for(lambda: all(host.runs(uuid) for uuid in uuids), reason="both guests are running")
    for uuid in uuids:
        assert admin.wait(uuid, "ACTIVE")["OS-EXT-STS:power_state"] == states.RUNNING
        assert newest_action(admin, uuid, "start")["user_id"] is None


def test_compute_restart_without_a_host_reboot_starts_no_guests(host, admin, boot):
    """Check that a guest that stopped without a host reboot makes its server STOPPED."""
    uuid = boot()
    host.off(uuid)
    service = host.start(booted=False)
    service.reconciler.compare()
    admin.wait(uuid, "SHUTOFF")
    assert not host.runs(uuid)


def test_stopped_moved_and_deleted_servers_are_not_resumed(host, pair, admin, boot):
    running, off, gone, elsewhere = boot(), boot(), boot(), boot()
    admin.action(off, "os-stop")
    admin.wait(off, "SHUTOFF")
    host.off(running, off, gone, elsewhere)
    set_service(admin, SECOND, forced_down=True)
    admin.delete(f"/servers/{gone}")
    admin.wait_gone(gone)
    admin.action(elsewhere, "evacuate", {})
    wait_for(lambda: admin.server(elsewhere)["OS-EXT-SRV-ATTR:host"] != SECOND, reason="the server was evacuated")
    admin.wait(elsewhere, "ACTIVE", "SHUTOFF")
    host.start()
    assert not host.runs(running)  # An operator forced the host down, so it receives no orders.
    set_service(admin, SECOND, forced_down=False)
    wait_for(lambda: host.runs(running), reason="the guest is running")
    assert not host.runs(off)
    assert not {gone, elsewhere} & {guest.uuid for guest in host.driver.guests.all()}


def test_server_stopped_before_its_resumption_is_not_started(host, admin, boot, monkeypatch):
    CONF.set_override("resume_guests_at_once", 1, group="compute")
    uuids = [boot(), boot()]
    host.off(*uuids)
    held = Held(host.driver.power, "on", monkeypatch)
    host.start()
    held.wait_until_begun()
    waiting = next(uuid for uuid in uuids if admin.server(uuid)["OS-EXT-STS:task_state"] is None)
    admin.action(waiting, "os-stop", expect=202)
    admin.wait(waiting, "SHUTOFF")
    held.let_go()
    started = next(uuid for uuid in uuids if uuid != waiting)
    wait_for(lambda: host.runs(started), reason="the other guest is running")
    wait_for(lambda: not host._service.reconciler._resumption.wanted, reason="all guests are resumed or skipped")
    assert held.calls == 1


def test_guest_resumption_is_limited_and_pending_servers_stay_active(host, admin, boot):
    CONF.set_override("resume_guests_at_once", 2, group="compute")
    uuids = [boot() for _number in range(5)]
    host.off(*uuids)
    lock, now, most, go = threading.Lock(), [], [], threading.Event()
    real = host.driver.power.on

    def counted(instance, *arguments):
        with lock:
            now.append(instance.uuid)
            most.append(len(now))
        go.wait(30)
        real(instance, *arguments)
        with lock:
            now.remove(instance.uuid)

    host.driver.power.on = counted
    try:
        service = host.start()
        wait_for(lambda: len(most) == 2, reason="two guests are being started")
        service.reconciler.compare()
        assert {admin.server(uuid)["status"] for uuid in uuids} == {"ACTIVE"}
        go.set()
        wait_for(lambda: all(host.runs(uuid) for uuid in uuids), seconds=30, reason="all guests are running")
    finally:
        go.set()
        del host.driver.power.on
    assert max(most) == 2


def test_guest_resumption_continues_after_a_compute_restart(host, admin, boot, monkeypatch):
    CONF.set_override("resume_guests_at_once", 1, group="compute")
    uuids = [boot(), boot()]
    host.off(*uuids)
    held = Held(host.driver.power, "on", monkeypatch)
    service = host.start()
    held.wait_until_begun()
    held.let_go()
    service.stop()
    host.start(booted=False)
    wait_for(lambda: all(host.runs(uuid) for uuid in uuids), seconds=30, reason="all guests are running")
