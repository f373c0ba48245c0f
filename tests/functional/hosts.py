"""What tests with several hosts ask of the suite."""

import threading

import pytest

from tests.functional.client import Failed, wait_for

SECOND = "second"


def newest_action(admin, uuid, name, version="2.96"):
    """The newest action of this name, with its events."""
    found = admin.get(f"/servers/{uuid}/os-instance-actions", version=version)["instanceActions"]
    newest = next(action for action in found if action["action"] == name)
    return admin.get(f"/servers/{uuid}/os-instance-actions/{newest['request_id']}", version=version)["instanceAction"]


def service_of(admin, host):
    return admin.get("/os-services", host=host, binary="nova-compute")["services"][0]


def set_service(admin, host, **changes):
    admin.put(f"/os-services/{service_of(admin, host)['id']}", changes)


def told_scheduler(suite, host, usable):
    """Wait until the scheduler knows whether it may use a host."""
    def knows():
        with suite.scheduler.fleet.view() as view:
            return bool((view.on_hosts([host]) & view.alive & view.up & ~view.disabled).any()) == usable

    wait_for(knows, reason=f"the scheduler knows whether {host} is usable")


def nothing_used(suite):
    with suite.scheduler.fleet.view() as view:
        return not any(view.num_instances[view.alive]) and not any(view.failed_builds[view.alive])


def migration_of(admin, uuid):
    """The newest migration of a server."""
    return admin.get("/os-migrations", instance_uuid=uuid)["migrations"][0]


def events_of(admin, uuid, action):
    """(event, result, host) of the newest action of this name, the first one first; the action ended without error."""
    told = newest_action(admin, uuid, action)
    assert told["message"] is None, told
    return [(event["event"], event["result"], event["host"]) for event in reversed(told["events"])]


def error_of(admin, uuid, action):
    """Why the newest action of this name failed."""
    told = newest_action(admin, uuid, action)
    assert told["message"] == "Error"
    return next(event["details"] for event in told["events"] if event["details"])


def used(admin, host):
    """(VCPUs, servers) that a host counts."""
    node = next(node for node in admin.get("/os-hypervisors/detail", version="2.87")["hypervisors"]
                if node["service"]["host"] == host)
    return node["vcpus_used"], node["running_vms"]


def refused(act):
    """(code, message) of a request that is refused."""
    with pytest.raises(Failed) as failed:
        act()
    return failed.value.code, failed.value.message


class Held:
    """A verb of a hypervisor that does what it does when it is let go; ``calls``: how often it was begun."""

    def __init__(self, driver, verb, monkeypatch):
        self.calls = 0
        self._begun, self._go, self._real = threading.Event(), threading.Event(), getattr(driver, verb)
        monkeypatch.setattr(driver, verb, self._call)

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
    """Stands where others wait for an event; they pass one by one, in the order in which they came."""

    def __init__(self):
        self._changed, self._came, self._passed = threading.Condition(), 0, 0

    def wait(self, _seconds=None):
        with self._changed:
            self._came += 1
            mine = self._came
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._passed >= mine, 120)

    def set(self):
        """Whoever sets the event that this stands for lets nobody pass."""

    def let_one_pass(self, waiting):
        """The first one, once so many wait."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._came - self._passed >= waiting, 60)
            self._passed += 1
            self._changed.notify_all()

    def open(self):
        """For all, from now on."""
        with self._changed:
            self._passed = float("inf")
            self._changed.notify_all()


class Pair:
    """Two hosts; servers begin on the first one."""

    def __init__(self, suite, admin, second, flavor, image_id):
        self.first, self.second, self.admin = suite.compute, second, admin
        self.flavor, self.image_id = flavor, image_id

    def boot(self, **values):
        uuid = self.admin.boot(self.flavor, self.image_id, availability_zone=f"nova:{self.first.host}", **values)
        self.admin.wait(uuid, "ACTIVE")
        return uuid

    def where(self, uuid):
        """The hosts on which the guest is, and those that have disks of it (also such that were set aside)."""
        guests, disks = [], []
        for service in (self.first, self.second):
            driver = service.machine.driver
            if uuid in [guest.uuid for guest in driver.guests()]:
                guests.append(service.host)
            if driver.disk(uuid) or driver.disk(uuid, aside=True):
                disks.append(service.host)
        return guests, disks

    def only_on(self, uuid, service):
        wait_for(lambda: self.where(uuid) == ([service.host], [service.host]), reason=self.where(uuid))
        return True
