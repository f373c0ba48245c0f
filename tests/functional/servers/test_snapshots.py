"""Snapshots and backups of servers over HTTP."""

import json
import os
import time

import pytest

from nova import exception
from nova.conductor.saga import step_executor
from nova.conf import CONF
from nova.image.directory import DirectoryStore
from tests.functional.client import Client, Failed, wait_for
from tests.functional.several_hosts import error_of, events_of, refused


@pytest.fixture(autouse=True)
def no_image_left(suite, image_id):
    """Check that the test leaves no snapshot files on the host, and delete its images."""
    yield
    snapshots = os.path.join(CONF.state_path, "fake-snapshots")
    assert not os.path.isdir(snapshots) or os.listdir(snapshots) == []
    store = DirectoryStore()
    for name in os.listdir(store.directory):
        if image_id not in name and name != ".lock":
            os.unlink(os.path.join(store.directory, name))


@pytest.fixture
def server(admin, flavor, image_id):
    uuid = admin.boot(flavor, image_id, name="web")
    admin.wait(uuid, "ACTIVE")
    return uuid


def image_of(client, image_id):
    return client.get(f"/images/{image_id}", version="2.35")["image"]


def saved(client, server, image_id):
    """Return the image after the task of the server has ended."""
    client.wait_idle(server)
    return image_of(client, image_id)


def images(client):
    return client.get("/images", version="2.35")["images"]


@pytest.mark.parametrize(("way", "status"), [(None, "ACTIVE"), ("os-stop", "SHUTOFF"), ("pause", "PAUSED"),
                                             ("suspend", "SUSPENDED")])
def test_create_image_sets_owner_and_metadata_of_the_server(
        suite, admin, member, server, image_id, driver, way, status):
    DirectoryStore().set_properties(None, image_id, {}, replace=True)
    if way:
        member.action(server, way)
        member.wait(server, status)
    made = member.action(server, "createImage", {"name": "first", "metadata": {"colour": "red"}})["image_id"]
    shown = saved(member, server, made)
    assert (shown["name"], shown["status"], shown["minDisk"], shown["server"]["id"]) == (
        "first", "ACTIVE", driver.guest(server).size.root_gb, server)
    assert shown["metadata"] == {
        "base_image_ref": image_id, "boot_roles": "member,reader", "image_location": "snapshot",
        "image_state": "available", "image_type": "snapshot", "instance_uuid": server, "owner_id": member.project,
        "user_id": "m", "colour": "red"}
    with open(os.path.join(DirectoryStore().directory, made), encoding="ascii") as file:
        assert json.load(file) == list(driver.disk(server))
    assert member.server(server)["status"] == status
    assert [event[:2] for event in events_of(admin, server, "createImage")] == [
        ("compute_snapshot_instance", "Success")]
    stranger = Client(suite.url, project="other", user="x", roles="member")
    assert made not in [each["id"] for each in images(stranger)]


def test_create_image_returns_the_id_of_an_image_in_saving(member, server, hold):
    upload = hold("snapshots.take")
    made = member.action(server, "createImage", {"name": "s"})["image_id"]
    assert image_of(member, made)["status"] == "SAVING"
    assert member.server(server)["OS-EXT-STS:task_state"] in ("image_snapshot_pending", "image_pending_upload")
    assert refused(lambda: member.action(server, "os-stop"))[0] == 409
    upload.let_go()
    assert saved(member, server, made)["status"] == "ACTIVE"
    member.action(server, "createImage", {"name": "old"}, version="2.44")
    assert (member.answered.status_code, member.answered.content) == (202, b"")
    kind, _slash, made = member.answered.headers["Location"].rpartition("/")
    assert kind.endswith("/images")
    assert saved(member, server, made)["name"] == "old"


def test_image_created_by_an_operator_is_shared_with_the_servers_project(suite, member, server):
    operator = Client(suite.url, project="operators", user="o")
    made = operator.action(server, "createImage", {"name": "look"})["image_id"]
    operator.wait_idle(server)
    assert image_of(member, made)["metadata"]["owner_id"] == "operators"
    assert refused(lambda: member.call("DELETE", f"/images/{made}", version="2.35"))[0] == 403


