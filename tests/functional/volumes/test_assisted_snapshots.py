"""Assisted snapshots of file volumes in use, requested by Cinder over HTTP."""

import dataclasses
import json

import pytest
from os_brick.initiator.connectors.remotefs import RemoteFsConnector

from nova.virt.images import qemuimg
from tests.functional.client import Client, wait_for
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import error_of, newest_action, refused
from tests.functional.volumes.test_cinder import MEMBER, attach, cinder, detach, ended, outside, server, wait_status  # noqa: F401
from tests.functional.volumes.test_swaps import audited

NOBODY = "11111111-2222-4333-8444-555555555555"
PATH = "/os-assisted-volume-snapshots"
_SIZE = 1 << 20


@dataclasses.dataclass
class Files:
    """A file volume: Cinder records the newest file, and snapshots add overlays."""

    cinder: object
    share: object
    volume: str = ""

    @property
    def first(self):
        return f"volume-{self.volume}"

    def name(self, snapshot):
        return f"{self.first}.{snapshot}"

    def make(self, snapshot, below):
        """Create the snapshot as Cinder does: the backing file is named without its directory."""
        path = str(self.share / self.name(snapshot))
        qemuimg.create_overlay(path, str(self.share / below), "qcow2", _SIZE)
        qemuimg.rebase(path, below, "qcow2")
        return self.name(snapshot)

    def begin(self, below=None):
        """Create a snapshot with its file; return its id and the name of the file."""
        snapshot = self.cinder.assist(self.volume)
        return snapshot, self.make(snapshot, below or self.first)

    def told(self, snapshot):
        found = self.cinder.snapshots[snapshot]
        return found.status, found.progress


def given(member, server, volume, cinder):  # noqa: F811
    """Attach the volume to the server and wait for the end of the operation."""
    attach(member, server, volume)
    wait_for(lambda: [each.complete for each in cinder.attachments.values()
                      if (each.volume, each.server) == (volume, server)] == [True], 20)
    wait_for(lambda: newest_action(member, server, "attach_volume")["events"][0]["finish_time"], 20)


