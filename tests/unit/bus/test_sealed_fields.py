"""The fields of a context that a seal covers: two releases understand each other, and nobody else changes a thing."""

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova import bus, exception
from nova.bus.seals import SEAL, Address, Keys
from nova.context import RequestContext

MASTER = os.urandom(32)
REPORT, ORDER = Address("engine.step_done"), Address("compute.run", "h1")
PAYLOAD = "gaR1dWlk"
SAID = {"request_id": "req-1", "user_id": "u", "roles": ["reader"], "user_name": "ann"}


def control():
    return Keys(MASTER, required=True, age=60)


def sealed(keys, address, **said):
    """What the receiver gets: JSON was made of it on its way."""
    wire = {**SAID, "sent_at": time.time(), **said}
    return json.loads(json.dumps({**wire, SEAL: keys.seal(address, wire, PAYLOAD)}))


@pytest.fixture
def newer(monkeypatch):
    """A function: the control plane's keys in a release that knows one more field of the context."""
    def make():
        with monkeypatch.context() as patch:
            patch.setattr(RequestContext, "FIELDS", (*RequestContext.FIELDS, "locale"))
            return control()

    return make


def refused(keys, address, wire, match=None, payload=PAYLOAD):
    with pytest.raises(exception.CallerRefused, match=match):
        keys.sender(address, wire, payload)


def test_a_release_with_one_more_field_and_one_without_it_understand_each_other(newer):
    old, new = control(), newer()
    assert old.sender(REPORT, sealed(new.of_host("h1"), REPORT, locale="de"), PAYLOAD) == "h1"
    assert new.sender(REPORT, sealed(old.of_host("h1"), REPORT), PAYLOAD) == "h1"
    assert old.of_host("h1").sender(ORDER, sealed(new, ORDER, locale="de"), PAYLOAD) == ""
    assert new.of_host("h1").sender(ORDER, sealed(old, ORDER), PAYLOAD) == ""


def test_a_field_of_a_newer_release_is_sealed_for_an_older_one_too(newer):
    wire = sealed(newer().of_host("h1"), REPORT, locale="de")
    refused(control(), REPORT, {**wire, "locale": "fr"})
    del wire["locale"]
    refused(control(), REPORT, wire, "lacks locale")


def test_a_field_that_only_the_receiver_knows_cannot_be_added(newer):
    wire = {**sealed(control().of_host("h1"), REPORT), "locale": "de"}
    assert control().sender(REPORT, wire, PAYLOAD) == "h1"  # to this one it is what a broker may add
    refused(newer(), REPORT, wire, "does not cover locale")


@pytest.mark.parametrize("name", [*RequestContext.FIELDS, "auth_token", "steady", "clock", "seconds"])
def test_no_field_that_is_acted_on_can_be_added(name):
    host = control().of_host("h1")
    wire = {"sent_at": time.time()}
    wire[SEAL] = host.seal(REPORT, wire, PAYLOAD)
    assert control().sender(REPORT, wire, PAYLOAD) == "h1"
    for value in ("x", None):
        refused(control(), REPORT, {**wire, name: value}, f"does not cover {name}")


def test_no_field_can_be_left_out_or_get_another_name():
    wire = sealed(control().of_host("h1"), REPORT)
    for name in (*SAID, "sent_at"):
        without = {key: value for key, value in wire.items() if key != name}
        refused(control(), REPORT, without, f"lacks {name}")
        refused(control(), REPORT, {**without, "project_id": wire[name]})
        covers = ["project_id" if each == name else each for each in wire[SEAL]["covers"]]
        refused(control(), REPORT, {**without, "project_id": wire[name], SEAL: {**wire[SEAL], "covers": covers}})


def test_the_list_of_what_is_covered_cannot_be_changed():
    wire = sealed(control().of_host("h1"), REPORT)
    covers = wire[SEAL]["covers"]
    for changed in ([], covers[1:], covers[:-1], covers[::-1], [*covers, covers[0]], [*covers, "more"], [*covers, SEAL],
                    None, "sent_at", [1],
                    ["\ud800"]):
        refused(control(), REPORT, {**wire, SEAL: {**wire[SEAL], "covers": changed}})


