"""Migration of attached Cinder volumes over HTTP: Nova copies the data and reports the result to Cinder."""

import pytest

from tests.functional.client import wait_for
from tests.functional.services.test_costs import measured
from tests.functional.several_hosts import newest_action, refused
from tests.functional.volumes.test_cinder import (  # noqa: F401
    MEMBER,
    attach,
    attached,
    cinder,
    detach,
    ended,
    outside,
    server,
    wait_status,
)
from tests.functional.volumes.test_swaps import audited, swap


@pytest.fixture
def old(member, server, cinder):  # noqa: F811
    uuid = cinder.new(MEMBER, size=3)
    attach(member, server, uuid)
    wait_status(cinder, uuid, "in-use")
    wait_for(lambda: all(each.complete for each in cinder.attachments.values()))
    cinder.asked.clear()
    return uuid


def moved(cinder, driver, client, server, old, way):  # noqa: F811
    """Check that the volume retains its id, with the data and attachment of the new volume."""
    wait_for(lambda: cinder.volumes[old].migration == "success", 40)
    wait_for(lambda: [item["attachment_id"] for item in client.get(
        f"/servers/{server}/os-volume_attachments")["volumeAttachments"]] == list(cinder.attachments), 20)
    attachment, = cinder.attachments.values()
    assert (attachment.id != way, attachment.volume, attachment.complete) == (True, old, True)
    assert (list(cinder.volumes), cinder.volumes[old].status) == ([old], "in-use")
    assert (dict(driver.guest(server).volumes), attached(client, server)) == ({"/dev/vdb": old}, [old])


def stayed(cinder, driver, client, server, old, way):  # noqa: F811
    """Check that everything is unchanged, also in Cinder."""
    wait_for(lambda: cinder.volumes[old].migration == "error", 60)
    assert list(cinder.attachments) == [way]
    assert (list(cinder.volumes), cinder.volumes[old].status) == ([old], "in-use")
    assert (dict(driver.guest(server).volumes), attached(client, server)) == ({"/dev/vdb": old}, [old])
    assert driver.guest(server).swapped == ()


def test_migrated_volume_is_swapped_and_keeps_its_id(suite, admin, member, server, cinder, driver, old):  # noqa: F811
    (way,), new = cinder.attachments, cinder.migrate(old)
    _none, messages, _statements = measured(suite, admin, lambda: swap(admin, server, old, new))
    assert sum(messages.values()) <= 8, messages
    moved(cinder, driver, member, server, old, way)
    assert [verb for verb, _project in cinder.asked if not verb.startswith(("show_", "list_"))] == [
        "os-begin_detaching", "create_attachment", "update_attachment", "complete_attachment", "delete_attachment",
        "os-migrate_volume_completion"]
    told = newest_action(admin, server, "swap_volume")
    assert [(event["event"], event["result"]) for event in told["events"]] == [("compute_swap_volume", "Success")]
    audited(suite)
    admin.action(server, "reboot", {"type": "HARD"})
    admin.wait_idle(server)
    detach(member, server, old)
    wait_status(cinder, old, "available")
    assert cinder.attachments == {}
    cinder.volumes[old].migration = None


def test_swap_of_a_volume_that_is_not_migrating_is_refused(admin, server, cinder, driver, old):  # noqa: F811
    new, (way,) = cinder.new(MEMBER, size=3), cinder.attachments
    answer = 409, f"Volume {old} cannot be swapped for {new}: it is not being migrated."
    assert refused(lambda: swap(admin, server, old, new)) == answer
    cinder.volumes[old].migration = "migrating"
    assert refused(lambda: swap(admin, server, old, new)) == answer
    cinder.volumes[new].migration = f"target:{old}"
    for value, broken in (("size", 4), ("status", "error")):
        kept = getattr(cinder.volumes[new], value)
        setattr(cinder.volumes[new], value, broken)
        assert refused(lambda: swap(admin, server, old, new))[0] == 400
        setattr(cinder.volumes[new], value, kept)
    cinder.volumes[old].migration = "success"
    assert refused(lambda: swap(admin, server, old, new)) == answer
    missing = "11111111-2222-4333-8444-555555555555"
    assert refused(lambda: swap(admin, server, old, missing))[0] == 400
    cinder.fail("show_volume", "error", times=5)
    assert refused(lambda: swap(admin, server, old, new))[0] == 503
    assert list(cinder.attachments) == [way]
    assert driver.guest(server).swapped == ()


def test_swap_of_a_multiattach_volume_in_use_by_two_servers_is_refused(admin, member, flavor, image_id, server, cinder):  # noqa: F811
    other, shared = admin.boot(flavor, image_id), cinder.new(MEMBER, multiattach=True)
    admin.wait(other, "ACTIVE")
    for each in (server, other):
        attach(member, each, shared)
        wait_for(lambda each=each: each in cinder.servers_of(shared), 20)
        wait_status(cinder, shared, "in-use")
        wait_for(lambda: all(each.complete for each in cinder.attachments.values()), 20)
    new = cinder.migrate(shared)
    assert refused(lambda: swap(admin, server, shared, new)) == (
        400, "Swapping multi-attach volumes with more than one read/write attachment is not supported.")


