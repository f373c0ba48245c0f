# ruff: noqa: F811 - fixtures of other modules
"""Images of servers with file volumes: Cinder needs assisted snapshots to complete the image."""

import pytest
from os_brick.initiator.connectors.remotefs import RemoteFsConnector

from nova.conf import CONF
from nova.virt.images import qemuimg
from tests.cinder_service import Refused
from tests.functional.client import wait_for
from tests.functional.several_hosts import events_of, newest_action
from tests.functional.volumes.test_assisted_snapshots import Files, create, given
from tests.functional.volumes.test_cinder import MEMBER, boot, cinder, from_volume, outside  # noqa: F401
from tests.functional.volumes.test_swaps import audited
from tests.functional.volumes.test_volume_images import AGENT, image_of, no_image_left, nothing_made  # noqa: F401 (fixture)
from tests.functional.volumes.test_volume_images import create as create_image

_SIZE = 1 << 20


@pytest.fixture(autouse=True)
def helped(cinder):
    """Configure Cinder to require assisted snapshots of volumes in use, with a short polling interval."""
    cinder.wants_help = True
    CONF.set_override("block_device_allocate_retries_interval", 1)
    yield
    CONF.clear_override("block_device_allocate_retries_interval")
    cinder.wants_help = False


@pytest.fixture
def share(tmp_path, monkeypatch):
    monkeypatch.setattr(RemoteFsConnector, "connect_volume", lambda _self, info: {"path": f"{tmp_path}/{info['name']}"})
    return tmp_path


def made(cinder, share, **values):
    """Create a volume stored in a file."""
    files = Files(cinder, share, cinder.new(MEMBER, kind="nfs", **values))
    qemuimg.create(str(share / files.first), "qcow2", _SIZE)
    return files


def booted(admin, member, flavor, cinder, share, **image):
    """Boot a server with two file volumes."""
    root = made(cinder, share, bootable=True, image={"image_id": "i", **image})
    data = made(cinder, share)
    server = boot(member, flavor, from_volume(root.volume), name="web")
    admin.wait(server, "ACTIVE", seconds=60)
    given(member, server, data.volume, cinder)
    return server, root, data


def asked_for(cinder, files):
    """Return the snapshot of the volume after Nova has requested it from Cinder."""
    return wait_for(lambda: next((each.id for each in cinder.snapshots.values() if each.volume.id == files.volume), ""),
                    30, "Nova has requested a snapshot from Cinder")


def help_with(admin, cinder, files):
    """Request an assisted snapshot, as Cinder does; return its id and the name of its file."""
    snapshot = asked_for(cinder, files)
    name = files.make(snapshot, files.first)
    create(admin, files.volume, snapshot, name)
    return snapshot, name


def helped_with(cinder, files, snapshot):
    wait_for(lambda: files.told(snapshot) == ("creating", "90%"), 30, "Nova has completed the assisted snapshot")
    cinder.snapshots[snapshot].status = "available"


@pytest.mark.parametrize("image", [{}, AGENT], ids=["running", "quiesced"])
def test_assisted_snapshots_run_before_the_image_is_complete(
        suite, admin, member, flavor, cinder, driver, share, image):
    server, root, data = booted(admin, member, flavor, cinder, share, **image)
    saved = create_image(member, server)
    for files in (root, data):
        snapshot, name = help_with(admin, cinder, files)
        helped_with(cinder, files, snapshot)
        assert (files.volume, name, files.first) in driver.guest(server).files
    wait_for(lambda: image_of(member, saved)["status"] == "ACTIVE", 30, "the image is active")
    assert [event[:2] for event in events_of(admin, server, "createImage")] == [("api_snapshot_instance", "Success")]
    assert server not in driver.state.quiesced
    audited(suite)


def test_concurrent_assisted_snapshots_of_an_image_succeed(suite, admin, member, flavor, cinder, driver, share):
    server, root, data = booted(admin, member, flavor, cinder, share)
    saved = create_image(member, server)
    asked = [(files, help_with(admin, cinder, files)[0]) for files in (root, data)]
    for files, snapshot in asked:
        helped_with(cinder, files, snapshot)
    wait_for(lambda: image_of(member, saved)["status"] == "ACTIVE", 30, "the image is active")
    audited(suite)


def test_stop_waits_until_the_image_is_complete(suite, admin, member, flavor, cinder, share):
    server, root, data = booted(admin, member, flavor, cinder, share)
    saved = create_image(member, server)
    asked = [(files, help_with(admin, cinder, files)[0]) for files in (root, data)]
    member.action(server, "os-stop")
    for files, snapshot in asked:
        helped_with(cinder, files, snapshot)
    assert admin.server(server)["OS-EXT-STS:task_state"] == "powering-off"
    wait_for(lambda: image_of(member, saved)["status"] == "ACTIVE", 30, "the image is active")
    member.wait(server, "SHUTOFF")
    audited(suite)


def test_assisted_snapshot_finishes_before_a_failed_image_is_cleaned_up(
        suite, admin, member, flavor, cinder, driver, share, monkeypatch):
    """Check that Cinder neither deletes nor completes a snapshot while its assisted snapshot is queued."""
    server, root, data = booted(admin, member, flavor, cinder, share)
    make = cinder.create_snapshot

    def refuses(project, wanted):
        if wanted["volume_id"] == data.volume:
            raise Refused(400, "Invalid volume: no space left.")
        return make(project, wanted)

    monkeypatch.setattr(cinder, "create_snapshot", refuses)
    saved = create_image(member, server)
    snapshot, _name = help_with(admin, cinder, root)
    helped_with(cinder, root, snapshot)
    wait_for(lambda: not cinder.snapshots, 30, "the created snapshots are deleted")
    admin.wait_idle(server)
    nothing_made(member, cinder, saved)
    assert "no space left" in str(newest_action(admin, server, "createImage"))
    audited(suite)


@pytest.mark.parametrize("way", ["delete", "reboot"])
def test_preempting_an_image_during_an_assisted_snapshot_leaves_no_snapshots(
        suite, admin, member, flavor, cinder, driver, hold, share, way):
    server, root, _data = booted(admin, member, flavor, cinder, share)
    saved = create_image(member, server)
    held = hold("volume_files.snapshot")
    snapshot, _name = help_with(admin, cinder, root)
    held.wait_until_begun()
    if way == "delete":
        member.delete(f"/servers/{server}")
    else:
        member.action(server, "reboot", {"type": "HARD"})
    held.let_go()
    # Cinder continues with the snapshots or deletes them.
    wait_for(lambda: root.told(snapshot) != ("creating", "0%"), 30, "the outcome of the snapshot is reported to Cinder")
    for each in cinder.snapshots.values():
        each.status, each.assisted = "error", False
    wait_for(lambda: not cinder.snapshots, 60, "the snapshots are deleted")
    if way == "delete":
        admin.wait_gone(server, 60)
    else:
        admin.wait(server, "ACTIVE", seconds=60)
        wait_for(lambda: newest_action(admin, server, "reboot")["events"][-1]["finish_time"], 30,
                 "the reboot has ended")
    nothing_made(member, cinder, saved)
    audited(suite)
