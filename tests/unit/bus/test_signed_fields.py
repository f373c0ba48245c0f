"""The context fields that a signature covers: compatibility of two releases, and detection of every change."""

import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova import bus, exception
from nova.bus.message_signing import FIELD, Address, Keys
from nova.context import RequestContext

MASTER = os.urandom(32)
REPORT, ORDER = Address("engine.step_done"), Address("compute.run", "h1")
PAYLOAD = "gaR1dWlk"
CONTEXT = {"request_id": "req-1", "user_id": "u", "roles": ["reader"], "user_name": "ann"}


def control():
    return Keys(MASTER, required=True, age=60)


def signed(keys, address, **fields):
    """Return a message as its receiver gets it, after a round trip through JSON."""
    wire = {**CONTEXT, "sent_at": time.time(), **fields}
    return json.loads(json.dumps({**wire, FIELD: keys.sign(address, wire, PAYLOAD)}))


@pytest.fixture
def newer(monkeypatch):
    """Return a function that returns the keys of the control plane in a release with an additional context field."""
    def make():
        with monkeypatch.context() as patch:
            patch.setattr(RequestContext, "FIELDS", (*RequestContext.FIELDS, "locale"))
            return control()

    return make


def refused(keys, address, wire, match=None, payload=PAYLOAD):
    with pytest.raises(exception.CallerRefused, match=match):
        keys.verified_sender(address, wire, payload)


def test_releases_with_and_without_an_additional_field_work_together(newer):
    old, new = control(), newer()
    assert old.verified_sender(REPORT, signed(new.of_host("h1"), REPORT, locale="de"), PAYLOAD) == "h1"
    assert new.verified_sender(REPORT, signed(old.of_host("h1"), REPORT), PAYLOAD) == "h1"
    assert old.of_host("h1").verified_sender(ORDER, signed(new, ORDER, locale="de"), PAYLOAD) == ""
    assert new.of_host("h1").verified_sender(ORDER, signed(old, ORDER), PAYLOAD) == ""


def test_field_of_a_newer_release_is_covered_for_an_older_release(newer):
    wire = signed(newer().of_host("h1"), REPORT, locale="de")
    refused(control(), REPORT, {**wire, "locale": "fr"})
    del wire["locale"]
    refused(control(), REPORT, wire, "lacks locale")


def test_field_of_the_receivers_release_cannot_be_added(newer):
    wire = {**signed(control().of_host("h1"), REPORT), "locale": "de"}
    assert control().verified_sender(REPORT, wire, PAYLOAD) == "h1"  # Ignored, like a field added by a broker.
    refused(newer(), REPORT, wire, "does not cover locale")


@pytest.mark.parametrize("name", [*RequestContext.FIELDS, "auth_token", "steady", "clock", "seconds"])
def test_evaluated_fields_cannot_be_added(name):
    host = control().of_host("h1")
    wire = {"sent_at": time.time()}
    wire[FIELD] = host.sign(REPORT, wire, PAYLOAD)
    assert control().verified_sender(REPORT, wire, PAYLOAD) == "h1"
    for value in ("x", None):
        refused(control(), REPORT, {**wire, name: value}, f"does not cover {name}")


def test_signed_fields_cannot_be_removed_or_renamed():
    wire = signed(control().of_host("h1"), REPORT)
    for name in (*CONTEXT, "sent_at"):
        without = {key: value for key, value in wire.items() if key != name}
        refused(control(), REPORT, without, f"lacks {name}")
        refused(control(), REPORT, {**without, "project_id": wire[name]})
        covers = ["project_id" if field == name else field for field in wire[FIELD]["covers"]]
        refused(control(), REPORT, {**without, "project_id": wire[name], FIELD: {**wire[FIELD], "covers": covers}})


def test_list_of_covered_fields_cannot_be_changed():
    wire = signed(control().of_host("h1"), REPORT)
    covers = wire[FIELD]["covers"]
    for changed in ([], covers[1:], covers[:-1], covers[::-1], [*covers, covers[0]], [*covers, "more"],
                    [*covers, FIELD], None, "sent_at", [1], ["\ud800"]):
        refused(control(), REPORT, {**wire, FIELD: {**wire[FIELD], "covers": changed}})


