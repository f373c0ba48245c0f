"""A host name belongs to the machine that registered it: another machine under that name does not start."""

import pytest

from nova import context, exception
from nova.compute.service import ComputeService
from nova.objects.base import new_uuid
from nova.service import liveness


def test_another_machine_under_a_known_name_does_not_start_and_touches_nothing(suite, admin, driver, flavor, image_id,
                                                                              monkeypatch):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    other = ComputeService(suite.transport, host=suite.compute.host, machine=suite.compute.machine)
    monkeypatch.setattr("nova.compute.identity.of_this_machine", new_uuid)
    with pytest.raises(exception.HostIdentityMismatch, match="another machine is registered by this name"):
        other.begin()
    assert [guest.uuid for guest in driver.guests()] == [uuid]
    assert admin.server(uuid)["status"] == "ACTIVE"


def test_a_machine_that_was_renamed_does_not_start(suite, admin):
    heartbeat = liveness.conductors(suite.transport)  # with the host's own key it could not say another name
    machine = new_uuid()
    heartbeat.register(context.admin(), "old-name", "nova-compute", "compute", 1, machine)
    with pytest.raises(exception.HostIdentityMismatch, match="registered as nova-compute of host old-name"):
        heartbeat.register(context.admin(), "new-name", "nova-compute", "compute", 1, machine)
    [old] = admin.get("/os-services", host="old-name")["services"]
    admin.delete(f"/os-services/{old['id']}")