def test_failed_snapshot_deletes_the_image_and_keeps_the_server_active(admin, server, driver):
    driver.behaviour.failure["snapshot"] = 1.0
    made = admin.action(server, "createImage", {"name": "s"})["image_id"]
    admin.wait_idle(server)
    assert admin.server(server)["status"] == "ACTIVE"
    assert error_of(admin, server, "createImage") == "The fake hypervisor is configured to fail at snapshot."
    assert refused(lambda: image_of(admin, made))[0] == 404


def test_failed_snapshot_deletes_the_image_after_image_service_outage(admin, server, driver, monkeypatch):
    monkeypatch.setattr(step_executor, "MAX_TRIES", 1)
    driver.behaviour.failure["snapshot"] = 1.0
    with monkeypatch.context() as patch:
        def away(*_args, **_more):
            raise exception.ImageBackendUnavailable(reason="it is away")

        patch.setattr(DirectoryStore, "delete", away)
        made = admin.action(server, "createImage", {"name": "s"})["image_id"]
        admin.wait_idle(server)
        assert image_of(admin, made)["status"] == "SAVING"
    wait_for(lambda: made not in [each["id"] for each in images(admin)], 30)


def test_delete_server_during_snapshot_leaves_no_image(admin, server, hold):
    copying = hold("snapshots.take")
    made = admin.action(server, "createImage", {"name": "s"})["image_id"]
    copying.wait_until_begun()
    admin.delete(f"/servers/{server}")
    copying.let_go()
    admin.wait_gone(server)
    assert refused(lambda: image_of(admin, made))[0] == 404


def test_image_deleted_during_snapshot_is_not_recreated(admin, server, hold):
    copying = hold("snapshots.take")
    made = admin.action(server, "createImage", {"name": "s"})["image_id"]
    copying.wait_until_begun()
    admin.call("DELETE", f"/images/{made}", version="2.35")
    copying.let_go()
    admin.wait_idle(server)
    assert error_of(admin, server, "createImage") == f"Image {made} could not be found."
    assert refused(lambda: image_of(admin, made))[0] == 404
    assert made not in os.listdir(DirectoryStore().directory)


@pytest.mark.parametrize("name", ["owner", "visibility", "id", "os_glance_stage"])
def test_create_image_with_reserved_metadata_names_is_refused(member, server, name):
    before = images(member)
    code, text = refused(lambda: member.action(server, "createImage", {"name": "s", "metadata": {name: "public"}}))
    assert (code, text) == (400, f"Invalid input received: metadata: users cannot set the image property {name}")
    assert images(member) == before


def test_image_metadata_quota_applies_before_2_39(admin, member, server):
    admin.put("/os-quota-sets/" + member.project, {"quota_set": {"metadata_items": 1}})
    body = {"createImage": {"name": "s", "metadata": {"a": "1", "b": "2"}}}
    with pytest.raises(Failed) as failed:
        member.call("POST", f"/servers/{server}/action", body, version="2.38")
    assert (failed.value.code, failed.value.message) == (403, "Image metadata limit exceeded")
    member.call("POST", f"/servers/{server}/action", body, version="2.39")
    member.wait_idle(server)
    admin.delete("/os-quota-sets/" + member.project)


def test_snapshot_inherits_image_properties_except_signature_and_cache(member, flavor, image_id):
    store = DirectoryStore()
    kept = {"hw_disk_bus": "sata", "os_type": "linux"}
    store.set_properties(None, image_id, {**kept, "img_signature": "x", "cache_in_nova": "1"}, replace=True)
    try:
        server = member.boot(flavor, image_id)
        member.wait(server, "ACTIVE")
        made = member.action(server, "createImage", {"name": "s"})["image_id"]
        found = saved(member, server, made)["metadata"]
        assert kept.items() <= found.items()
        assert not {"img_signature", "cache_in_nova"} & found.keys()
        another = member.boot(flavor, made)
        member.wait(another, "ACTIVE")
    finally:
        store.set_properties(None, image_id, {}, replace=True)


def backup(client, server, rotation, kind="daily", **more):
    made = client.action(server, "createBackup", {
        "name": "b", "backup_type": kind, "rotation": rotation, **more})["image_id"]
    client.wait_idle(server)
    return made


