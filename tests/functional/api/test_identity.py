"""Binding of a host name to the machine that registered it, and of a machine to its deployment."""

import contextlib
import os

import pytest

from nova import bus, context, exception
from nova.compute import identity
from nova.compute.service import ComputeService
from nova.conf import CONF
from nova.objects.base import new_uuid
from nova.service import liveness
from tests.functional.several_hosts import service_of

_THIRD = "third"


@pytest.fixture
def remembered():
    """Return the path of the file with the deployment id of the machine, and restore the file after the test."""
    path = os.path.join(CONF.state_path, identity.DEPLOYMENT)
    with open(path) as file:
        content = file.read()
    yield path
    with open(path, "w") as file:
        file.write(content)


@pytest.fixture
def third(suite, admin, monkeypatch):
    """Return a function that creates a compute service on a separate, non-virtual machine that registered before."""
    transport, machine, made = bus.connect(CONF, _THIRD), new_uuid(), []

    def make():
        made.append(ComputeService(transport, host=_THIRD))
        monkeypatch.setattr(made[-1].machine.driver, "virtual", False)
        return made[-1]

    monkeypatch.setattr("nova.compute.identity.of_this_machine", lambda: machine)
    yield make
    for service in made:
        service.stop()
    with contextlib.suppress(IndexError):
        admin.delete(f"/os-services/{service_of(admin, _THIRD)['id']}")


def test_host_name_of_another_machine_prevents_the_start(suite, admin, driver, flavor, image_id, monkeypatch):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    other = ComputeService(suite.transport, host=suite.compute.host, machine=suite.compute.machine)
    monkeypatch.setattr("nova.compute.identity.of_this_machine", new_uuid)
    with pytest.raises(exception.HostIdentityMismatch, match="another machine is registered by this name"):
        other.begin()
    assert [guest.uuid for guest in driver.guests.all()] == [uuid]
    assert admin.server(uuid)["status"] == "ACTIVE"


def test_renamed_machine_does_not_start(suite, admin):
    heartbeat = liveness.heartbeat_client(suite.transport)  # the host's own key cannot register another name
    machine = new_uuid()
    heartbeat.register(context.admin(), "old-name", "nova-compute", "compute", 1, machine)
    with pytest.raises(exception.HostIdentityMismatch, match="registered as nova-compute of host old-name"):
        heartbeat.register(context.admin(), "new-name", "nova-compute", "compute", 1, machine)
    [old] = admin.get("/os-services", host="old-name")["services"]
    admin.delete(f"/os-services/{old['id']}")


def test_host_of_another_deployment_starts_after_its_file_is_deleted(suite, admin, third, remembered):
    with open(remembered, "w") as file:
        file.write(f"{new_uuid()}\n")
    with pytest.raises(exception.HostIdentityMismatch, match=r"belongs to deployment .*, and this database is of"):
        third().begin()
    assert admin.get("/os-services", host=_THIRD)["services"] == []
    os.unlink(remembered)
    third().begin()
    assert service_of(admin, _THIRD)["state"] == "up"
    # The next start succeeds, too.
    third().begin()


def test_registered_host_missing_from_the_database_does_not_start(suite, admin, third, remembered):
    with pytest.raises(exception.HostIdentityMismatch, match="has registered with this deployment before, but the "
                                                             "database has no record of it"):
        third().begin()
    assert admin.get("/os-services", host=_THIRD)["services"] == []
    os.unlink(remembered)
    third().begin()
    assert service_of(admin, _THIRD)["state"] == "up"


def test_host_whose_service_was_deleted_registers_again_once(suite, admin, third, remembered):
    os.unlink(remembered)
    running = third()
    running.begin()
    admin.delete(f"/os-services/{service_of(admin, _THIRD)['id']}")
    running.returned()  # called by the next heartbeat
    admin.delete(f"/os-services/{service_of(admin, _THIRD)['id']}")
    running.stop()
    third().begin()
    assert service_of(admin, _THIRD)["state"] == "up"


def test_invalid_deployment_file_is_refused(suite, admin, third, remembered):
    with open(remembered, "w") as file:
        file.write("ours\n")
    with pytest.raises(exception.InvalidInput, match="does not contain a deployment id"):
        third().begin()
    assert admin.get("/os-services", host=_THIRD)["services"] == []
