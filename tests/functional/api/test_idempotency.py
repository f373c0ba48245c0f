"""Repeated create requests with the same Idempotency-Key header."""

import concurrent.futures
import uuid

import pytest
import requests

from tests.functional.client import Client

KEY = "Idempotency-Key"


@pytest.fixture
def post(suite, flavor, image_id):
    made = set()

    def send(key, user="u", **changes):
        server = {"name": "named", "flavorRef": flavor, "imageRef": image_id, "networks": "none", **changes}
        answer = requests.post(f"{suite.url}/v2.1/servers", json={"server": server}, timeout=60, headers={
            "X-User-Id": user, "X-Project-Id": "p", "X-Roles": "admin", "X-Auth-Token": "u:p",
            "OpenStack-API-Version": "compute 2.96", KEY: key})
        if answer.status_code == 202 and "server" in answer.json():
            made.add(answer.json()["server"]["id"])
        return answer

    yield send
    admin = Client(suite.url)
    for each in admin.get("/servers")["servers"]:
        admin.delete(f"/servers/{each['id']}")
        made.add(each["id"])
    for each in made:
        admin.wait_gone(each)


def key():
    return f"key {uuid.uuid4()}"


def test_repeated_request_returns_the_first_response(post, admin):
    name = key()
    first = post(name)
    again = post(name)
    assert (first.status_code, again.status_code) == (202, 202)
    # Nova returns the password while the server is built; it stores no password after that.
    answer, repeated = first.json()["server"], again.json()["server"]
    assert repeated.pop("adminPass", None) in (answer.pop("adminPass"), None)
    assert repeated == answer
    assert again.headers["Location"] == first.headers["Location"]
    assert [server["id"] for server in admin.get("/servers")["servers"]] == [answer["id"]]


def test_idempotency_key_with_another_body_is_refused(post):
    name = key()
    post(name)
    answer = post(name, description="other")
    assert answer.status_code == 409
    assert KEY in answer.json()["conflictingRequest"]["message"]


def test_idempotency_key_is_scoped_to_its_user(post):
    name = key()
    assert post(name).json()["server"]["id"] != post(name, user="somebody").json()["server"]["id"]


def test_repeated_request_returns_a_deleted_server(post, admin):
    name = key()
    made = post(name).json()["server"]["id"]
    admin.wait(made, "ACTIVE")
    admin.delete(f"/servers/{made}")
    admin.wait_gone(made)
    again = post(name)
    assert (again.status_code, again.json()["server"]["id"]) == (202, made)
    assert admin.get("/servers")["servers"] == []


def test_idempotency_key_of_a_failed_request_can_be_reused(post):
    name = key()
    assert post(name, key_name="missing").status_code == 400
    assert post(name).status_code == 202


def test_concurrent_requests_with_the_same_key_create_servers_once(post, admin):
    name = key()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _number: post(name, min_count=2, max_count=3, return_reservation_id=True),
                                range(8)))
    assert {answer.status_code for answer in answers} == {202}
    reservations = {answer.json()["reservation_id"] for answer in answers}
    assert len(reservations) == 1
    servers = admin.get("/servers", reservation_id=reservations.pop())["servers"]
    assert sorted(server["name"] for server in servers) == ["named-1", "named-2", "named-3"]
    assert len(admin.get("/servers")["servers"]) == 3
