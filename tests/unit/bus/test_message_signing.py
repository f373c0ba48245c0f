"""Signatures of messages, and verification of their senders."""

import os
import time
import tracemalloc
import types

import pytest
from oslo_config import cfg

from nova import bus, conf, context, exception
from nova.bus.message_signing import FIELD, Address, Keys, configured, read, text_of
from nova.bus.server import endpoint
from nova.bus.transport import ContextSerializer

MASTER = os.urandom(32)
REPORT, ORDER, QUESTION = Address("engine.step_done"), Address("compute.run", "h1"), Address("servers.get")
PAYLOAD = "gaR1dWlk"


def control(**options):
    return Keys(MASTER, required=True, age=60, **options)


def signed(keys, address, payload=PAYLOAD, **said):
    wire = {"request_id": "req-1", "sent_at": time.time(), **said}
    signature = keys.sign(address, wire, payload)
    return wire if signature is None else {**wire, FIELD: signature}


def test_host_and_control_plane_verify_the_sender():
    host = control().of_host("h1")
    assert control().verified_sender(REPORT, signed(host, REPORT), PAYLOAD) == "h1"
    assert host.verified_sender(ORDER, signed(control(), ORDER), PAYLOAD) == ""
    assert control().verified_sender(QUESTION, signed(control(), QUESTION), PAYLOAD) == ""


def test_unsigned_field_added_by_the_broker_is_accepted():
    wire = signed(control().of_host("h1"), REPORT)
    assert control().verified_sender(REPORT, {**wire, "client_timeout": None}, PAYLOAD) == "h1"


@pytest.mark.parametrize("change", [{"is_admin": True}, {"user_id": "other"}, {"sent_at": time.time() + 1},
                                    {"auth_token": "x"}])
def test_modified_message_is_detected(change):
    wire = {**signed(control().of_host("h1"), REPORT), **change}
    with pytest.raises(exception.CallerRefused):
        control().verified_sender(REPORT, wire, PAYLOAD)


def test_signature_is_valid_for_a_single_message_and_receiver():
    wire = signed(control(), ORDER)
    for address, payload, keys in ((Address("compute.reap", "h1"), PAYLOAD, control().of_host("h1")),
                                   (ORDER, PAYLOAD + "x", control().of_host("h1")),
                                   (Address("compute.run", "h2"), PAYLOAD, control().of_host("h2"))):
        with pytest.raises(exception.CallerRefused):
            keys.verified_sender(address, wire, payload)


def test_host_cannot_impersonate_another_host_or_the_control_plane():
    evil = control().of_host("h2")
    wire = signed(evil, REPORT)
    for by in ("", "h1"):
        with pytest.raises(exception.CallerRefused):
            control().verified_sender(REPORT, {**wire, FIELD: {**wire[FIELD], "by": by}}, PAYLOAD)
    for receiver in ("h1", "h2"):
        order = Address("compute.run", receiver)
        forged = signed(evil, order)
        forged[FIELD]["by"] = ""
        with pytest.raises(exception.CallerRefused):
            control().of_host(receiver).verified_sender(order, forged, PAYLOAD)


class Echo(bus.Interface):
    """An interface that hosts may call."""

    topic, namespace = "echo", "echo"

    @bus.by_hosts
    @bus.call
    def show(self, ctx: context.RequestContext) -> list[str]: ...


def test_message_of_a_host_carries_no_user_rights():
    """Roles and tokens in messages of the control plane are used; those in messages of a host are not."""
    seen = []
    echo = endpoint(Echo, types.SimpleNamespace(show=lambda ctx: seen.append(ctx) or []), keys=control())
    claims = {"roles": ["admin"], "service_roles": ["service"], "is_admin": True, "auth_token": "t"}
    payload = Echo.methods()["show"].encode({})
    for keys in (control(), control().of_host("h1")):
        wire = signed(keys, Address("echo.show"), payload, user_id="u", project_id="p", **claims)
        assert "r" in echo.show(ContextSerializer().deserialize_context(wire), payload)
    rights = [(ctx.roles, ctx.service_roles, ctx.is_admin, ctx.auth_token, ctx.calling_host) for ctx in seen]
    assert rights == [(["admin"], ["service"], True, "t", ""), ([], [], False, None, "h1")]


