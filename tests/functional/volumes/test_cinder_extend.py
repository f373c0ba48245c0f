# ruff: noqa: F811 - fixtures of other modules
"""Extension of attached Cinder volumes over HTTP, in the guest and in the database."""

import pytest

from tests.functional.client import Client, wait_for
from tests.functional.services.test_costs import measured
from tests.functional.services.test_releases import compute_of
from tests.functional.several_hosts import error_of, newest_action, refused
from tests.functional.volumes.test_assisted_snapshots import given
from tests.functional.volumes.test_cinder import MEMBER, attach, cinder, detach, ended, outside, server, wait_status  # noqa: F401
from tests.functional.volumes.test_swaps import audited

NOBODY = "11111111-2222-4333-8444-555555555555"
COMPLETION = "os-extend_volume_completion"


@pytest.fixture
def volume(member, server, cinder):
    made = cinder.new(MEMBER)
    given(member, server, made, cinder)
    cinder.asked.clear()
    return made


@pytest.fixture
def file(member, server, cinder, tmp_path, monkeypatch):
    """Create a volume that only the hypervisor of its guest can extend."""
    from os_brick.initiator.connectors.remotefs import RemoteFsConnector

    from nova.virt.images import qemuimg

    monkeypatch.setattr(RemoteFsConnector, "connect_volume", lambda _self, info: {"path": f"{tmp_path}/{info['name']}"})
    made = cinder.new(MEMBER, kind="nfs")
    qemuimg.create(str(tmp_path / f"volume-{made}"), "qcow2", 1 << 30)
    given(member, server, made, cinder)
    cinder.asked.clear()
    yield made
    # The volume can be detached in every state.
    cinder.volumes[made].new_size = 0


def tell(client, server, volume, code=200, **values):
    event = {"name": "volume-extended", "server_uuid": server, "tag": volume, **values}
    answer = client.post("/os-server-external-events", {"events": [event]}, version="2.51",
                         expect=200 if code == 200 else 207)
    assert [told["code"] for told in answer["events"]] == [code]


def sees(driver, server):
    """Return the events that the running guest received."""
    return dict(driver.guest(server).sizes)


def known(suite, server, volume):
    """Return the size stored in the row of the server, or None if no extension was reported since the attachment."""
    from nova.db.servers import servers

    instance = suite.conductor.core.db.read(lambda connection: servers.get(connection, server))
    return instance.volume(volume).size_gb


def extensions(admin, server):
    return [action for action in admin.get(f"/servers/{server}/os-instance-actions")["instanceActions"]
            if action["action"] == "extend_volume"]


# --- extended by Cinder ----------------------------------------------------------------------------------
def test_extended_volume_is_resized_in_the_guest_and_the_database(suite, admin, server, cinder, driver, volume):
    cinder.extend(volume, 3)
    service = Client(suite.url, project="service", roles="service")
    _none, messages, statements = measured(suite, admin, lambda: tell(service, server, volume))
    assert sum(messages.values()) <= 6, messages
    assert len(statements) <= 25, statements
    assert sees(driver, server) == {volume: 3}
    assert known(suite, server, volume) == 3
    told = newest_action(admin, server, "extend_volume")
    assert [(event["event"], event["result"]) for event in told["events"]] == [("compute_extend_volume", "Success")]
    assert [asked for asked in cinder.asked if asked[0] == "show_volume"] == [("show_volume", "service-project")]
    assert admin.server(server)["OS-EXT-STS:task_state"] is None
    tell(service, server, volume)
    ended(admin, server, "extend_volume")
    assert sees(driver, server) == {volume: 3}, "a repeated event has no further effect"
    audited(suite)


@pytest.mark.parametrize(("action", "status", "seen"), [
    ("pause", "PAUSED", True), ("os-stop", "SHUTOFF", False), ("suspend", "SUSPENDED", False), ("lock", "ACTIVE", True),
    ("rescue", "RESCUE", True)])
def test_extended_volume_size_is_stored_in_every_server_state(
        suite, admin, server, cinder, driver, volume, action, status, seen):
    admin.action(server, action)
    admin.wait(server, status)
    cinder.extend(volume, 2)
    tell(admin, server, volume)
    ended(admin, server, "extend_volume")
    assert sees(driver, server) == ({volume: 2} if seen else {})
    assert known(suite, server, volume) == 2
    assert admin.wait_idle(server)["status"] == status


def test_volume_extension_waits_for_a_running_reboot(
        suite, admin, server, cinder, driver, volume, hold):
    held = hold("power.reboot")
    admin.action(server, "reboot", {"type": "HARD"})
    held.wait_until_begun()
    cinder.extend(volume, 2)
    tell(admin, server, volume)
    assert sees(driver, server) == {}
    held.let_go()
    ended(admin, server, "extend_volume")
    assert sees(driver, server) == {volume: 2}
    assert known(suite, server, volume) == 2