@pytest.fixture
def files(member, server, cinder, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(RemoteFsConnector, "connect_volume", lambda _self, info: {"path": f"{tmp_path}/{info['name']}"})
    made = Files(cinder, tmp_path, cinder.new(MEMBER, kind="nfs"))
    qemuimg.create(str(tmp_path / made.first), "qcow2", _SIZE)
    given(member, server, made.volume, cinder)
    cinder.asked.clear()
    yield made
    cinder.snapshots.clear()


def create(client, volume, snapshot, name, **info):
    return client.post(PATH, {"snapshot": {"volume_id": volume, "create_info": {
        "snapshot_id": snapshot, "type": "qcow2", "new_file": name, **info}}})["snapshot"]


def delete(client, snapshot, volume, top, base=None, **more):
    told = {"volume_id": volume, "type": "qcow2", "file_to_merge": top, "merge_target_file": base, **more}
    client.delete(f"{PATH}/{snapshot}", delete_info=json.dumps(told))
    assert client.answered.status_code == 204


def has(driver, server, files):  # noqa: F811
    """Return the files of the volume in the guest, beginning with the active overlay."""
    guest = driver.guest(server)
    return next(names for volume, *names in guest.files if volume == files.volume)


def taken(admin, driver, server, files, below=None):  # noqa: F811
    """Create a snapshot and complete it in Cinder; return its id and its file."""
    snapshot, name = files.begin(below)
    create(admin, files.volume, snapshot, name)
    wait_for(lambda: files.told(snapshot) == ("creating", "90%"), 20)
    ended(admin, server, "volume_snapshot_create")
    files.cinder.snapshots[snapshot].status = "available"
    assert has(driver, server, files)[0] == name
    return snapshot, name


# --- create ----------------------------------------------------------------------------------------------
def test_assisted_snapshot_overlay_is_used_after_a_power_cycle(
        suite, admin, member, server, cinder, driver, files):  # noqa: F811
    snapshot, name = files.begin()
    answer, messages, _statements = measured(
        suite, admin, lambda: create(Client(suite.url, project="service", roles="service"), files.volume, snapshot,
                                     name, id="x"))
    assert answer == {"id": "x", "volumeId": files.volume}
    assert sum(messages.values()) <= 10, messages
    wait_for(lambda: files.told(snapshot) == ("creating", "90%"), 20)
    assert has(driver, server, files) == [name, files.first]
    told = newest_action(admin, server, "volume_snapshot_create")
    assert {(event["event"], event["result"]) for event in told["events"]} == {("compute_volume_snapshot", "Success")}
    assert [verb for verb, _project in cinder.asked if "snapshot" in verb] == [
        "show_snapshot", "show_snapshot", "os-update_snapshot_status"]
    driver.guest(server).files = ()
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait_idle(server)
    assert has(driver, server, files) == [name, files.first]
    audited(suite)
    detach(member, server, files.volume)
    wait_status(cinder, files.volume, "available")


def test_assisted_snapshot_without_an_id_returns_the_snapshot_id(admin, driver, server, files):  # noqa: F811
    snapshot, name = files.begin()
    assert create(admin, files.volume, snapshot, name) == {"id": snapshot, "volumeId": files.volume}
    assert admin.answered.status_code == 200
    wait_for(lambda: files.told(snapshot) == ("creating", "90%"), 20)


def test_assisted_snapshot_of_a_paused_guest_succeeds_and_of_a_stopped_one_fails(admin, server, driver, files):  # noqa: F811
    admin.action(server, "pause", None)
    admin.wait(server, "PAUSED")
    _snapshot, first = taken(admin, driver, server, files)
    admin.action(server, "unpause", None)
    admin.wait(server, "ACTIVE")
    admin.action(server, "os-stop", None)
    admin.wait(server, "SHUTOFF")
    snapshot, name = files.begin(first)
    code, message = refused(lambda: create(admin, files.volume, snapshot, name))
    assert (code, "stopped" in message) == (400, True)
    files.cinder.snapshots[snapshot].status = "deleting"
    code, message = refused(lambda: delete(admin, snapshot, files.volume, None))
    assert (code, "stopped" in message) == (400, True)


@pytest.mark.parametrize("broken", ["missing", "stranger", "raw"])
def test_assisted_snapshot_with_an_invalid_overlay_file_fails(admin, server, driver, files, broken):  # noqa: F811
    snapshot, name = files.begin()
    (files.share / name).unlink()
    if broken == "stranger":
        qemuimg.create(str(files.share / "secret"), "qcow2", _SIZE)
        files.make(snapshot, "secret")
    elif broken == "raw":
        (files.share / name).write_bytes(b"\0" * _SIZE)
    create(admin, files.volume, snapshot, name)
    wait_for(lambda: files.told(snapshot)[0] == "error", 20)
    ended(admin, server, "volume_snapshot_create", "Error")
    assert has(driver, server, files) == [files.first]


def test_assisted_snapshot_with_an_overlay_of_an_older_file_fails(admin, server, driver, files):  # noqa: F811
    _snapshot, first = taken(admin, driver, server, files)
    snapshot, name = files.begin(files.first)
    create(admin, files.volume, snapshot, name)
    wait_for(lambda: files.told(snapshot)[0] == "error", 20)
    ended(admin, server, "volume_snapshot_create", "Error")
    assert "is not an overlay of" in error_of(admin, server, "volume_snapshot_create")
    assert has(driver, server, files) == [first, files.first]


def test_assisted_snapshot_of_a_volume_that_is_not_a_file_fails(admin, member, server, driver, files):  # noqa: F811
    image = files.cinder.new(MEMBER)
    given(member, server, image, files.cinder)
    snapshot = files.cinder.assist(image)
    create(admin, image, snapshot, "volume")
    wait_for(lambda: files.told(snapshot)[0] == "error", 20)
    ended(admin, server, "volume_snapshot_create", "Error")


def test_assisted_snapshot_failure_in_the_guest_changes_nothing(suite, admin, server, driver, files):  # noqa: F811
    driver.behaviour.failure["snapshot_volume"] = 1.0
    snapshot, name = files.begin()
    create(admin, files.volume, snapshot, name)
    wait_for(lambda: files.told(snapshot)[0] == "error", 20)
    ended(admin, server, "volume_snapshot_create", "Error")
    assert has(driver, server, files) == [files.first]
    assert admin.server(server)["status"] == "ACTIVE"
    audited(suite)


@pytest.mark.parametrize("status", ["error", "available", "deleting"])
def test_assisted_snapshot_in_a_wrong_status_is_not_started(admin, server, cinder, driver, files, status):  # noqa: F811
    snapshot, name = files.begin()
    cinder.snapshots[snapshot].status = status
    create(admin, files.volume, snapshot, name)
    ended(admin, server, "volume_snapshot_create", "Error")
    assert has(driver, server, files) == [files.first]
    assert files.told(snapshot) == (status, "0%")


# --- delete ----------------------------------------------------------------------------------------------
@pytest.fixture
def three(admin, server, driver, files):  # noqa: F811
    """Create two snapshots; return their ids and the names of their files, of which the newest is active."""
    first, one = taken(admin, driver, server, files)
    second, two = taken(admin, driver, server, files, one)
    assert has(driver, server, files) == [two, one, files.first]
    for snapshot in (first, second):
        files.cinder.snapshots[snapshot].status = "deleting"
        files.cinder.snapshots[snapshot].progress = "0%"
    return first, second, one, two


@pytest.mark.parametrize("way", ["into the oldest", "into the newest", "all into the newest"])
def test_assisted_snapshot_delete_merges_files(suite, admin, server, driver, files, three, way):  # noqa: F811
    first, second, one, two = three
    snapshot, top, base, left = {
        "into the oldest": (first, one, files.first, [two, files.first]),
        "into the newest": (second, files.first, None, [two, files.first]),
        "all into the newest": (second, None, None, [two])}[way]
    _none, messages, _statements = measured(suite, admin, lambda: delete(admin, snapshot, files.volume, top, base))
    assert sum(messages.values()) <= 10, messages
    wait_for(lambda: files.told(snapshot) == ("deleting", "90%"), 20)
    assert has(driver, server, files) == left
    ended(admin, server, "volume_snapshot_delete")
    del files.cinder.snapshots[snapshot]
    audited(suite)


@pytest.mark.parametrize(("top", "base"), [("0", "volume"), ("1", "2"), ("nothing", None), ("volume", "1")])
def test_assisted_snapshot_delete_with_invalid_files_keeps_them(admin, server, driver, files, three, top, base):  # noqa: F811
    first, _second, one, two = three
    names = {"0": two, "1": one, "2": "2", "volume": files.first, None: None, "nothing": "nothing"}
    delete(admin, first, files.volume, names[top], names[base])
    wait_for(lambda: files.told(first)[0] == "error_deleting", 20)
    ended(admin, server, "volume_snapshot_delete", "Error")
    assert has(driver, server, files) == [two, one, files.first]


# --- refusals --------------------------------------------------------------------------------------------
def test_assisted_snapshot_of_an_unattached_volume_is_refused(admin, cinder, files):  # noqa: F811
    for volume in (NOBODY, "x/../y", cinder.new(MEMBER, kind="nfs")):
        assert refused(lambda volume=volume: create(admin, volume, NOBODY, "new"))[0] == 400
        assert refused(lambda volume=volume: delete(admin, NOBODY, volume, None))[0] == 400


def test_assisted_snapshot_by_a_member_is_forbidden(member, files):
    assert refused(lambda: create(member, files.volume, NOBODY, "new"))[0] == 403
    assert refused(lambda: delete(member, NOBODY, files.volume, None))[0] == 403


def test_assisted_snapshot_of_a_multiattach_volume_is_refused(admin, member, flavor, image_id, server, cinder, files):  # noqa: F811
    shared = cinder.new(MEMBER, multiattach=True)
    given(member, server, shared, cinder)
    assert "is multiattach" in refused(lambda: create(admin, shared, NOBODY, "new"))[1]
    other = admin.boot(flavor, image_id)
    admin.wait(other, "ACTIVE")
    given(member, other, shared, cinder)
    assert "several instances" in refused(lambda: create(admin, shared, NOBODY, "new"))[1]


def test_assisted_snapshot_while_cinder_is_unavailable_returns_503(admin, cinder, files):  # noqa: F811
    cinder.fail("show_volume", "error", times=5)
    assert refused(lambda: create(admin, files.volume, NOBODY, "new"))[0] == 503


# --- failures --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["error", "error after", "silence", "silence after"])
@pytest.mark.parametrize("verb", ["show_snapshot", "os-update_snapshot_status"])
def test_assisted_snapshot_status_is_reported_after_cinder_failures(
        admin, server, cinder, driver, files, verb, how):  # noqa: F811
    snapshot, name = files.begin()
    cinder.fail(verb, how)
    create(admin, files.volume, snapshot, name)
    wait_for(lambda: files.told(snapshot) == ("creating", "90%"), 60)
    ended(admin, server, "volume_snapshot_create")
    assert has(driver, server, files) == [name, files.first]


def test_assisted_snapshot_aborted_by_cinder_keeps_the_file_of_the_guest(
        admin, server, cinder, driver, hold, files):  # noqa: F811
    held, (snapshot, name) = hold("volume_files.snapshot"), files.begin()
    create(admin, files.volume, snapshot, name)
    held.wait_until_begun()
    cinder.snapshots[snapshot].status = "error"
    held.let_go()
    ended(admin, server, "volume_snapshot_create", "Error")
    driver.guest(server).files = ()
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait_idle(server)
    assert has(driver, server, files) == [name, files.first]


@pytest.mark.parametrize("when", ["never done", "done, and not told", "done, and the service not told"])
def test_hard_reboot_during_an_assisted_snapshot_keeps_the_file_of_the_guest(
        suite, admin, server, cinder, driver, hold, files, when):  # noqa: F811
    (snapshot, name), done = files.begin(), when != "never done"
    if when == "done, and the service not told":
        asked, release = cinder.hold("os-update_snapshot_status")
        create(admin, files.volume, snapshot, name)
        assert asked.wait(20)
    else:
        held = hold("volume_files.snapshot")
        driver.behaviour.failure["snapshot_volume"] = 0.0 if done else 1.0
        create(admin, files.volume, snapshot, name)
        held.wait_until_begun()
        release = held.let_go
    admin.action(server, "reboot", {"type": "HARD"})
    release()
    wait_for(lambda: files.told(snapshot) == (("creating", "90%") if done else ("error", "90%")), 40)
    admin.wait_idle(server)
    assert has(driver, server, files) == ([name, files.first] if done else [files.first])
    audited(suite)


def test_queued_assisted_snapshot_of_a_deleted_server_is_reported_as_error(admin, member, server, cinder, hold, files):  # noqa: F811
    other, (snapshot, name), held = cinder.new(MEMBER), files.begin(), hold("volumes.attach")
    attach(member, server, other)
    held.wait_until_begun()
    create(admin, files.volume, snapshot, name)
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    wait_for(lambda: files.told(snapshot)[0] == "error", 20)


def test_delete_server_during_a_snapshot_merge_reports_the_result(admin, server, cinder, hold, files, three):  # noqa: F811
    first, _second, one, _two = three
    held = hold("volume_files.merge")
    delete(admin, first, files.volume, one, files.first)
    held.wait_until_begun()
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    wait_for(lambda: files.told(first)[0] == "error_deleting" or files.told(first) == ("deleting", "90%"), 20)
