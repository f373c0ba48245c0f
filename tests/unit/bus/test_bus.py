"""The typed bus over the in-memory broker."""

import base64
import tracemalloc
import zlib

import msgspec
import pytest
from oslo_config import cfg

from nova import bus, conf, context, exception
from nova.bus.client import result_of
from nova.bus.server import endpoint
from nova.conf import CONF
from nova.objects.accounts.flavor import Flavor
from tests.polling import poll

CTX = context.RequestContext(user_id="u", project_id="p", roles=["member"], overwrite=False)


class Shop(bus.Interface):
    topic = "shop"
    namespace = "shop"

    @bus.call
    def find(self, ctx: context.RequestContext, name: str, count: int = 1) -> list[Flavor]: ...

    @bus.call
    def who(self, ctx: context.RequestContext) -> str: ...

    @bus.call
    def token(self, ctx: context.RequestContext) -> str: ...

    @bus.with_token
    @bus.call
    def token_that_is_wanted(self, ctx: context.RequestContext) -> str: ...

    @bus.cast
    def note(self, ctx: context.RequestContext, text: str) -> None: ...

    @bus.fanout
    def shout(self, ctx: context.RequestContext, text: str) -> None: ...


class Counter:
    def __init__(self):
        self.notes = []

    def find(self, ctx, name, count):
        if name == "missing":
            raise exception.FlavorNotFound(flavor_id=name)
        if name == "broken":
            raise ZeroDivisionError("secret details")
        if name == "packed":
            return [bus.packed(Flavor(flavorid=str(number), name=name, memory_mb=1, vcpus=1))
                    for number in range(count)]
        return [Flavor(flavorid=name, name=name, memory_mb=1, vcpus=1)] * count

    def who(self, ctx):
        return f"{ctx.user_id}@{ctx.project_id} {ctx.request_id}"

    def token(self, ctx):
        return ctx.auth_token or "none"

    token_that_is_wanted = token

    def note(self, ctx, text):
        self.notes.append(text)

    shout = note


@pytest.fixture(scope="module")
def transport():
    made = bus.connect(cfg.CONF, url="kombu+memory://unit")
    yield made
    made.cleanup()


@pytest.fixture(scope="module")
def counters(transport):
    made = [Counter(), Counter()]
    servers = [bus.serve(transport, "shop", f"h{number}", [(Shop, counter)]) for number, counter in enumerate(made)]
    yield made
    for server in servers:
        server.stop()
        server.wait()


@pytest.fixture
def shop(transport, counters):
    return bus.client(transport, Shop)


def eventually(condition):
    assert poll(condition, 30, 0.01)


def test_auth_token_is_sent_only_to_methods_that_need_the_token(transport, counters):
    ctx = context.RequestContext(user_id="u", auth_token="secret", overwrite=False)
    shop = bus.client(transport, Shop)
    assert (shop.token(ctx), shop.token_that_is_wanted(ctx)) == ("none", "secret")


def test_call_returns_objects(shop):
    assert shop.find(CTX, "m1", count=2) == [Flavor(flavorid="m1", name="m1", memory_mb=1, vcpus=1)] * 2


def test_packed_values_are_unpacked_unchanged(shop):
    assert shop.find(CTX, "packed", 2) == [
        Flavor(flavorid=number, name="packed", memory_mb=1, vcpus=1) for number in ("0", "1")]


def test_long_reply_is_complete(shop):
    assert shop.find(CTX, "m1", count=5000) == [Flavor(flavorid="m1", name="m1", memory_mb=1, vcpus=1)] * 5000


def test_error_is_raised_with_its_class_and_arguments(shop):
    with pytest.raises(exception.FlavorNotFound) as raised:
        shop.find(CTX, "missing")
    assert str(raised.value) == "Flavor missing could not be found."
    assert raised.value.kwargs == {"flavor_id": "missing"}


def test_unexpected_error_contains_no_details(shop):
    with pytest.raises(exception.InternalError) as raised:
        shop.find(CTX, "broken")
    assert "secret" not in str(raised.value)


def test_argument_of_wrong_type_is_refused(shop):
    with pytest.raises(exception.InvalidInput):
        shop.find(CTX, "m1", count="many")


def test_request_context_is_sent_with_the_call(shop):
    assert shop.who(CTX) == f"u@p {CTX.request_id}"


def test_cast_reaches_the_addressed_host(shop, counters):
    bus.at(shop, "h1").note(CTX, "hello h1")
    eventually(lambda: "hello h1" in counters[1].notes)
    assert "hello h1" not in counters[0].notes


