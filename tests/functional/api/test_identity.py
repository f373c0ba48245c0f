"""A host name belongs to the machine that registered it, and the machine to the deployment that it registered with."""

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
    """The file by which the machine knows its deployment; put back after the test."""
    path = os.path.join(CONF.state_path, identity.DEPLOYMENT)
    with open(path) as file:
        content = file.read()
    yield path
    with open(path, "w") as file:
        file.write(content)


@pytest.fixture
def third(suite, admin, monkeypatch):
    """``third()``: a compute of a machine of its own, as one that is no virtual host; it has registered before."""
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


def test_another_machine_under_a_known_name_does_not_start_and_touches_nothing(suite, admin, driver, flavor, image_id,
                                                                              monkeypatch):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    other = ComputeService(suite.transport, host=suite.compute.host, machine=suite.compute.machine)
    monkeypatch.setattr("nova.compute.identity.of_this_machine", new_uuid)
    with pytest.raises(exception.HostIdentityMismatch, match="another machine is registered by this name"):
        other.begin()
    assert [guest.uuid for guest in driver.guests.all()] == [uuid]
    assert admin.server(uuid)["status"] == "ACTIVE"


def test_a_machine_that_was_renamed_does_not_start(suite, admin):
    heartbeat = liveness.heartbeat_client(suite.transport)  # with the host's own key it could not say another name
    machine = new_uuid()
    heartbeat.register(context.admin(), "old-name", "nova-compute", "compute", 1, machine)
    with pytest.raises(exception.HostIdentityMismatch, match="registered as nova-compute of host old-name"):
        heartbeat.register(context.admin(), "new-name", "nova-compute", "compute", 1, machine)
    [old] = admin.get("/os-services", host="old-name")["services"]
    admin.delete(f"/os-services/{old['id']}")


def test_a_host_of_another_deployment_does_not_start_until_its_operator_lets_it(suite, admin, third, remembered):
    with open(remembered, "w") as file:
        file.write(f"{new_uuid()}\n")
    with pytest.raises(exception.HostIdentityMismatch, match=r"belongs to deployment .*, and this database is of"):
        third().begin()
    assert admin.get("/os-services", host=_THIRD)["services"] == []
    os.unlink(remembered)
    third().begin()
    assert service_of(admin, _THIRD)["state"] == "up"
    # The next start finds it in order.
    third().begin()


def test_a_database_that_has_forgotten_a_host_does_not_get_it(suite, admin, third, remembered):
    with pytest.raises(exception.HostIdentityMismatch, match="has registered with this deployment before, but the "
                                                             "database has no record of it"):
        third().begin()
    assert admin.get("/os-services", host=_THIRD)["services"] == []
    os.unlink(remembered)
    third().begin()
    assert service_of(admin, _THIRD)["state"] == "up"


def test_a_host_whose_service_an_operator_deleted_registers_again_once(suite, admin, third, remembered):
    os.unlink(remembered)
    running = third()
    running.begin()
    admin.delete(f"/os-services/{service_of(admin, _THIRD)['id']}")
    running.returned()  # what its next heartbeat comes to
    admin.delete(f"/os-services/{service_of(admin, _THIRD)['id']}")
    running.stop()
    third().begin()
    assert service_of(admin, _THIRD)["state"] == "up"


def test_a_file_with_something_else_than_a_deployment_is_refused(suite, admin, third, remembered):
    with open(remembered, "w") as file:
        file.write("ours\n")
    with pytest.raises(exception.InvalidInput, match="does not contain a deployment id"):
        third().begin()
    assert admin.get("/os-services", host=_THIRD)["services"] == []
