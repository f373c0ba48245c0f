"""Helpers of tests with several hosts."""

import threading

import pytest

from tests.functional.client import Failed, wait_for

SECOND = "second"


def newest_action(admin, uuid, name, version="2.96"):
    """Return the newest action of this name, with its events."""
    actions = admin.get(f"/servers/{uuid}/os-instance-actions", version=version)["instanceActions"]
    newest = next(action for action in actions if action["action"] == name)
    return admin.get(f"/servers/{uuid}/os-instance-actions/{newest['request_id']}", version=version)["instanceAction"]


def service_of(admin, host):
    return admin.get("/os-services", host=host, binary="nova-compute")["services"][0]


def set_service(admin, host, **changes):
    admin.put(f"/os-services/{service_of(admin, host)['id']}", changes)


def wait_scheduler(suite, host, usable):
    """Wait until the scheduler considers the host usable, or (``usable`` False) unusable."""
    def matches():
        with suite.scheduler.fleet.view() as view:
            return bool((view.on_hosts([host]) & view.alive & view.up & ~view.disabled).any()) == usable

    wait_for(matches, reason=f"usability of {host} in the scheduler: {usable}")


def usage_now(suite):
    """Return (servers, consecutive failed builds) of the hosts that the scheduler considers alive."""
    with suite.scheduler.fleet.view() as view:
        return view.num_instances[view.alive].tolist(), view.failed_builds[view.alive].tolist()


def nothing_used(suite):
    return not any(any(numbers) for numbers in usage_now(suite))


def migration_of(admin, uuid):
    """Return the newest migration of a server."""
    return admin.get("/os-migrations", instance_uuid=uuid)["migrations"][0]


def events_of(admin, uuid, action):
    """Return (event, result, host) of the newest action of this name, oldest first; fails if the action failed."""
    newest = newest_action(admin, uuid, action)
    assert newest["message"] is None, newest
    return [(event["event"], event["result"], event["host"]) for event in reversed(newest["events"])]


def error_of(admin, uuid, action):
    """Return the error of the newest action of this name."""
    newest = newest_action(admin, uuid, action)
    assert newest["message"] == "Error"
    return next(event["details"] for event in newest["events"] if event["details"])


def used(admin, host):
    """Return (VCPUs, servers) used on a host."""
    node = next(node for node in admin.get("/os-hypervisors/detail", version="2.87")["hypervisors"]
                if node["service"]["host"] == host)
    return node["vcpus_used"], node["running_vms"]


def refused(act):
    """Return (code, message) of a request that fails."""
    with pytest.raises(Failed) as failed:
        act()
    return failed.value.code, failed.value.message


class Held:
    """A method of a driver's role that blocks until :meth:`let_go`; ``calls``: number of calls."""

    def __init__(self, role, method, monkeypatch):
        self.calls = 0
        self._begun, self._go, self._real = threading.Event(), threading.Event(), getattr(role, method)
        monkeypatch.setattr(role, method, self._call)

    def _call(self, *args, **named):
        self.calls += 1
        self._begun.set()
        self._go.wait(120)
        return self._real(*args, **named)

    def wait_until_begun(self):
        assert self._begun.wait(30)

    def let_go(self):
        self._go.set()


class Turnstile:
    """A replacement of an event whose waiters pass one by one, in order of arrival."""

    def __init__(self):
        self._changed, self._came, self._passed = threading.Condition(), 0, 0

    def wait(self, _seconds=None):
        with self._changed:
            self._came += 1
            mine = self._came
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._passed >= mine, 120)

    def set(self):
        """Ignore the call: only let_one_pass() and open() release waiters."""

    def let_one_pass(self, waiting):
        """Release the first waiter, once ``waiting`` threads wait."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._came - self._passed >= waiting, 60)
            self._passed += 1
            self._changed.notify_all()

    def open(self):
        """Release all current and future waiters."""
        with self._changed:
            self._passed = float("inf")
            self._changed.notify_all()


class Pair:
    """Two hosts; servers boot on the first host."""

    def __init__(self, suite, admin, second, flavor, image_id):
        self.first, self.second, self.admin = suite.compute, second, admin
        self.flavor, self.image_id = flavor, image_id

    def boot(self, **values):
        uuid = self.admin.boot(self.flavor, self.image_id, availability_zone=f"nova:{self.first.host}", **values)
        self.admin.wait(uuid, "ACTIVE")
        return uuid

    def where(self, uuid):
        """Return the hosts with the guest, and the hosts with disks of it (including disks renamed)."""
        guests, disks = [], []
        for service in (self.first, self.second):
            driver = service.machine.driver
            if uuid in [guest.uuid for guest in driver.guests.all()]:
                guests.append(service.host)
            if driver.disk(uuid) or driver.disk(uuid, aside=True):
                disks.append(service.host)
        return guests, disks

    def only_on(self, uuid, service):
        wait_for(lambda: self.where(uuid) == ([service.host], [service.host]), reason=self.where(uuid))
        return True