@pytest.mark.parametrize("part", ["by", "covers"])
def test_unverified_text_does_not_forge_log_lines(part):
    wire = signed(control().of_host("h1"), REPORT)
    text = "x\n2026-11-23 00:00:00 INFO nova all is well " * 1000
    wire[FIELD][part] = text if part == "by" else [text]
    with pytest.raises(exception.CallerRefused) as refusal:
        control().verified_sender(REPORT, wire, PAYLOAD)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_ambiguous_or_timeless_messages_are_refused_with_a_valid_key():
    """A signed message must not name a field twice, nor omit the time of sending."""
    host = control().of_host("h1")

    class Twice(dict):
        def __iter__(self):
            return iter([*self.keys(), "sent_at"])

    fields = Twice(sent_at=time.time())
    refused(control(), REPORT, {**fields, FIELD: host.sign(REPORT, fields, PAYLOAD)}, "twice")
    refused(Keys(MASTER, required=True), REPORT, {FIELD: host.sign(REPORT, {}, PAYLOAD)}, "does not cover sent_at")


@pytest.mark.parametrize("value", [float("nan"), 2**70, "\ud800", [float("inf")]])
def test_values_that_no_sender_encodes_are_refused(value):
    wire = signed(control().of_host("h1"), REPORT, global_request_id="x", steady=None)
    for name in ("global_request_id", "steady"):
        refused(control(), REPORT, {**wire, name: value})
    refused(control(), REPORT, {**wire, FIELD: {**wire[FIELD], "mac": value}})


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                       lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
                       max_leaves=5)
FIELDS = (*RequestContext.FIELDS, "auth_token", "sent_at", "steady", "clock", "seconds")
SENT_FIELDS = st.dictionaries(st.sampled_from([n for n in FIELDS if n != "sent_at"]) | st.text(max_size=8),
                                  st.text() | st.booleans() | st.lists(st.text()) | st.floats(allow_nan=False))


@given(data=st.data(), fields=SENT_FIELDS, from_host=st.booleans(), payload=st.text(max_size=20))
def test_random_change_of_a_signed_message_is_refused(data, fields, from_host, payload):
    sender, receiver = (control().of_host("h1"), control()) if from_host else (control(), control().of_host("h1"))
    address = REPORT if from_host else ORDER
    fields = {**{key: value for key, value in fields.items() if key != FIELD}, "sent_at": time.time()}
    wire = json.loads(json.dumps({**fields, FIELD: sender.sign(address, fields, payload)}))
    assert receiver.verified_sender(address, wire, payload) == ("h1" if from_host else "")

    change = data.draw(st.sampled_from(["value", "removal", "addition", "payload", "method", "host", "signature"]))
    if change == "value":
        name = data.draw(st.sampled_from(sorted(fields)))
        value = data.draw(VALUES.filter(lambda value: json.dumps(value) != json.dumps(wire[name])))
        wire = {**wire, name: value}
    elif change == "removal":
        del wire[data.draw(st.sampled_from(sorted(fields)))]
    elif change == "addition":
        missing = sorted(set(FIELDS) - set(fields))
        wire = {**wire, data.draw(st.sampled_from(missing)): data.draw(VALUES)} if missing else {}
    elif change == "payload":
        payload = data.draw(st.text(max_size=20).filter(lambda text: text != payload))
    elif change == "method":
        address = Address(data.draw(st.text().filter(lambda text: text != address.method)), address.host)
    elif change == "host":
        address = Address(address.method, data.draw(st.text().filter(lambda text: text != address.host)))
    else:
        part = data.draw(st.sampled_from(sorted(wire[FIELD])))
        value = data.draw(VALUES.filter(lambda value: value != wire[FIELD][part]))
        wire = {**wire, FIELD: {**wire[FIELD], part: value}}
    refused(receiver, address, wire, payload=payload)


def test_all_sent_fields_are_covered():
    """A field that is added to messages is covered automatically."""
    ctx = RequestContext(user_id="u", project_id="p", roles=["member"], is_admin=True, user_name="ann",
                         global_request_id="req-2", auth_token="secret", overwrite=False)
    host = control().of_host("h1")
    outgoing = bus.transport.Outgoing(ctx, 20.0, True, lambda wire: host.sign(REPORT, wire, PAYLOAD))
    wire = bus.transport.ContextSerializer().serialize_context(outgoing)
    assert {*wire} == {*wire[FIELD]["covers"], FIELD}
    assert control().verified_sender(REPORT, wire, PAYLOAD) == "h1"
