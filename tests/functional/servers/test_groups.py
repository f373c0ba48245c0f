"""Member quota of server groups over HTTP, also for concurrent requests."""

import concurrent.futures

import pytest

from tests.functional.client import Client, Failed


@pytest.fixture
def group(suite, admin):
    """Yield a server group in a project with a quota of two members per group."""
    before = admin.get("/os-quota-sets/p")["quota_set"]["server_group_members"]
    admin.put("/os-quota-sets/p", {"quota_set": {"server_group_members": 2}})
    made = admin.post("/os-server-groups", {"server_group": {"name": "g", "policy": "soft-affinity"}})["server_group"]
    yield made["id"]
    for server in admin.get("/servers")["servers"]:
        admin.delete(f"/servers/{server['id']}")
        admin.wait_gone(server["id"])
    admin.delete(f"/os-server-groups/{made['id']}")
    admin.put("/os-quota-sets/p", {"quota_set": {"server_group_members": before}})


def test_all_servers_of_a_request_count_towards_group_member_quota(suite, admin, group, flavor, image_id):
    hints = {"os:scheduler_hints": {"group": group}}
    with pytest.raises(Failed) as failed:
        admin.boot(flavor, image_id, top=hints, min_count=1, max_count=3)
    assert (failed.value.code, failed.value.message) == (403, "Quota exceeded, too many servers in group")
    assert admin.get("/servers")["servers"] == []
    admin.boot(flavor, image_id, top=hints, min_count=2, max_count=2)
    assert len(admin.get(f"/os-server-groups/{group}")["server_group"]["members"]) == 2
    with pytest.raises(Failed):
        admin.boot(flavor, image_id, top=hints)


def test_concurrent_boots_into_a_group_respect_the_member_quota(suite, admin, group, flavor, image_id):
    def boot(_number):
        try:
            return Client(suite.url).boot(flavor, image_id, top={"os:scheduler_hints": {"group": group}})
        except Failed as error:
            return error.code

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(boot, range(6)))
    assert answers.count(403) == 4, answers
    assert len(admin.get(f"/os-server-groups/{group}")["server_group"]["members"]) == 2
