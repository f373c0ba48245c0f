# ruff: noqa: F811 - fixtures of other modules
"""Multiattach volumes of Cinder."""

import pytest

from nova.db import tables
from nova.db.hosts import compute_nodes
from tests.functional.client import wait_for
from tests.functional.several_hosts import refused
from tests.functional.volumes.test_cinder import (  # noqa: F401
    MEMBER,
    attached,
    boot,
    cinder,
    detach,
    from_volume,
    outside,
    server,
    wait_status,
)
from tests.unit.conductor.books import set_columns


def attach(client, server, volume, version="2.60", **values):
    return client.post(f"/servers/{server}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume, **values}},
                       version=version)


def have(cinder, volume, *servers):
    """Check that exactly these servers have the volume."""
    def look():
        return (sorted(each.server for each in cinder.attachments.values() if each.volume == volume and each.complete)
                == sorted(servers) and len(cinder.attachments) == len(servers) and cinder.volumes[volume].status)

    assert wait_for(look, 60,
                    f"{volume} is attached to {len(servers)} servers") == ("in-use" if servers else "available")


@pytest.fixture
def other(admin, flavor, image_id, cinder):
    uuid = admin.boot(flavor, image_id)
    admin.wait(uuid, "ACTIVE")
    return uuid


@pytest.fixture
def shared(cinder):
    return cinder.new(MEMBER, multiattach=True, bootable=True)


def test_multiattach_volume_is_attached_to_and_detached_from_two_servers(member, server, other, cinder, driver, shared):
    attach(member, server, shared)
    have(cinder, shared, server)
    attach(member, other, shared)
    have(cinder, shared, server, other)
    for uuid in (server, other):
        assert attached(member, uuid) == [shared]
        wait_for(lambda uuid=uuid: dict(driver.guest(uuid).volumes) == {"/dev/vdb": shared})
    detach(member, server, shared)
    have(cinder, shared, other)
    assert (attached(member, server), attached(member, other)) == ([], [shared])
    detach(member, other, shared)
    have(cinder, shared)


def test_concurrent_attachments_of_a_multiattach_volume_succeed_in_turn(
        admin, member, server, other, cinder, shared):
    asked, release = cinder.hold("complete_attachment")
    attach(member, server, shared)
    assert asked.wait(20)
    cinder.volumes[shared].status = "in-use"  # The status at the time when Nova accepted the second attachment.
    attach(member, other, shared)
    cinder.volumes[shared].status = "attaching"
    wait_for(lambda: cinder.count("create_attachment") > 1, 20)
    release()
    have(cinder, shared, server, other)


def test_multiattach_volume_is_attached_as_shareable(suite, member, server, cinder, shared, monkeypatch):
    seen, real = [], suite.compute.machine.driver.volumes.attach
    monkeypatch.setattr(suite.compute.machine.driver.volumes, "attach",
                        lambda instance, device: (seen.append(device.connection.shareable), real(instance, device)))
    attach(member, server, shared)
    have(cinder, shared, server)
    assert seen == [True]


def test_delete_server_keeps_other_multiattach_attachments(admin, member, flavor, server, cinder, shared):
    attach(member, server, shared)
    have(cinder, shared, server)
    booted = boot(member, flavor, from_volume(shared, delete_on_termination=True))
    admin.wait(booted, "ACTIVE")
    have(cinder, shared, server, booted)
    admin.delete(f"/servers/{booted}")
    admin.wait_gone(booted)
    have(cinder, shared, server)


def test_invalid_multiattach_requests_are_refused(admin, member, server, other, flavor, cinder, shared):
    code, message = refused(lambda: attach(member, server, shared, version="2.59"))
    assert (code, "2.60" in message) == (400, True)
    code, message = refused(lambda: member.post("/servers", {"server": {
        "name": "s", "flavorRef": flavor, "imageRef": "", "networks": "none",
        "block_device_mapping_v2": [from_volume(shared)]}}, version="2.59"))
    assert (code, "2.60" in message) == (400, True)
    code, message = refused(lambda: boot(member, flavor, from_volume(shared), max_count=2))
    assert (code, message) == (400, "Cannot attach one or more volumes to multiple instances")
    attach(member, server, shared)
    have(cinder, shared, server)
    code, message = refused(lambda: attach(member, server, shared))
    assert (code, "already attached" in message) == (400, True)
    alone = cinder.new(MEMBER)
    attach(member, server, alone)
    wait_status(cinder, alone, "in-use")
    assert refused(lambda: attach(member, other, alone))[0] == 400


def test_attach_multiattach_volume_to_a_shelved_server_is_refused(admin, member, server, cinder, shared):
    member.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED", seconds=60)
    code, message = refused(lambda: attach(member, server, shared))
    assert (code, "shelved" in message) == (400, True)


def test_multiattach_on_a_host_without_support_is_refused(suite, admin, member, flavor, server, cinder, shared):
    core, node = suite.conductor.core, suite.compute.host
    before = core.db.read(lambda connection: compute_nodes.states(connection, None, 1))[0].traits
    set_columns(core, tables.providers, tables.providers.c.name == node, traits=["COMPUTE_NODE"])
    try:
        code, message = refused(lambda: attach(member, server, shared))
    finally:
        set_columns(core, tables.providers, tables.providers.c.name == node, traits=before)
    assert (code, "multiattach" in message) == (409, True)


def test_rebuild_of_a_multiattach_volume_in_use_elsewhere_is_refused(
        admin, member, flavor, image_id, other, cinder, shared):
    booted = boot(member, flavor, from_volume(shared))
    admin.wait(booted, "ACTIVE", seconds=60)
    attach(member, other, shared)
    have(cinder, shared, booted, other)

    def rebuild():
        member.action(booted, "rebuild", {"imageRef": image_id}, version="2.93")

    assert refused(rebuild) == (
        409, f"Volume {shared} cannot be reimaged: it is also attached to other instances: {other}")
    assert (admin.server(booted)["status"], cinder.count("os-reimage")) == ("ACTIVE", 0)
    have(cinder, shared, booted, other)
    detach(member, other, shared)
    have(cinder, shared, booted)
    rebuild()
    wait_for(lambda: cinder.volumes[shared].status == "downloading", 60)
    cinder.volumes[shared].status = "reserved"
    admin.post("/os-server-external-events", {"events": [
        {"name": "volume-reimaged", "server_uuid": booted, "tag": shared, "status": "completed"}]}, version="2.93")
    admin.wait(booted, "ACTIVE", seconds=60)
