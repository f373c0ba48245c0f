"""Snapshots, backups, shelve and unshelve over the API: the request to the conductor per microversion."""

import pytest

from nova import exception, image
from nova.objects.images.image import Image
from nova.objects.servers.action import Accepted
from tests.unit.api.servers.test_server_moves import ACCEPTED, act, asked, servers  # noqa: F401 (a fixture)
from tests.unit.api.test_images import Store


@pytest.fixture
def store(servers, monkeypatch):  # noqa: F811
    """Return an image store in which the new image appears at the third query."""
    made = Store()
    looks = []
    show = made.show

    def late(ctx, image_id, token=None):
        looks.append(image_id)
        if len(looks) == 3:
            made.kept[image_id] = Image(id=image_id, status="queued")
        return show(ctx, image_id, token)

    made.show, made.looks = late, looks
    monkeypatch.setattr(image, "store", lambda: made)
    servers.answers["operate"] = Accepted(action=ACCEPTED.action, answer={"image_id": "new"})
    return made


BACKUP = {"name": "b", "backup_type": "daily", "rotation": 1}


@pytest.mark.parametrize(("name", "wanted", "operation", "request_"), [
    ("createImage", {"name": "s"}, "create_image", {"name": "s"}),
    ("createImage", {"name": "s", "metadata": {"a": "b"}}, "create_image", {"name": "s", "metadata": {"a": "b"}}),
    ("createBackup", BACKUP, "create_backup", BACKUP),
    ("createBackup", {**BACKUP, "rotation": "02"}, "create_backup", {**BACKUP, "rotation": 2})])
def test_create_image_waits_for_the_new_image(api, servers, store, name, wanted, operation, request_):  # noqa: F811
    answer = act(api, name, wanted, roles="member", version="2.45")
    assert (answer.status, answer.json) == (202, {"image_id": "new"})
    assert asked(servers) == (operation, request_)
    assert store.looks == ["new"] * 3


@pytest.mark.parametrize(("name", "wanted", "named"), [
    ("createImage", {"name": "s"}, True), ("createBackup", BACKUP, True),
    ("createBackup", {**BACKUP, "rotation": 0}, False)])
def test_create_image_returns_a_location_header_before_2_45(api, servers, store, name, wanted, named):  # noqa: F811
    answer = act(api, name, wanted, version="2.44")
    assert (answer.status, answer.text) == (202, "")
    assert answer.headers.get("location", "").endswith("/images/new") is named


def test_create_image_does_not_wait_for_an_unavailable_image_service(api, servers, store):  # noqa: F811
    def away(ctx, image_id, token=None):
        store.looks.append(image_id)
        raise exception.ImageBackendUnavailable(reason="it is away")

    store.show = away
    assert act(api, "createImage", {"name": "s"}).status == 202
    assert len(store.looks) == 1


@pytest.mark.parametrize(("name", "wanted"), [
    ("createImage", {}), ("createImage", {"name": ""}), ("createImage", {"name": "s", "metadata": {"a": 1}}),
    ("createImage", {"name": "s", "rotation": 1}), ("createBackup", {"name": "b", "backup_type": "d"}),
    ("createBackup", {**BACKUP, "rotation": -1}), ("createBackup", {**BACKUP, "rotation": "-1"}),
    ("createBackup", {**BACKUP, "rotation": "many"}), ("createBackup", {**BACKUP, "rotation": ""})])
def test_invalid_create_image_and_backup_requests_are_refused(api, servers, store, name, wanted):  # noqa: F811
    assert act(api, name, wanted).error[1] == 400
    assert not servers.calls


# -- shelve -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "operation", "roles"), [
    ("shelve", "shelve", "member"), ("shelveOffload", "shelve_offload", "admin")])
def test_shelve_and_shelve_offload_start_their_operations(api, servers, name, operation, roles):  # noqa: F811
    assert act(api, name, roles=roles).status == 202
    assert asked(servers) == (operation, None)


PLAIN = {"availability_zone": None, "host": None, "unpin": False}


@pytest.mark.parametrize(("version", "wanted", "request_"), [
    ("2.1", None, PLAIN), ("2.76", {"availability_zone": "east"}, PLAIN), ("2.77", None, PLAIN),
    ("2.77", {"availability_zone": "east"}, {**PLAIN, "availability_zone": "east"}),
    ("2.91", None, PLAIN), ("2.91", {}, PLAIN), ("2.91", {"host": "h"}, {**PLAIN, "host": "h"}),
    ("2.91", {"availability_zone": None}, {**PLAIN, "unpin": True}),
    ("2.91", {"availability_zone": "east", "host": "h"}, {**PLAIN, "availability_zone": "east", "host": "h"})])
def test_unshelve_passes_zone_and_host_per_microversion(api, servers, version, wanted, request_):  # noqa: F811
    assert act(api, "unshelve", wanted, version=version).status == 202
    assert asked(servers) == ("unshelve", request_)


@pytest.mark.parametrize(("version", "wanted"), [
    ("2.77", {}), ("2.77", {"availability_zone": None}), ("2.90", {"availability_zone": "east", "host": "h"}),
    ("2.91", {"host": None}), ("2.91", {"node": "n"}), ("2.91", "east")])
def test_invalid_unshelve_requests_are_refused(api, servers, version, wanted):  # noqa: F811
    assert act(api, "unshelve", wanted, version=version).error[1] == 400
    assert not servers.calls


def test_unshelve_to_a_host_and_shelve_offload_require_admin(api, servers):  # noqa: F811
    assert act(api, "unshelve", {"host": "h"}, roles="member").error[1] == 403
    assert act(api, "shelveOffload", roles="member").error[1] == 403
    assert [name for name, _given in servers.calls if name == "operate"] == []