@pytest.mark.parametrize("verb", ["os-begin_detaching", "create_attachment", "update_attachment"])
def test_swap_refused_by_cinder_before_the_copy_changes_nothing(admin, member, server, cinder, driver, old, verb):  # noqa: F811
    (way,), new = cinder.attachments, cinder.migrate(old)
    cinder.fail(verb, "refuse")
    swap(admin, server, old, new)
    ended(admin, server, "swap_volume", "Error")
    stayed(cinder, driver, member, server, old, way)


def test_failed_swap_in_the_guest_keeps_the_old_volume(suite, admin, member, server, cinder, driver, old):  # noqa: F811
    (way,), new = cinder.attachments, cinder.migrate(old)
    driver.behaviour.failure["swap_volume"] = 1.0
    swap(admin, server, old, new)
    ended(admin, server, "swap_volume", "Error")
    stayed(cinder, driver, member, server, old, way)
    audited(suite)


@pytest.mark.parametrize("how", ["error", pytest.param("error after", marks=pytest.mark.slow),
                                 pytest.param("silence", marks=pytest.mark.slow), "silence after"])
@pytest.mark.parametrize("verb", ["os-begin_detaching", "create_attachment", "update_attachment",
                                  "complete_attachment", "delete_attachment", "os-migrate_volume_completion"])
def test_cinder_failure_during_a_swap_is_retried_and_migrates_once(
        member, admin, server, cinder, driver, old, verb, how):  # noqa: F811
    (way,), new = cinder.attachments, cinder.migrate(old)
    cinder.fail(verb, how)
    swap(admin, server, old, new)
    moved(cinder, driver, member, server, old, way)


def test_failed_migration_completion_keeps_the_new_volume_in_the_guest(
        admin, member, server, cinder, driver, old):  # noqa: F811
    (way,), new = cinder.attachments, cinder.migrate(old)
    cinder.fail("os-migrate_volume_completion", "refuse")
    swap(admin, server, old, new)
    ended(admin, server, "swap_volume", "Error")
    moved(cinder, driver, member, server, old, way)


@pytest.mark.parametrize("verb", ["create_attachment", "update_attachment", "os-migrate_volume_completion"])
def test_delete_server_while_cinder_hangs_during_a_swap(admin, server, cinder, old, verb):  # noqa: F811
    new = cinder.migrate(old)
    asked, release = cinder.hold(verb, after=True)
    swap(admin, server, old, new)
    assert asked.wait(20)
    admin.delete(f"/servers/{server}")
    admin.wait_gone(server, 40)
    release()
    wait_for(lambda: cinder.attachments == {} and list(cinder.volumes) == [old], 40)
    assert cinder.volumes[old].migration in ("error", "success")
    wait_status(cinder, old, "available")


def test_queued_swap_of_a_deleted_server_is_reported_as_failed(admin, member, server, cinder, driver, hold, old):  # noqa: F811
    other, new, held = cinder.new(MEMBER), cinder.migrate(old), hold("volumes.attach")
    attach(member, server, other)
    held.wait_until_begun()
    swap(admin, server, old, new)
    admin.delete(f"/servers/{server}")
    held.let_go()
    admin.wait_gone(server)
    wait_for(lambda: list(cinder.volumes) == [old, other] and cinder.attachments == {}, 20)
    assert cinder.volumes[old].migration == "error"


def test_queued_swap_of_a_detached_volume_fails(admin, member, server, cinder, hold, old):  # noqa: F811
    held = hold("volumes.detach")
    detach(member, server, old)
    held.wait_until_begun()
    new = cinder.migrate(old)
    swap(admin, server, old, new)
    held.let_go()
    ended(admin, server, "swap_volume", "Error")
    wait_for(lambda: cinder.attachments == {} and list(cinder.volumes) == [old], 20)
    assert cinder.volumes[old].migration == "error"
    assert attached(member, server) == []


@pytest.mark.parametrize("fails", [False, True])
def test_queued_detach_after_a_swap_detaches_the_new_volume(
        admin, member, server, cinder, driver, hold, old, fails):  # noqa: F811
    (way,), new, held = cinder.attachments, cinder.migrate(old), hold("volume_swaps.swap")
    swap(admin, server, old, new)
    held.wait_until_begun()
    if fails:
        driver.behaviour.failure["detach_volume"] = 1.0
    detach(member, server, old)
    held.let_go()
    ended(admin, server, "detach_volume", "Error" if fails else None)
    if fails:
        moved(cinder, driver, member, server, old, way)
    else:
        wait_for(lambda: not cinder.attachments, 30, "the volume has no attachments")
        assert (cinder.volumes[old].status, driver.guest(server).volumes) == ("available", ())
