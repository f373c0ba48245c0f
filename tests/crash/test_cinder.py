"""Kill processes during calls to Cinder: operations continue, and no attachment or snapshot is left over."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nova.objects.servers import states
from nova.operations import REGISTRY
from nova.operations.assisted_snapshots import VolumeSnapshotCreate, VolumeSnapshotDelete
from nova.operations.evacuate import Evacuate
from nova.operations.extend_volume import ExtendVolume
from nova.virt.images import qemuimg
from tests.cinder_service import CinderService, cinder_fixture  # noqa: F401 (fixture)
from tests.crash import invariants, steps
from tests.crash.rounds import Operate, Round
from tests.crash.steps import OPTIONS, Case, Points, When
from tests.crash.test_moves import DESTINATION, SOURCE, Evacuation
from tests.crash.test_steps import kill
from tests.integration.cluster import Cluster
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

# The fields of data on which such steps depend.
_NEEDS = frozenset({"outside_volumes", "binds_volumes", "unbinds_volumes"})
_OPERATIONS = ("build", "attach_volume", "detach_volume", "resize", "live_migrate", "delete", "shelve", "unshelve")
_IMAGE = REGISTRY["create_volume_image"]
_CREATES, _DELETES = VolumeSnapshotCreate, VolumeSnapshotDelete
# Compensations that the failure of a single host never requires: the volumes are kept for the next host, and calls
# that Cinder has received are not undone.
_NEVER = frozenset({("build", "make_volumes"), ("detach_volume", "release")})
# The user's token is lost with a process that dies before it requests the snapshots, so there is no image.
_TOKEN = frozenset({("make_image", "before"), ("make_image", "after"), ("freeze", "before"), ("freeze", "after"),
                    ("take_snapshots", "before")})
_WHENS: tuple[When, ...] = ("before", "after")
_PROJECT = "p" * 32
_PREPARES = 40.0


@pytest.fixture(scope="module")
def cluster(rabbitmq: Rabbit, new_database: Callable[[], str | None], points: Points,
            cinder: CinderService) -> Iterator[Cluster]:
    options = {**OPTIONS, "volume": {"driver": "cinder"}, "cinder": cinder.options()}
    with Cluster(rabbitmq.new_vhost(), new_database(), computes=2, options=options, launcher=points.launcher) as made:
        made.flavor("larger", ram=128, disk=1)
        yield made


def on_volume(nova: Cluster, cinder: CinderService, name: str, **fields: Any) -> str:
    volume = cinder.new(_PROJECT, bootable=True, image={"image_id": "i", "hw_qemu_guest_agent": "yes"})
    return nova.api.boot(name, imageRef="", block_device_mapping_v2=[{
        "source_type": "volume", "uuid": volume, "destination_type": "volume", "boot_index": 0}], **fields)


class OnVolumes(Round):
    """A round of servers that boot from volumes and have guest agents."""

    cinder: CinderService

    def boot(self, name: str) -> str:
        return on_volume(self.nova, self.cinder, name)

    def new_volume(self) -> str:
        return self.cinder.new(_PROJECT)

    def volume_status(self, volume: str) -> str:
        return self.cinder.volumes[volume].status

    def request(self, name: str) -> None:
        if self.names[name].operation is _IMAGE:  # requires the token of its user
            self.nova.api.action(self.uuids[name], "createImage", {"name": "image"})
        else:
            super().request(name)

    def leaves_image(self, case: Case, when: When) -> bool:
        """Return True if the case leaves an image. Shelving a server that boots from a volume creates none."""
        return super().leaves_image(case, when) and case.operation.name != "shelve" and (
            case.operation is not _IMAGE or (case.step.name, when) not in _TOKEN)


def _cases() -> list[Case]:
    """Return the cases of operations that call Cinder."""
    theirs = [(REGISTRY[name], step) for name in _OPERATIONS for step in REGISTRY[name].steps if step.when in _NEEDS]
    return [case for operation, step in [*theirs, *((_IMAGE, step) for step in _IMAGE.steps)]
            for case in (Case(operation, step), Case(operation, step, undo=True))
            if not case.undo or (step.undo and (operation.name, step.name) not in _NEVER)]


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.full), "after"])
def test_kill_during_cinder_calls_leaves_no_attachment_or_snapshot(
        nova: Cluster, points: Points, operate: Operate, cinder: CinderService, monkeypatch: pytest.MonkeyPatch,
        when: When) -> None:
    monkeypatch.setattr(OnVolumes, "cinder", cinder, raising=False)
    # A volume that its host has disconnected cannot be reconnected, so no later failure of that step is injected.
    monkeypatch.setitem(steps.FAILING, "detach_volume", ("detach", "before"))
    everything = OnVolumes(nova, points, _cases(), when, operate)
    kill(nova, points, *everything.holders())
    everything.ends()
    eventually(lambda: _attachments(cinder) == _volumes(nova), invariants.BOUND,
               "the attachments in Nova and in Cinder are identical")
    assert {volume.status for volume in cinder.volumes.values()} <= {"available", "in-use", "reserved"}
    # A shelved server keeps its volumes reserved.
    assert {volume.id for volume in cinder.volumes.values() if volume.status == "reserved"} == {
        volume for server, volume in _volumes(nova)
        if nova.api.show(server)["status"] == states.status(states.SHELVED_OFFLOADED, None)}
    eventually(lambda: sorted(each.metadata["nova_image"] for each in list(cinder.snapshots.values())) == _images(nova),
               invariants.BOUND, "each image has one snapshot, and there are no others")


class OnFiles(OnVolumes):
    """A round of servers with a file-based volume, for which Cinder requests assisted snapshots."""

    share: pathlib.Path
    snapshots: dict[str, str]

    def boot(self, name: str) -> str:
        return self.nova.api.boot(name)

    def file(self, uuid: str) -> tuple[str, str]:
        """Attach another volume to the server; return the id and the file of the volume."""
        volume = self.cinder.new(_PROJECT, kind="nfs", share=str(self.share))
        first = f"volume-{volume}"
        qemuimg.create(str(self.share / first), "qcow2", 1 << 20)
        self._operate(uuid, "attach_volume", volume_id=volume)
        return volume, first

    def _prepare(self, name: str) -> tuple[str, str | None]:
        _name, uuid = super()._prepare(name)
        assert uuid is not None
        volume, first = self.file(uuid)
        snapshot = self.snapshots[name] = self.cinder.assist(volume)
        new = f"{first}.{snapshot}"
        qemuimg.create_overlay(str(self.share / new), str(self.share / first), "qcow2", 1 << 20)
        qemuimg.rebase(str(self.share / new), first, "qcow2")
        wanted = {"volume_id": volume, "snapshot_id": snapshot}
        if self.names[name].operation is _DELETES:
            self._operate(uuid, _CREATES.name, **wanted, new_file=new)
            eventually(lambda: self.told(name) == ("creating", "90%"), _PREPARES,
                       f"snapshot {snapshot} is reported as created")
            self.cinder.snapshots[snapshot].status, self.cinder.snapshots[snapshot].progress = "deleting", "0%"
        else:
            wanted["new_file"] = new
        self.requests[name] = wanted
        return name, uuid

    def told(self, name: str) -> tuple[str, str]:
        found = self.cinder.snapshots[self.snapshots[name]]
        return found.status, found.progress


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.full), "after"])
def test_kill_during_an_assisted_snapshot_is_reported_to_cinder(
        nova: Cluster, points: Points, operate: Operate, cinder: CinderService, monkeypatch: pytest.MonkeyPatch,
        when: When) -> None:
    share = nova.directory / f"share-{when}"
    share.mkdir()
    for name, value in (("cinder", cinder), ("share", share), ("snapshots", {})):
        monkeypatch.setattr(OnFiles, name, value, raising=False)
    chosen = [Case(operation, step, undo) for operation in (_CREATES, _DELETES) for step in operation.steps
              for undo in (False, True)]
    everything = OnFiles(nova, points, chosen, when, operate)
    kill(nova, points, *everything.holders())
    everything.ends()
    expected = {name: (_told(case), "90%") for name, case in everything.names.items()}
    assert {name: everything.told(name) for name in expected} == expected
    cinder.snapshots.clear()


def _told(case: Case) -> str:
    """Return the expected status of the snapshot: an error after a compensation, except for that of the last step."""
    if case.undo and case.step.name != "hand_over":
        return {_CREATES: "error", _DELETES: "error_deleting"}[case.operation]
    return {_CREATES: "creating", _DELETES: "deleting"}[case.operation]


class OnLargerFiles(OnFiles):
    """A round of servers with a file-based volume that Cinder extends."""

    volumes: dict[str, str]

    def _prepare(self, name: str) -> tuple[str, str | None]:
        _name, uuid = Round._prepare(self, name)
        assert uuid is not None
        volume, _first = self.file(uuid)
        self.volumes[name], self.requests[name] = volume, {"volume_id": volume}
        eventually(lambda: self.volume_status(volume) == "in-use", _PREPARES, f"volume {volume} is attached")
        self.cinder.extend(volume, 2, waits=True)
        return name, uuid


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.full)])
def test_kill_during_a_volume_extension_is_reported_to_cinder(
        nova: Cluster, points: Points, operate: Operate, cinder: CinderService, monkeypatch: pytest.MonkeyPatch,
        when: When) -> None:
    share = nova.directory / f"larger-{when}"
    share.mkdir()
    for name, value in (("cinder", cinder), ("share", share), ("volumes", {})):
        monkeypatch.setattr(OnLargerFiles, name, value, raising=False)
    chosen = [Case(ExtendVolume, step, undo) for step in ExtendVolume.steps for undo in (False, True)]
    everything = OnLargerFiles(nova, points, chosen, when, operate)
    kill(nova, points, *everything.holders())
    everything.ends()
    # A failure before any effect is reported as an error; a failure after all effects counts as success.
    expected = {name: ("error_extending", 1) if case.undo and case.step.name != "hand_over" else ("in-use", 2)
                for name, case in everything.names.items()}
    found = {name: cinder.volumes[everything.volumes[name]] for name in expected}
    assert {name: (volume.status, volume.size) for name, volume in found.items()} == expected
    for volume in found.values():
        volume.status = "in-use"


class Evacuated(Evacuation):
    """Evacuations of servers that boot from volumes."""

    cinder: CinderService

    def boot(self, name: str) -> str:
        return on_volume(self.nova, self.cinder, name, host=SOURCE)


@pytest.mark.parametrize("undo", [False, True], ids=["resumed", "failed"])
def test_kill_during_an_evacuation_leaves_volumes_attached_to_the_host(
        nova: Cluster, points: Points, operate: Operate, cinder: CinderService, monkeypatch: pytest.MonkeyPatch,
        undo: bool) -> None:
    monkeypatch.setattr(Evacuated, "cinder", cinder, raising=False)
    chosen = [(Case(Evacuate, step, undo), when) for step in Evacuate.steps if step.when in _NEEDS
              for when in _WHENS if step.undo or not undo]
    moved = Evacuated(nova, points, operate, chosen)
    killed = moved.holders()
    nova.kill(*killed)
    moved.release()
    nova.start(*killed)
    nova.api_returns()
    moved.source_returns()
    moved.ends("ERROR" if undo else "ACTIVE")
    eventually(lambda: _attachments(cinder) == _volumes(nova), invariants.BOUND,
               "the attachments in Nova and in Cinder are identical")
    here = {each.connector["host"] for each in cinder.attachments.values() if each.server in moved.uuids.values()}
    assert here == {SOURCE if undo else DESTINATION}
    nova.delete_all(invariants.BOUND)


def _attachments(cinder: CinderService) -> list[tuple[str, str]]:
    return sorted((each.server, each.volume) for each in list(cinder.attachments.values()))


def _volumes(nova: Cluster) -> list[tuple[str, str]]:
    return sorted((uuid, item["id"]) for uuid, server in nova.api.servers().items()
                  for item in server["os-extended-volumes:volumes_attached"])


def _images(nova: Cluster) -> list[str]:
    return sorted(image["id"] for image in nova.api.get("/images/detail", version="2.35")["images"]
                  if "instance_uuid" in image["metadata"])