def test_backups_rotate_per_backup_type(admin, server):
    weekly = backup(admin, server, 1, "weekly")
    one = backup(admin, server, 2)
    two = backup(admin, server, "2")
    shown = image_of(admin, two)["metadata"]
    assert (shown["image_type"], shown["backup_type"]) == ("backup", "daily")
    snapshot = admin.action(server, "createImage", {"name": "s"})["image_id"]
    admin.wait_idle(server)
    three = backup(admin, server, 1, metadata={"backup_type": "weekly", "image_type": "x"})
    left = {each["id"] for each in images(admin)}
    assert {weekly, snapshot, three} <= left
    assert not {one, two} & left
    assert [event[:2] for event in events_of(admin, server, "createBackup")] == [("compute_backup_instance", "Success")]


def test_backup_rotation_of_0_deletes_all_backups(admin, server):
    one = backup(admin, server, 1)
    two = backup(admin, server, 0)
    assert not {one, two} & {each["id"] for each in images(admin)}
    admin.action(server, "createBackup", {"name": "b", "backup_type": "d", "rotation": 0}, version="2.44")
    assert "Location" not in admin.answered.headers
    admin.wait_idle(server)


def test_create_backup_does_not_wait_for_a_missing_image(admin, server, monkeypatch):
    """Cover an image that is deleted at once and an image whose creation fails."""
    def full(*_args, **_more):
        raise exception.QuotaLimit("Maximum number of images exceeded")

    show, looks = DirectoryStore.show, []

    def gone(store, ctx, image_id, token=None):
        if token:  # a request of a user, not of Nova
            looks.append(image_id)
            raise exception.ImageNotFound(image_id=image_id)
        return show(store, ctx, image_id, token)

    for method, broken, rotation in (("show", gone, 0), ("create", full, 1)):
        with monkeypatch.context() as patch:
            patch.setattr(DirectoryStore, method, broken)
            asked = time.monotonic()
            admin.action(server, "createBackup", {"name": "b", "backup_type": "daily", "rotation": rotation})
            assert time.monotonic() - asked < 3
            admin.wait_idle(server)
    assert looks == []


def test_rotation_keeps_protected_backups_and_backups_of_other_servers(admin, server, flavor, image_id):
    other = admin.boot(flavor, image_id)
    admin.wait(other, "ACTIVE")
    theirs = backup(admin, other, 1)
    protected = backup(admin, server, 1)
    store = DirectoryStore()
    kept = store.show(None, protected)
    kept.protected = True
    store._save(kept)
    mine = backup(admin, server, 1)
    assert {theirs, protected, mine} <= {each["id"] for each in images(admin)}


def test_failed_rotation_keeps_the_new_backup(admin, server, monkeypatch):
    def broken(*_args, **_more):
        raise RuntimeError("no list")

    monkeypatch.setattr(DirectoryStore, "index", broken)
    made = admin.action(server, "createBackup", {"name": "b", "backup_type": "d", "rotation": 1})["image_id"]
    admin.wait_idle(server)
    assert image_of(admin, made)["status"] == "ACTIVE"
    assert error_of(admin, server, "createBackup") == "Unexpected error: RuntimeError"


def test_locked_server_allows_snapshots_and_backups(admin, member, server):
    admin.action(server, "lock", None)
    member.action(server, "createImage", {"name": "s"})
    admin.wait_idle(server)
    backup(member, server, 1)
    assert refused(lambda: member.action(server, "shelve")) == (409, f"Instance {server} is locked")


def test_snapshot_and_backup_in_error_state_are_refused(admin, server):
    for action in ({"createImage": {"name": "s"}}, {"createBackup": {"name": "b", "backup_type": "d", "rotation": 1}}):
        (name, value), = action.items()
        admin.action(server, "os-resetState", {"state": "error"})
        assert refused(lambda name=name, value=value: admin.action(server, name, value)) == (
            409, f"Cannot '{name}' instance {server} while it is in vm_state error")
        admin.action(server, "os-resetState", {"state": "active"})
        wait_for(lambda: admin.server(server)["OS-EXT-STS:task_state"] is None)