@pytest.mark.parametrize("signature", [None, {}, "x", {"by": "h1", "generation": "1", "mac": "x"},
                                  {"by": "h1", "generation": 1, "mac": "\u00e4"}])
def test_malformed_message_signature_is_refused(signature):
    wire = {**signed(control(), QUESTION), FIELD: signature}
    with pytest.raises(exception.CallerRefused):
        control().verified_sender(QUESTION, wire, PAYLOAD)


def test_messages_with_old_or_future_timestamps_are_refused():
    host = control().of_host("h1")
    for moment in (time.time() - 3600, time.time() + 3600, "now"):
        with pytest.raises(exception.CallerRefused, match="older than seal_age"):
            control().verified_sender(REPORT, signed(host, REPORT, sent_at=moment), PAYLOAD)
    assert Keys(MASTER, required=True).verified_sender(REPORT, signed(host, REPORT, sent_at=0.0), PAYLOAD) == "h1"


def test_key_of_another_generation_is_refused():
    stolen = control().of_host("h1")
    after = control(generations={"h1": 2})
    with pytest.raises(exception.CallerRefused, match="generation"):
        after.verified_sender(REPORT, signed(stolen, REPORT), PAYLOAD)
    with pytest.raises(exception.CallerRefused, match="generation"):
        stolen.verified_sender(ORDER, signed(after, ORDER), PAYLOAD)
    fresh = after.of_host("h1")
    assert after.verified_sender(REPORT, signed(fresh, REPORT), PAYLOAD) == "h1"
    assert fresh.verified_sender(ORDER, signed(after, ORDER), PAYLOAD) == ""


def test_unsigned_messages_are_accepted_until_signatures_are_required():
    """Keys can be deployed service by service; an invalid signature is refused in any case."""
    lenient = Keys(MASTER)
    wire = signed(Keys(), REPORT)
    assert lenient.verified_sender(REPORT, wire, PAYLOAD) == ""
    assert Keys().verified_sender(REPORT, signed(lenient.of_host("h1"), REPORT), PAYLOAD) == ""
    with pytest.raises(exception.CallerRefused):
        lenient.verified_sender(REPORT, signed(Keys(os.urandom(32), "h1"), REPORT), PAYLOAD)


@pytest.mark.parametrize(("text", "mode", "reason"), [
    ("", 0o600, "the file contains no key"), ("host h1 x y", 0o600, "invalid literal|non-hexadecimal"),
    ("master 00", 0o600, "too short"), (text_of(bytes(32)), 0o644, "all users may read"),
    (None, 0o600, "No such file")])
def test_unusable_key_file_is_refused_with_the_reason(tmp_path, text, mode, reason):
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(exception.InvalidInput, match=reason):
        read(str(path))


def test_key_file_round_trip(tmp_path):
    for key, host, generation in ((MASTER, "", 1), (MASTER, "h1.example", 3)):
        path = tmp_path / "key"
        path.write_text(text_of(key, host, generation))
        path.chmod(0o640)
        assert read(str(path)) == (key, host, generation)


def test_required_signatures_need_a_key():
    own = cfg.ConfigOpts()
    conf.register(own)
    own([], default_config_files=[])
    assert configured(own).sign(REPORT, {}, PAYLOAD) is None
    own.set_override("require_seals", True, group="rpc")
    with pytest.raises(exception.InvalidInput, match="needs a"):
        configured(own)


def test_unverified_senders_do_not_fill_the_memory():
    """Names of senders are not verified yet when their keys are cached, so the memory for them is limited."""
    keys, wire = control(), signed(control().of_host("h1"), REPORT)
    tracemalloc.start()
    try:
        for number in range(50):
            signature = {**wire[FIELD], "by": f"{number}{'x' * 100_000}"}
            with pytest.raises(exception.CallerRefused) as refused:
                keys.verified_sender(REPORT, {**wire, FIELD: signature}, PAYLOAD)
            assert len(str(refused.value)) < 1000
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
