"""The os-snapshots proxy API for old clients."""

import pytest

from tests.functional.client import Client
from tests.functional.refusals import NIL
from tests.functional.several_hosts import refused
from tests.functional.volumes.test_cinder import cinder, outside  # noqa: F401

PATH = "/os-snapshots"


@pytest.fixture
def old(suite):
    return Client(suite.url, roles="member,reader", version="2.35")


@pytest.fixture
def volume(cinder):  # noqa: F811
    yield cinder.new("p", size=3)
    cinder.snapshots.clear()


def take(client, volume, **values):
    return client.post(PATH, {"snapshot": {"volume_id": volume, **values}})["snapshot"]


def test_os_snapshots_requests_use_the_token_of_the_user(old, cinder, volume):  # noqa: F811
    made = take(old, volume, display_name="daily", display_description="of a day")
    assert made == {"id": made["id"], "volumeId": volume, "status": "creating", "size": 3, "displayName": "daily",
                    "displayDescription": "of a day", "createdAt": "2026-01-02T03:04:05.000006"}
    cinder.snapshots[made["id"]].status = "available"
    assert old.get(f"{PATH}/{made['id']}") == {"snapshot": {**made, "status": "available"}}
    assert old.get(PATH) == old.get(f"{PATH}/detail") == {"snapshots": [{**made, "status": "available"}]}
    old.delete(f"{PATH}/{made['id']}", expect=202)
    assert old.get(PATH) == {"snapshots": []}
    # Servers of earlier tests may still be cleaned up, with the account of Nova.
    assert [verb for verb, project in cinder.asked if project == "p"] == [
        "create_snapshot", "show_snapshot", "list_snapshots", "list_snapshots", "delete_snapshot", "list_snapshots"]


def test_os_snapshots_pages_results(old, volume):
    made = [take(old, volume)["id"] for _again in range(3)]
    assert [one["id"] for one in old.get(PATH, limit=1, offset=1)["snapshots"]] == made[1:2]
    assert [one["id"] for one in old.get(PATH, limit=0)["snapshots"]] == made


def test_snapshot_of_a_volume_in_use_requires_force(old, cinder, volume):  # noqa: F811
    cinder.volumes[volume].status = "in-use"
    code, message = refused(lambda: take(old, volume))
    assert (code, "status must be available" in message) == (400, True)
    assert take(old, volume, force="True")["volumeId"] == volume
    cinder.volumes[volume].status = "available"


def test_os_snapshots_of_another_project_return_404(suite, old, cinder, volume):  # noqa: F811
    made = take(old, volume)["id"]
    other = Client(suite.url, project="other", version="2.35")
    missing = (404, f"Snapshot {made} could not be found.")
    assert refused(lambda: other.get(f"{PATH}/{made}")) == missing
    assert refused(lambda: other.delete(f"{PATH}/{made}")) == missing
    assert refused(lambda: take(other, volume)) == (404, f"Volume {volume} could not be found.")
    assert other.get(PATH) == {"snapshots": []}
    assert list(cinder.snapshots) == [made]


@pytest.mark.parametrize("ident", ["x", "..%2Fvolumes", "detail%3Fall_tenants=1", NIL + "0"])
def test_os_snapshots_with_an_invalid_id_return_404_without_a_cinder_request(old, cinder, volume, ident):  # noqa: F811
    for ask in (old.get, old.delete):
        assert refused(lambda ask=ask: ask(f"{PATH}/{ident}"))[0] == 404
    assert refused(lambda: take(old, ident))[0] == 404
    assert [verb for verb, _project in cinder.asked if "snapshot" in verb] == []


@pytest.mark.parametrize("how", ["error", "error after"])
def test_os_snapshots_during_a_cinder_failure_return_503(old, cinder, volume, how):  # noqa: F811
    cinder.fail("create_snapshot", how)
    assert refused(lambda: take(old, volume))[0] == 503


def test_too_long_snapshot_name_is_refused(old, cinder, volume):  # noqa: F811
    for name in ("display_name", "display_description"):
        code, message = refused(lambda name=name: take(old, volume, **{name: "x" * 256}))
        assert (code, name in message) == (400, True)
    assert cinder.snapshots == {}
