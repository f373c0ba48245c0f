"""Volumes of a real Cinder on NFS attached to servers, with users from a real Keystone."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cluster import Cluster, Place
from tests.integration.processes import eventually, free_port
from tests.integration.rabbit import Rabbit
from tests.integration.volumes.real_cinder import RealCinder, cinder_fixture, needs_cinder  # noqa: F401 (fixture)

pytestmark = [needs_cinder, pytest.mark.root]

_HOST, _OTHER = "nfs-host", "nfs-other"


@pytest.fixture(scope="module")
def nova(rabbitmq: Rabbit, cinder: RealCinder) -> Iterator[Cluster]:
    options: dict[str, dict[str, Any]] = {
        "volume": {"driver": "cinder"}, "cinder": cinder.options(), "api": {"auth_strategy": "keystone"},
        "keystone_authtoken": cinder.middleware()}
    made = Cluster(rabbitmq.new_vhost(), computes=0, conductors=1, schedulers=1, options=options,
                   places=[Place(host, cinder.mounting(), {"metadata": {"port": free_port()}})
                           for host in (_HOST, _OTHER)])
    made.api.sign_in(cinder.token())
    with made:
        yield made


@pytest.fixture
def server(nova: Cluster, cinder: RealCinder) -> Iterator[str]:
    uuid = nova.api.boot("web", availability_zone=f"nova:{_HOST}")
    nova.api.wait(uuid, "ACTIVE", 60)
    yield uuid
    nova.delete_all(120)
    nova.audit()
    assert cinder.attachments() == []


def path(server: str, volume: str = "") -> str:
    return f"/servers/{server}/os-volume_attachments" + (f"/{volume}" if volume else "")


def disk_of(nova: Cluster, volume: str) -> pathlib.Path:
    """Return the path of the volume's file in the mount namespace of the compute host."""
    root = pathlib.Path(f"/proc/{nova.processes[f'compute-{_HOST}'].pid}/root")
    found = list(root.joinpath(*nova.directory.parts[1:], "mnt").glob(f"*/volume-{volume}"))
    assert len(found) == 1, found
    return found[0]


def test_nfs_volume_is_attached_and_detached(nova: Cluster, cinder: RealCinder, server: str) -> None:
    volume = cinder.new()
    nova.api.post(path(server), {"volumeAttachment": {"volumeId": volume}})
    cinder.wait(volume, "in-use")
    shown, = cinder.volume(volume)["attachments"]
    assert (shown["server_id"], shown["host_name"], shown["device"]) == (server, _HOST, "/dev/vdb")
    assert disk_of(nova, volume).stat().st_size == 1 << 30
    item, = nova.api.get(path(server))["volumeAttachments"]
    assert item["attachment_id"] == shown["attachment_id"]
    refused = nova.api.request("POST", path(server), {"volumeAttachment": {"volumeId": volume}})
    assert (refused.status_code, "already attached" in refused.text) == (400, True)

    nova.api.delete(path(server, volume))
    cinder.wait(volume, "available")
    assert nova.api.get(path(server))["volumeAttachments"] == []


def test_servers_boot_from_cinder_volumes(nova: Cluster, cinder: RealCinder, server: str) -> None:
    system = cinder.new()
    cinder.ask("POST", f"/volumes/{system}/action", {"os-set_bootable": {"bootable": True}})
    booted = nova.api.boot("booted", imageRef="", availability_zone=f"nova:{_HOST}", block_device_mapping_v2=[
        {"source_type": "volume", "uuid": system, "destination_type": "volume", "boot_index": 0},
        {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "delete_on_termination": True}])
    nova.api.wait(booted, "ACTIVE", 120)
    devices = nova.api.get(path(booted))["volumeAttachments"]
    assert [item["device"] for item in devices] == ["/dev/vda", "/dev/vdb"]
    made = devices[1]["volumeId"]
    assert (cinder.volume(made)["name"], cinder.volume(made)["status"]) == (f"{booted}-blank-vol", "in-use")
    assert disk_of(nova, made).stat().st_size == 1 << 30
    nova.api.delete(f"/servers/{booted}")
    nova.api.wait_gone([booted], 120)
    cinder.wait(system, "available")
    eventually(lambda: made not in [volume["id"] for volume in cinder.ask("GET", "/volumes")["volumes"]], 60,
               "the new volume is deleted with its server")


