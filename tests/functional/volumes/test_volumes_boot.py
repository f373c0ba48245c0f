"""The os-volumes_boot alias of servers, which was removed in 2.103."""

import pytest

from tests.functional.client import Client
from tests.functional.several_hosts import refused


@pytest.fixture
def old(suite):
    return Client(suite.url, version="2.102")


def test_os_volumes_boot_creates_shows_updates_and_deletes_servers(old, flavor, image_id):
    old.post("/os-volumes_boot", {"server": {
        "name": "v", "flavorRef": flavor, "imageRef": image_id, "networks": "none"}}, expect=202)
    [uuid] = [server["id"] for server in old.get("/os-volumes_boot")["servers"]]
    old.wait(uuid, "ACTIVE")
    assert old.get("/os-volumes_boot/detail") == old.get("/servers/detail")
    assert old.get(f"/os-volumes_boot/{uuid}") == old.get(f"/servers/{uuid}")
    old.put(f"/os-volumes_boot/{uuid}", {"server": {"name": "w"}})
    assert old.server(uuid)["name"] == "w"
    old.post(f"/os-volumes_boot/{uuid}/action", {"os-stop": None}, expect=202)
    old.wait(uuid, "SHUTOFF")
    old.delete(f"/os-volumes_boot/{uuid}", expect=204)
    old.wait_gone(uuid)


def test_os_volumes_boot_refuses_other_actions(old, flavor, image_id):
    uuid = old.boot(flavor, image_id)
    old.wait(uuid, "ACTIVE")
    assert refused(lambda: old.post(f"/os-volumes_boot/{uuid}/action", {"pause": None})) == (
        400, "There is no such action: pause")
    assert old.server(uuid)["status"] == "ACTIVE"


def test_os_volumes_boot_is_removed_in_2_103(old):
    for path in ("", "/detail", "/11111111-2222-3333-4444-555555555555"):
        assert refused(lambda path=path: old.get(f"/os-volumes_boot{path}", version="2.103"))[0] == 404