def test_volume_extension_of_a_volume_detached_meanwhile_fails(
        suite, admin, member, server, cinder, driver, volume, hold):
    held = hold("volumes.detach")
    detach(member, server, volume)
    held.wait_until_begun()
    tell(admin, server, volume)
    held.let_go()
    ended(admin, server, "extend_volume", "Error")
    assert "is not attached to" in error_of(admin, server, "extend_volume")
    wait_status(cinder, volume, "available")
    assert dict(driver.guest(server).volumes) == {}
    assert sees(driver, server) == {}
    audited(suite)


def test_irrelevant_volume_extension_events_are_ignored(admin, server, cinder, driver, volume):
    cinder.extend(volume, 2)
    tell(admin, server, volume, status="failed")
    tell(admin, server, volume, status="in-progress")
    tell(admin, server, f"{volume}/encryption")
    tell(admin, server, "x" * 255)
    tell(admin, server, NOBODY)
    tell(admin, server, cinder.new(MEMBER, size=9))
    wait_for(lambda: cinder.count("show_volume") == 2, 20)
    event = {"name": "volume-extended", "server_uuid": NOBODY, "tag": volume}
    assert refused(lambda: admin.post("/os-server-external-events", {"events": [event]}, version="2.51"))[0] == 404
    assert extensions(admin, server) == []
    assert (sees(driver, server), {verb for verb, _project in cinder.asked}) == ({}, {"show_volume"})


def test_volume_extension_of_a_shelved_server_returns_422(admin, server, cinder, volume):
    admin.action(server, "shelve")
    admin.wait(server, "SHELVED_OFFLOADED")
    tell(admin, server, volume, code=422)
    assert extensions(admin, server) == []


@pytest.mark.parametrize("how", ["error", "error after", "silence"])
def test_cinder_failure_during_volume_extension_is_retried(suite, admin, server, cinder, driver, volume, how):
    cinder.extend(volume, 2)
    cinder.fail("show_volume", how, times=3)
    tell(admin, server, volume)
    ended(admin, server, "extend_volume")
    assert (sees(driver, server), known(suite, server, volume)) == ({volume: 2}, 2)


def test_failed_extension_in_the_guest_still_stores_the_size(suite, admin, server, cinder, driver, volume):
    driver.behaviour.failure["extend_volume"] = 1.0
    cinder.extend(volume, 2)
    tell(admin, server, volume)
    ended(admin, server, "extend_volume", "Error")
    driver.behaviour.failure.clear()
    assert admin.wait_idle(server)["status"] == "ACTIVE"
    assert (sees(driver, server), known(suite, server, volume)) == ({}, 2)
    audited(suite)


def test_user_metadata_does_not_change_the_extended_size(suite, admin, server, cinder, driver, volume):
    """Check user metadata, which Cinder returns also during another extension."""
    cinder.extend(volume, 2)
    cinder.volumes[volume].metadata["extend_new_size"] = "1000"
    cinder.volumes[volume].status = "extending"
    tell(admin, server, volume)
    ended(admin, server, "extend_volume")
    cinder.volumes[volume].status = "in-use"
    assert (sees(driver, server), known(suite, server, volume)) == ({volume: 2}, 2)
    assert cinder.count(COMPLETION) == 0


# --- extended by the hypervisor, while Cinder waits ------------------------------------------------------
def test_file_volume_is_extended_by_the_guest_and_completed_in_cinder(suite, admin, server, cinder, driver, file):
    cinder.extend(file, 2, waits=True)
    tell(admin, server, file)
    wait_status(cinder, file, "in-use")
    told = ended(admin, server, "extend_volume")
    assert {(event["event"], event["result"]) for event in told["events"]} == {("compute_extend_volume", "Success")}
    assert (cinder.volumes[file].size, sees(driver, server), known(suite, server, file)) == (2, {file: 2}, 2)
    assert [verb for verb, _project in cinder.asked] == ["show_volume", "show_volume", COMPLETION]
    audited(suite)


def fails(suite, admin, server, cinder, driver, file, why):
    wait_status(cinder, file, "error_extending")
    assert why in error_of(admin, server, "extend_volume")
    assert (cinder.volumes[file].size, sees(driver, server), known(suite, server, file)) == (1, {}, None)
    assert admin.wait_idle(server)["OS-EXT-STS:task_state"] is None
    cinder.volumes[file].status = "in-use"  # An operator resets the status.
    audited(suite)