@pytest.mark.parametrize("part", ["by", "covers"])
def test_what_a_stranger_writes_makes_no_log_of_its_own(part):
    wire = sealed(control().of_host("h1"), REPORT)
    text = "x\n2026-11-23 00:00:00 INFO nova all is well " * 1000
    wire[SEAL][part] = text if part == "by" else [text]
    with pytest.raises(exception.CallerRefused) as caught:
        control().sender(REPORT, wire, PAYLOAD)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_is_named_twice_or_not_at_all_is_refused_of_whoever_has_the_key():
    """Not even the key's owner makes a message that can be read in two ways, or that never gets old."""
    host = control().of_host("h1")

    class Twice(dict):
        def __iter__(self):
            return iter([*self.keys(), "sent_at"])

    said = Twice(sent_at=time.time())
    refused(control(), REPORT, {**said, SEAL: host.seal(REPORT, said, PAYLOAD)}, "twice")
    refused(Keys(MASTER, required=True), REPORT, {SEAL: host.seal(REPORT, {}, PAYLOAD)}, "does not cover sent_at")


@pytest.mark.parametrize("value", [float("nan"), 2**70, "\ud800", [float("inf")]])
def test_what_no_sender_says_is_refused_as_anything_else(value):
    wire = sealed(control().of_host("h1"), REPORT, global_request_id="x", steady=None)
    for name in ("global_request_id", "steady"):
        refused(control(), REPORT, {**wire, name: value})
    refused(control(), REPORT, {**wire, SEAL: {**wire[SEAL], "mac": value}})


SAYABLE = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                       lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
                       max_leaves=5)
KNOWN = (*RequestContext.FIELDS, "auth_token", "sent_at", "steady", "clock", "seconds")
SAID_BY_SENDERS = st.dictionaries(st.sampled_from([n for n in KNOWN if n != "sent_at"]) | st.text(max_size=8),
                                  st.text() | st.booleans() | st.lists(st.text()) | st.floats(allow_nan=False))


@given(data=st.data(), said=SAID_BY_SENDERS, from_host=st.booleans(), payload=st.text(max_size=20))
def test_any_change_of_what_was_said_is_refused(data, said, from_host, payload):
    sender, receiver = (control().of_host("h1"), control()) if from_host else (control(), control().of_host("h1"))
    address = REPORT if from_host else ORDER
    said = {**{key: value for key, value in said.items() if key != SEAL}, "sent_at": time.time()}
    wire = json.loads(json.dumps({**said, SEAL: sender.seal(address, said, payload)}))
    assert receiver.sender(address, wire, payload) == ("h1" if from_host else "")

    what = data.draw(st.sampled_from(["value", "removal", "addition", "payload", "method", "host", "seal"]))
    if what == "value":
        name = data.draw(st.sampled_from(sorted(said)))
        value = data.draw(SAYABLE.filter(lambda value: json.dumps(value) != json.dumps(wire[name])))
        wire = {**wire, name: value}
    elif what == "removal":
        del wire[data.draw(st.sampled_from(sorted(said)))]
    elif what == "addition":
        missing = sorted(set(KNOWN) - set(said))
        wire = {**wire, data.draw(st.sampled_from(missing)): data.draw(SAYABLE)} if missing else {}
    elif what == "payload":
        payload = data.draw(st.text(max_size=20).filter(lambda text: text != payload))
    elif what == "method":
        address = Address(data.draw(st.text().filter(lambda text: text != address.method)), address.host)
    elif what == "host":
        address = Address(address.method, data.draw(st.text().filter(lambda text: text != address.host)))
    else:
        part = data.draw(st.sampled_from(sorted(wire[SEAL])))
        value = data.draw(SAYABLE.filter(lambda value: value != wire[SEAL][part]))
        wire = {**wire, SEAL: {**wire[SEAL], part: value}}
    refused(receiver, address, wire, payload=payload)


def test_what_travels_is_covered():
    """Whoever adds a field to messages has it sealed by that."""
    ctx = RequestContext(user_id="u", project_id="p", roles=["member"], is_admin=True, user_name="ann",
                         global_request_id="req-2", auth_token="secret", overwrite=False)
    host = control().of_host("h1")
    outgoing = bus.transport.Outgoing(ctx, 20.0, True, lambda wire: host.seal(REPORT, wire, PAYLOAD))
    wire = bus.transport.ContextSerializer().serialize_context(outgoing)
    assert {*wire} == {*wire[SEAL]["covers"], SEAL}
    assert control().sender(REPORT, wire, PAYLOAD) == "h1"
