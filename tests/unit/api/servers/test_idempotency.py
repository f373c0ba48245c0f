"""Create requests with an idempotency key, and create requests whose reply was lost."""

import threading

import pytest

from nova import exception, image
from nova.objects.base import utcnow
from nova.objects.images.image import Image
from nova.objects.servers.action import Accepted, Action
from nova.objects.servers.server_request import ServerCreated
from nova.rpcapi.servers import Servers
from tests.unit.api.canned import stub

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"
KEY = "Idempotency-Key"
MADE = ServerCreated(uuids=["one"], reservation_id="r-1")
REPEATED = ServerCreated(uuids=["one"], reservation_id="r-1", repeated=True)
LOST = exception.ServiceUnavailable("No answer.")


class Images:
    found = True

    def show(self, ctx, image_id, token=None):
        if not self.found:
            raise exception.ImageNotFound(image_id=image_id)
        return Image(id=image_id)


@pytest.fixture(autouse=True)
def images(monkeypatch):
    store = Images()
    monkeypatch.setattr(image, "store", lambda: store)
    return store


def body(**changes):
    return {"server": {"name": "web", "flavorRef": "1", "imageRef": IMAGE, "networks": "none", **changes}}


def post(api, key=None, user="u", **changes):
    headers = {"X-User-Id": user} if key is None else {"X-User-Id": user, KEY: key}
    return api.post("/v2.1/servers", body(**changes), version="2.96", headers=headers)


def asked(servers, method="create"):
    return servers.last(method)["request"]


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there", "caf\u00e9"])
def test_invalid_idempotency_key_is_refused(api, key):
    stub(api, "servers", Servers, create=MADE)
    answer = post(api, key)
    assert answer.status == 400
    assert KEY in answer.error[2]


def test_server_uuid_depends_on_user_and_idempotency_key(api):
    servers = stub(api, "servers", Servers, create=MADE)
    seen = []
    for key, user, name in (("k", "u", "web"), ("k", "u", "other"), ("k", "v", "web"), ("l", "u", "web"),
                            (None, "u", "web"), (None, "u", "web")):
        assert post(api, key, user, name=name).status == 202
        seen.append((asked(servers).first_uuid, asked(servers).request_digest))
    first, other_body, other_user, other_key, *nameless = seen
    assert first[0] == other_body[0]
    assert first[1] != other_body[1]
    assert len({first[0], other_user[0], other_key[0], *(uuid for uuid, _digest in nameless)}) == 5
    assert [digest for _uuid, digest in nameless] == [None, None]


def test_request_digest_ignores_field_order_and_whitespace(api):
    servers = stub(api, "servers", Servers, create=MADE)
    for raw in (b'{"server": {"name": "a", "flavorRef": "1", "imageRef": "%s"}}' % IMAGE.encode(),
                b'{"server":{"flavorRef":"1","imageRef":"%s","name":"a"}}' % IMAGE.encode()):
        assert api.post("/v2.1/servers", raw=raw, headers={KEY: "k"}).status == 202
    one, two = (given["request"].request_digest for _name, given in servers.calls)
    assert one == two


def test_repeated_create_succeeds_after_its_image_was_deleted(api, images):
    images.found = False
    stub(api, "servers", Servers, create=AssertionError("is not asked"), made=REPEATED)
    assert post(api, "k", adminPass="secret").json["server"]["adminPass"] == "secret"
    stub(api, "servers", Servers, made=None)
    assert post(api, "k").status == 400


def test_repeated_create_without_a_password_returns_no_password(api):
    stub(api, "servers", Servers, create=REPEATED)
    assert "adminPass" not in post(api, "k").json["server"]


def test_create_with_a_lost_reply_returns_202_if_the_server_exists(api):
    stub(api, "servers", Servers, create=LOST, made=REPEATED)
    answer = post(api)
    assert answer.status == 202
    assert answer.json["server"]["id"] == "one"
    assert answer.json["server"]["adminPass"]


def test_create_that_was_never_sent_returns_503_without_a_query(api):
    servers = stub(api, "servers", Servers, create=exception.NoListeners("Nobody answers."))
    assert post(api).status == 503
    assert [name for name, _given in servers.calls] == ["create"]


def test_server_of_a_create_that_failed_with_503_is_deleted_later(api, monkeypatch):
    monkeypatch.setattr("nova.bus.call_timeout", lambda conf: 0.01)
    deleted = threading.Event()
    looks = []

    def made(request):
        looks.append(request.first_uuid)
        if len(looks) < 3:
            raise LOST
        return REPEATED

    def operate(uuid, operation, **_given):
        assert (uuid, operation) == ("one", "delete")
        deleted.set()
        return Accepted(action=Action(uuid="a", instance_uuid=uuid, action="delete", request_id="r",
                                      start_time=utcnow()))

    stub(api, "servers", Servers, create=LOST, made=made, operate=operate)
    assert post(api).status == 503
    assert deleted.wait(30)
    assert len(set(looks)) == 1


def test_keyed_create_with_a_lost_reply_is_left_for_the_client_to_retry(api):
    servers = stub(api, "servers", Servers, create=LOST, made=LOST)
    assert post(api, "k").status == 503
    assert not api.behind.orphaned_creates.pending()
    assert [name for name, _given in servers.calls] == ["create", "made"]