def test_failed_extension_in_the_guest_is_reported_to_cinder(suite, admin, server, cinder, driver, file):
    driver.behaviour.failure["extend_volume"] = 1.0
    cinder.extend(file, 2, waits=True)
    tell(admin, server, file)
    ended(admin, server, "extend_volume", "Error")
    driver.behaviour.failure.clear()
    fails(suite, admin, server, cinder, driver, file, "")


def test_extension_of_a_stopped_guest_is_reported_as_failed_to_cinder(suite, admin, server, cinder, driver, file):
    admin.action(server, "os-stop")
    admin.wait(server, "SHUTOFF")
    cinder.extend(file, 2, waits=True)
    tell(admin, server, file)
    ended(admin, server, "extend_volume", "Error")
    fails(suite, admin, server, cinder, driver, file, "is not running")


@pytest.mark.parametrize("size", ["0", "1", "-5", "many", str(1 << 31)])
def test_extension_to_an_invalid_size_is_reported_as_failed_to_cinder(suite, admin, server, cinder, driver, file, size):
    cinder.extend(file, 2, waits=True)
    cinder.twist("show_volume", lambda body: {"volume": {**body["volume"], "metadata": {"extend_new_size": size}}})
    tell(admin, server, file)
    ended(admin, server, "extend_volume", "Error")
    fails(suite, admin, server, cinder, driver, file, "is not larger than")


@pytest.mark.parametrize("how", ["error", "error after", "silence after"])
def test_extension_completion_is_retried_after_cinder_failures(suite, admin, server, cinder, driver, file, how):
    cinder.fail(COMPLETION, how)
    cinder.extend(file, 2, waits=True)
    tell(admin, server, file)
    wait_status(cinder, file, "in-use")
    ended(admin, server, "extend_volume")
    assert (cinder.volumes[file].size, known(suite, server, file)) == (2, 2)


def test_extension_aborted_by_cinder_fails_and_keeps_the_guest_size(suite, admin, server, cinder, driver, file, hold):
    held = hold("volumes.extend")
    cinder.extend(file, 2, waits=True)
    tell(admin, server, file)
    held.wait_until_begun()
    cinder.volumes[file].status, cinder.volumes[file].new_size = "error_extending", 0
    held.let_go()
    ended(admin, server, "extend_volume", "Error")
    assert "has recorded a failed extension" in error_of(admin, server, "extend_volume")
    assert known(suite, server, file) == 2, "the guest has the new size"
    cinder.volumes[file].status = "in-use"


@pytest.mark.parametrize("done", [False, True])
def test_hard_reboot_during_an_extension_reports_the_guest_size(suite, admin, server, cinder, driver, file, hold, done):
    held = hold("volumes.extend")
    driver.behaviour.failure["extend_volume"] = 0.0 if done else 1.0
    cinder.extend(file, 2, waits=True)
    tell(admin, server, file)
    held.wait_until_begun()
    admin.action(server, "reboot", {"type": "HARD"})
    held.let_go()
    wait_status(cinder, file, "in-use" if done else "error_extending")
    admin.wait_idle(server)
    driver.behaviour.failure.clear()
    assert (cinder.volumes[file].size, known(suite, server, file)) == ((2, 2) if done else (1, None))
    cinder.volumes[file].status = "in-use"
    audited(suite)


def test_queued_extension_of_a_deleted_server_is_reported_as_failed(admin, member, server, cinder, file, hold):
    other, held = cinder.new(MEMBER), hold("volumes.attach")
    attach(member, server, other)
    held.wait_until_begun()
    cinder.extend(file, 2, waits=True)
    tell(admin, server, file)
    seen, shown = [], cinder.end_extension
    cinder.end_extension = lambda found, error: (shown(found, error), seen.append(found.status))
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    del cinder.end_extension
    assert seen == ["error_extending"]


def test_extension_on_a_host_without_support_is_reported_as_failed(suite, admin, server, cinder, driver, file):
    cinder.extend(file, 2, waits=True)
    with compute_of(suite, 4) as current:
        assert current >= 5
        tell(admin, server, file)
        wait_status(cinder, file, "error_extending")
    assert (extensions(admin, server), sees(driver, server)) == ([], {})
    cinder.volumes[file].status = "in-use"


def test_extension_event_for_a_server_without_the_volume_is_ignored(admin, server, cinder, file, flavor, image_id):
    other = admin.boot(flavor, image_id)
    admin.wait(other, "ACTIVE")
    cinder.extend(file, 2, waits=True)
    tell(admin, other, file)
    wait_for(lambda: cinder.count("show_volume"), 20)
    tell(admin, server, file)
    wait_status(cinder, file, "in-use")
    assert cinder.volumes[file].size == 2