def test_fanout_reaches_every_server(shop, counters):
    shop.shout(CTX, "all")
    eventually(lambda: all("all" in counter.notes for counter in counters))


def test_topic_without_servers_is_an_unavailable_service(transport):
    class ShopWithoutServers(Shop):
        topic = "nobody"

        @bus.slow_call(0.2)
        def find(self, ctx: context.RequestContext, name: str) -> str: ...

    with pytest.raises(exception.ServiceUnavailable):
        bus.client(transport, ShopWithoutServers).find(CTX, "x")


def test_messages_are_counted_by_method(shop):
    bus.SENT.take()
    shop.who(CTX)
    shop.note(CTX, "x")
    assert bus.SENT.take() == {"shop.who": 2, "shop.note": 1}


# --- limits of payloads ----------------------------------------------------------------------------------
def test_decompression_bomb_is_refused():
    conf.register()
    bomb = "z:" + base64.b64encode(zlib.compress(b"\0" * (64 * 1024 * 1024), 9)).decode()
    assert len(bomb) < 100_000
    CONF.set_override("max_message_size", 1, group="rpc")
    tracemalloc.start()
    try:
        with pytest.raises(msgspec.DecodeError, match="longer than 1 MiB"):
            Shop.methods()["find"].decode_args(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024 * 1024
    finally:
        tracemalloc.stop()
        CONF.clear_override("max_message_size", group="rpc")


class Shelf(bus.Interface):
    topic = "shelf"
    namespace = "shelf"
    on_hosts = True

    @bus.call
    def read(self, ctx: context.RequestContext, length: int) -> str: ...


class Book:
    def read(self, ctx, length):
        return "x" * length


def test_replies_of_hosts_have_a_lower_size_limit(transport, caplog):
    """A few compressed kilobytes could become gigabytes in the memory of a conductor."""
    server = bus.serve(transport, "shelf", "h1", [(Shelf, Book())])
    try:
        proxy = bus.at(bus.client(transport, Shelf), "h1")
        assert len(proxy.read(CTX, 1 << 20)) == 1 << 20
        with pytest.raises(exception.ServiceUnavailable):
            proxy.read(CTX, 3 << 20)
        assert "longer than 2 MiB" in caplog.text
    finally:
        bus.stop_taking(server)
        server.wait()


@pytest.mark.parametrize("payload", ["z:", "z:AAAA", "AAA", "\u00e4", "z:" + base64.b64encode(
    zlib.compress(b"\0" * 1000)[:-5]).decode()])
def test_malformed_payload_is_invalid_input(transport, counters, payload):
    served = endpoint(Shop, counters[0])
    assert served.find(context.RequestContext(overwrite=False), payload)["e"][0] == "InvalidInput"


FIND = Shop.methods()["find"]


@pytest.mark.parametrize("reply", [
    None, [], "r", {}, {"r": None}, {"r": 1}, {"r": "!"}, {"r": base64.b64encode(msgspec.msgpack.encode("x")).decode()},
    {"e": None}, {"e": []}, {"e": ["FlavorNotFound"]}, {"e": ["FlavorNotFound", 1, {}]},
    {"e": ["FlavorNotFound", "x", []]}, {"e": ["FlavorNotFound", "x", {"message": "y"}]}, {"e": [["x"], "x", {}]},
    {"e": ["FlavorNotFound", "x", {"self": "y"}]}])
def test_malformed_reply_is_an_unavailable_service(reply):
    """The server may be a compromised host: the caller continues, and the user can retry."""
    with pytest.raises(exception.ServiceUnavailable, match="The reply to find cannot be decoded"):
        result_of(FIND, reply, from_host=True)


def test_error_from_a_host_has_a_maximum_length():
    """Users can read errors of hosts, so their length and the types of their arguments are limited."""
    reply = ["FlavorNotFound", "x" * 100_000, {"flavor_id": "y" * 100_000, "more": {"a": "z" * 100_000}, "count": 1}]
    with pytest.raises(exception.FlavorNotFound) as refusal:
        result_of(FIND, {"e": reply}, from_host=True)
    assert len(str(refusal.value)) + len(str(refusal.value.kwargs)) < 5000
    assert refusal.value.kwargs["count"] == 1
    with pytest.raises(exception.FlavorNotFound) as refusal:
        result_of(FIND, {"e": reply}, from_host=False)
    assert len(str(refusal.value)) == 100_000