@pytest.mark.parametrize("name", ["conductor-1", f"compute-{_HOST}"])
def test_cinder_attachment_completes_after_a_service_was_killed(nova: Cluster, cinder: RealCinder, server: str,
                                                                name: str) -> None:
    volume = cinder.new()
    nova.api.post(path(server), {"volumeAttachment": {"volumeId": volume}})
    eventually(lambda: cinder.volume(volume)["status"] != "available", 60, "the attachment has begun", interval=0.05)
    nova.kill(name)
    nova.start(name)
    cinder.wait(volume, "in-use")
    nova.api_returns(60)
    assert [item["instance"] for item in cinder.attachments()] == [server]
    with contextlib.suppress(AssertionError):
        nova.wait_ready(60)
    nova.api.delete(f"/servers/{server}")
    nova.api.wait_gone([server], 120)
    cinder.wait(volume, "available")


def test_cinder_attachment_follows_migrations_of_the_server(nova: Cluster, cinder: RealCinder, server: str) -> None:
    volume = cinder.new()
    nova.api.post(path(server), {"volumeAttachment": {"volumeId": volume}})
    cinder.wait(volume, "in-use")
    for action, value, status, host in _MOVES:
        nova.api.action(server, action, value)
        eventually(lambda status=status, host=host: _is(nova, server, status, host), 120,  # type: ignore[misc]
                   f"the server is {status} on {host} after {action}")
        shown, = cinder.volume(volume)["attachments"]
        item, = nova.api.get(path(server))["volumeAttachments"]
        assert (shown["server_id"], shown["host_name"], shown["device"]) == (server, host, "/dev/vdb")
        assert (item["attachment_id"], cinder.volume(volume)["status"]) == (shown["attachment_id"], "in-use")
        assert len(cinder.attachments()) == 1


def _is(nova: Cluster, server: str, status: str, host: str) -> bool:
    shown = nova.api.show(server)
    return (shown["status"], shown["OS-EXT-SRV-ATTR:host"], shown["OS-EXT-STS:task_state"]) == (status, host, None)


_MOVES = [
    ("os-migrateLive", {"host": None, "block_migration": "auto"}, "ACTIVE", _OTHER),
    ("migrate", None, "VERIFY_RESIZE", _HOST), ("revertResize", None, "ACTIVE", _OTHER),
    ("migrate", None, "VERIFY_RESIZE", _HOST), ("confirmResize", None, "ACTIVE", _HOST)]


def test_volume_extended_event_reports_the_result_to_cinder(nova: Cluster, cinder: RealCinder, server: str) -> None:
    """Cinder's NFS driver does not extend attached volumes, but it accepts the report."""
    volume = cinder.new()
    nova.api.post(path(server), {"volumeAttachment": {"volumeId": volume}})
    cinder.wait(volume, "in-use")

    def act(action: str, **values: Any) -> None:
        cinder.ask("POST", f"/volumes/{volume}/action", {action: values})

    def told(message: str | None) -> None:
        nova.api.post("/os-server-external-events", {"events": [
            {"name": "volume-extended", "server_uuid": server, "tag": volume}]}, "2.51")
        actions = f"/servers/{server}/os-instance-actions"

        def ended() -> bool:
            newest = nova.api.get(actions)["instanceActions"][0]
            events = nova.api.get(f"{actions}/{newest['request_id']}")["instanceAction"]["events"]
            return bool(newest["action"] == "extend_volume" and newest["message"] == message and events
                        and all(event["finish_time"] for event in events))

        eventually(ended, 60, f"the extension ended with {message}")

    told(None)
    cinder.ask("POST", f"/volumes/{volume}/metadata", {"metadata": {"extend_new_size": "2"}})
    act("os-reset_status", status="extending")
    told("Error")
    newest = nova.api.get(f"/servers/{server}/os-instance-actions")["instanceActions"][0]
    events = nova.api.get(f"/servers/{server}/os-instance-actions/{newest['request_id']}")["instanceAction"]["events"]
    assert "Invalid volume" in str(events), "the reported action was not processed by Cinder"
    assert cinder.volume(volume)["size"] == 1
    act("os-reset_status", status="in-use")
