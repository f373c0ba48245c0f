"""The os-volumes proxy API for old clients, with volumes of Cinder."""

import concurrent.futures
import itertools

import pytest

from nova import service_clients
from tests.functional.client import Client, wait_for
from tests.functional.refusals import NIL
from tests.functional.several_hosts import refused
from tests.functional.volumes.test_cinder import attach, cinder, outside, server, wait_status  # noqa: F401

PATH = "/os-volumes"


@pytest.fixture
def old(suite):
    return Client(suite.url, roles="member,reader", version="2.35")


def make(client, **values):
    return client.post(PATH, {"volume": {"size": 2, **values}})["volume"]


def asked(cinder):  # noqa: F811
    """Return the projects whose tokens were used for requests of volumes."""
    return {project for verb, project in cinder.asked
            if verb in ("create_volume", "list_volumes", "show_volume", "delete_volume")}


def test_os_volumes_requests_use_the_token_of_the_user(old, cinder):  # noqa: F811
    made = make(old, display_name="data", display_description="of a day", metadata={"of": "x"}, volume_type="fast")
    assert made == {
        "id": made["id"], "status": "creating", "size": 2, "displayName": "data", "displayDescription": "of a day",
        "metadata": {"of": "x"}, "volumeType": "fast", "snapshotId": None, "availabilityZone": "nova",
        "createdAt": "2026-01-02T03:04:05.000006", "attachments": [{}]}
    wait_for(lambda: old.get(f"{PATH}/{made['id']}")["volume"]["status"] == "available", 20)
    shown = old.get(f"{PATH}/{made['id']}")["volume"]
    assert shown == {**made, "status": "available"}
    assert shown in old.get(PATH)["volumes"]
    assert old.get(f"{PATH}/detail") == old.get(PATH)
    old.delete(f"{PATH}/{made['id']}", expect=202)
    assert refused(lambda: old.get(f"{PATH}/{made['id']}"))[0] == 404
    assert asked(cinder) == {"p"}


def test_os_volumes_create_from_a_snapshot_returns_the_snapshot_id(old, cinder):  # noqa: F811
    origin = cinder.new("p", size=2)
    snapshot = old.post("/os-snapshots", {"snapshot": {"volume_id": origin}})["snapshot"]["id"]
    cinder.snapshots[snapshot].status = "available"
    made = make(old, snapshot_id=snapshot)
    assert made["snapshotId"] == snapshot
    wait_for(lambda: old.get(f"{PATH}/{made['id']}")["volume"]["status"] == "available", 20)
    assert refused(lambda: make(old, snapshot_id=NIL)) == (404, f"Snapshot {NIL} could not be found.")
    assert refused(lambda: make(old, snapshot_id="../volumes"))[0] == 404
    cinder.snapshots.clear()


def test_os_volumes_shows_the_attached_server(old, admin, cinder, server):  # noqa: F811
    volume = cinder.new("p")
    device = attach(admin, server, volume)["volumeAttachment"]["device"]
    wait_status(cinder, volume, "in-use")
    assert old.get(f"{PATH}/{volume}")["volume"]["attachments"] == [
        {"id": volume, "volumeId": volume, "serverId": server, "device": device}]
    assert refused(lambda: old.delete(f"{PATH}/{volume}"))[0] == 400


def test_os_volumes_passes_paging_parameters_to_cinder(old, cinder):  # noqa: F811
    for _again in range(3):
        cinder.new("p")
    found = [one["id"] for one in old.get(PATH)["volumes"]]
    assert [one["id"] for one in old.get(PATH, limit=1, offset=1)["volumes"]] == found[1:2]


def test_os_volumes_of_another_project_return_404(suite, old, cinder):  # noqa: F811
    volume = cinder.new("p")
    other = Client(suite.url, project="other", version="2.35")
    for ask in (other.get, other.delete):
        assert refused(lambda ask=ask: ask(f"{PATH}/{volume}")) == (404, f"Volume {volume} could not be found.")
    assert other.get(PATH) == {"volumes": []}
    assert volume in cinder.volumes


@pytest.mark.parametrize("ident", ["x", "..%2Fsnapshots", "detail%3Fall_tenants=1", NIL + "0"])
def test_os_volumes_with_an_invalid_id_return_404_without_a_cinder_request(old, cinder, ident):  # noqa: F811
    before = len(cinder.asked)
    for ask in (old.get, old.delete):
        assert refused(lambda ask=ask: ask(f"{PATH}/{ident}"))[0] == 404
    assert len(cinder.asked) == before


@pytest.mark.parametrize(("verb", "ask"), [
    ("delete_volume", lambda old, volume: old.delete(f"{PATH}/{volume}")),
    ("create_volume", lambda old, volume: make(old)),
    ("create_snapshot", lambda old, volume: old.post("/os-snapshots", {"snapshot": {"volume_id": volume}}))])
def test_os_volumes_limits_pending_requests_to_a_hanging_cinder(
        suite, cinder, monkeypatch, verb, ask):  # noqa: F811
    for name, value in {"_MAX_PENDING": 4, "_MAX_PENDING_SUSPECT": 1, "_SUSPECT_AFTER": 0.2}.items():
        monkeypatch.setattr(service_clients, name, value)
    volume, held = cinder.new("p"), [cinder.hold(verb) for _again in range(8)]

    def asked(_number):
        return refused(lambda: ask(Client(suite.url, roles="member,reader", version="2.35"), volume))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        told = [pool.submit(asked, number) for number in range(8)]
        try:
            for each in itertools.islice(concurrent.futures.as_completed(told, 10), 4):
                code, message = each.result()
                assert (code, "waiting for a response" in message) == (503, True)
        finally:
            for _is_asked, let_go in held:
                let_go()
    cinder._failures.clear()


def test_os_volumes_returns_refusals_of_cinder(old, cinder):  # noqa: F811
    assert refused(lambda: make(old, volume_type="unknown")) == (404, "Volume type unknown could not be found.")
    cinder.fail("create_volume", "error")
    assert refused(lambda: make(old))[0] == 503
