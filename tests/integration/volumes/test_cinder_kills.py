"""The only conductor is killed during a request to the volume service; a new conductor completes the operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cinder_service import CinderService, cinder_fixture  # noqa: F401 (fixture)
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

_PROJECT = "p" * 32
# A lease, the start of a conductor and some pauses on a loaded machine.
_SETTLE = 120.0


@pytest.fixture(scope="module")
def nova(rabbitmq: Rabbit, cinder: CinderService) -> Iterator[Cluster]:
    options: dict[str, dict[str, Any]] = {
        "volume": {"driver": "cinder"}, "cinder": cinder.options(),
        "DEFAULT": {"block_device_allocate_retries_interval": 1}}
    with Cluster(rabbitmq.new_vhost(), computes=1, conductors=1, schedulers=1, options=options) as made:
        yield made


@pytest.fixture
def server(nova: Cluster, cinder: CinderService) -> Iterator[str]:
    uuid = nova.api.boot("web")
    nova.api.wait(uuid, "ACTIVE", 60)
    yield uuid
    nova.delete_all(60)
    nova.audit()
    assert cinder.attachments == {}


def path(server: str, volume: str = "") -> str:
    return f"/servers/{server}/os-volume_attachments" + (f"/{volume}" if volume else "")


def attach(nova: Cluster, server: str, volume: str) -> None:
    nova.api.post(path(server), {"volumeAttachment": {"volumeId": volume}})


def settles(cinder: CinderService, volume: str, status: str, servers: list[str]) -> None:
    eventually(lambda: (cinder.volumes[volume].status, cinder.servers_of(volume)) == (status, servers), _SETTLE,
               f"volume {volume} is {status}", interval=0.3)


def killed_at(nova: Cluster, cinder: CinderService, verb: str, after: bool, act: Any) -> None:
    """Kill the conductor before or (``after``) after the service has executed the request ``verb``."""
    asked, release = cinder.hold(verb, after)
    act()
    assert asked.wait(60)
    nova.kill("conductor-1")
    release()
    nova.start("conductor-1")


_MOMENTS = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


@_MOMENTS
@pytest.mark.parametrize("verb", ["create_attachment", "update_attachment", "complete_attachment"])
def test_attachment_completes_after_the_conductor_was_killed(nova: Cluster, cinder: CinderService, server: str,
                                                             verb: str, after: bool) -> None:
    volume = cinder.new(_PROJECT)
    killed_at(nova, cinder, verb, after, lambda: attach(nova, server, volume))
    settles(cinder, volume, "in-use", [server])
    eventually(lambda: nova.api.request("GET", path(server)).status_code == 200, 60, "the API answers")
    assert [item["volumeId"] for item in nova.api.get(path(server))["volumeAttachments"]] == [volume]


@_MOMENTS
@pytest.mark.parametrize("verb", ["os-begin_detaching", "delete_attachment"])
def test_detachment_completes_after_the_conductor_was_killed(nova: Cluster, cinder: CinderService, server: str,
                                                             verb: str, after: bool) -> None:
    volume = cinder.new(_PROJECT)
    attach(nova, server, volume)
    settles(cinder, volume, "in-use", [server])
    eventually(nova.books_balance, 60, "the records are consistent after the attachment")
    killed_at(nova, cinder, verb, after, lambda: nova.api.delete(path(server, volume)))
    settles(cinder, volume, "available", [])
    nova.api_returns(60)
    eventually(lambda: not nova.api.get(path(server))["volumeAttachments"], 60, "the server has no volume")


def test_created_volume_is_reused_after_the_conductor_was_killed(nova: Cluster, cinder: CinderService,
                                                                 server: str) -> None:
    before = set(cinder.volumes)
    other: list[str] = []
    disk = {"source_type": "blank", "destination_type": "volume", "volume_size": 1, "delete_on_termination": True}
    root = {"source_type": "image", "uuid": nova.api.image_id, "destination_type": "local", "boot_index": 0}
    killed_at(nova, cinder, "create_volume", True, lambda: other.append(
        nova.api.boot("other", block_device_mapping_v2=[root, disk])))
    nova.api_returns(60)
    nova.api.wait(other[0], "ACTIVE", _SETTLE)
    made, = set(cinder.volumes) - before
    assert cinder.servers_of(made) == other
    nova.api.delete(f"/servers/{other[0]}")
    nova.api.wait_gone(other, 60)
    assert set(cinder.volumes) == before
