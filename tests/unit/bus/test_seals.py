"""Seals: who a message is from, whatever it says of itself."""

import os
import time
import tracemalloc
import types

import pytest
from oslo_config import cfg

from nova import bus, conf, context, exception
from nova.bus.seals import SEAL, Address, Keys, configured, read, text_of
from nova.bus.server import endpoint
from nova.bus.transport import ContextSerializer

MASTER = os.urandom(32)
REPORT, ORDER, QUESTION = Address("engine.step_done"), Address("compute.run", "h1"), Address("servers.get")
PAYLOAD = "gaR1dWlk"


def control(**options):
    return Keys(MASTER, required=True, age=60, **options)


def sealed(keys, address, payload=PAYLOAD, **said):
    wire = {"request_id": "req-1", "sent_at": time.time(), **said}
    seal = keys.seal(address, wire, payload)
    return wire if seal is None else {**wire, SEAL: seal}


def test_each_side_knows_the_other():
    host = control().of_host("h1")
    assert control().sender(REPORT, sealed(host, REPORT), PAYLOAD) == "h1"
    assert host.sender(ORDER, sealed(control(), ORDER), PAYLOAD) == ""
    assert control().sender(QUESTION, sealed(control(), QUESTION), PAYLOAD) == ""


def test_what_the_broker_adds_is_no_forgery():
    wire = sealed(control().of_host("h1"), REPORT)
    assert control().sender(REPORT, {**wire, "client_timeout": None}, PAYLOAD) == "h1"


@pytest.mark.parametrize("change", [{"is_admin": True}, {"user_id": "other"}, {"sent_at": time.time() + 1},
                                    {"auth_token": "x"}])
def test_whatever_is_changed_under_way_is_noticed(change):
    wire = {**sealed(control().of_host("h1"), REPORT), **change}
    with pytest.raises(exception.CallerRefused):
        control().sender(REPORT, wire, PAYLOAD)


def test_a_seal_is_for_one_message_to_one_receiver():
    wire = sealed(control(), ORDER)
    for address, payload, keys in ((Address("compute.reap", "h1"), PAYLOAD, control().of_host("h1")),
                                   (ORDER, PAYLOAD + "x", control().of_host("h1")),
                                   (Address("compute.run", "h2"), PAYLOAD, control().of_host("h2"))):
        with pytest.raises(exception.CallerRefused):
            keys.sender(address, wire, payload)


def test_a_host_cannot_pass_itself_off_as_another_or_as_the_control_plane():
    evil = control().of_host("h2")
    wire = sealed(evil, REPORT)
    for by in ("", "h1"):
        with pytest.raises(exception.CallerRefused):
            control().sender(REPORT, {**wire, SEAL: {**wire[SEAL], "by": by}}, PAYLOAD)
    for receiver in ("h1", "h2"):
        order = Address("compute.run", receiver)
        forged = sealed(evil, order)
        forged[SEAL]["by"] = ""
        with pytest.raises(exception.CallerRefused):
            control().of_host(receiver).sender(order, forged, PAYLOAD)


class Desk(bus.Interface):
    """Whom a question is from, as whoever answers sees it."""

    topic, namespace = "desk", "desk"

    @bus.by_hosts
    @bus.call
    def asked(self, ctx: context.RequestContext) -> list[str]: ...


def test_a_host_has_no_rights_but_its_own_whatever_it_says():
    """The control plane is believed to speak for an administrator; a host is not."""
    seen = []
    desk = endpoint(Desk, types.SimpleNamespace(asked=lambda ctx: seen.append(ctx) or []), keys=control())
    claims = {"roles": ["admin"], "service_roles": ["service"], "is_admin": True, "auth_token": "t"}
    payload = Desk.methods()["asked"].encode({})
    for keys in (control(), control().of_host("h1")):
        wire = sealed(keys, Address("desk.asked"), payload, user_id="u", project_id="p", **claims)
        assert "r" in desk.asked(ContextSerializer().deserialize_context(wire), payload)
    rights = [(ctx.roles, ctx.service_roles, ctx.is_admin, ctx.auth_token, ctx.asking_host) for ctx in seen]
    assert rights == [(["admin"], ["service"], True, "t", ""), ([], [], False, None, "h1")]


@pytest.mark.parametrize("seal", [None, {}, "x", {"by": "h1", "generation": "1", "mac": "x"},
                                  {"by": "h1", "generation": 1, "mac": "\u00e4"}])
def test_what_is_no_seal_is_refused(seal):
    wire = {**sealed(control(), QUESTION), SEAL: seal}
    with pytest.raises(exception.CallerRefused):
        control().sender(QUESTION, wire, PAYLOAD)


def test_an_old_message_is_refused_and_so_is_one_from_the_future():
    host = control().of_host("h1")
    for moment in (time.time() - 3600, time.time() + 3600, "now"):
        with pytest.raises(exception.CallerRefused, match="sent long ago"):
            control().sender(REPORT, sealed(host, REPORT, sent_at=moment), PAYLOAD)
    assert Keys(MASTER, required=True).sender(REPORT, sealed(host, REPORT, sent_at=0.0), PAYLOAD) == "h1"


def test_a_key_of_another_generation_is_worth_nothing():
    stolen = control().of_host("h1")
    after = control(generations={"h1": 2})
    with pytest.raises(exception.CallerRefused, match="generation"):
        after.sender(REPORT, sealed(stolen, REPORT), PAYLOAD)
    with pytest.raises(exception.CallerRefused, match="generation"):
        stolen.sender(ORDER, sealed(after, ORDER), PAYLOAD)
    fresh = after.of_host("h1")
    assert after.sender(REPORT, sealed(fresh, REPORT), PAYLOAD) == "h1"
    assert fresh.sender(ORDER, sealed(after, ORDER), PAYLOAD) == ""


def test_until_seals_are_required_who_has_none_is_believed():
    """So that services get their keys one after the other; one that is wrong is refused all the same."""
    lenient = Keys(MASTER)
    wire = sealed(Keys(), REPORT)
    assert lenient.sender(REPORT, wire, PAYLOAD) == ""
    assert Keys().sender(REPORT, sealed(lenient.of_host("h1"), REPORT), PAYLOAD) == ""
    with pytest.raises(exception.CallerRefused):
        lenient.sender(REPORT, sealed(Keys(os.urandom(32), "h1"), REPORT), PAYLOAD)


@pytest.mark.parametrize(("text", "mode", "reason"), [
    ("", 0o600, "it holds no key"), ("host h1 x y", 0o600, "invalid literal|non-hexadecimal"),
    ("master 00", 0o600, "too short"), (text_of(bytes(32)), 0o644, "everybody may read"),
    (None, 0o600, "No such file")])
def test_a_key_file_that_cannot_be_used_says_why(tmp_path, text, mode, reason):
    path = tmp_path / "key"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(exception.InvalidInput, match=reason):
        read(str(path))


def test_a_key_is_read_as_it_was_written(tmp_path):
    for key, host, generation in ((MASTER, "", 1), (MASTER, "h1.example", 3)):
        path = tmp_path / "key"
        path.write_text(text_of(key, host, generation))
        path.chmod(0o640)
        assert read(str(path)) == (key, host, generation)


def test_seals_are_not_required_without_a_key():
    own = cfg.ConfigOpts()
    conf.register(own)
    own([], default_config_files=[])
    assert configured(own).seal(REPORT, {}, PAYLOAD) is None
    own.set_override("require_seals", True, group="rpc")
    with pytest.raises(exception.InvalidInput, match="needs a"):
        configured(own)


def test_senders_that_nobody_has_heard_of_do_not_fill_the_memory():
    """Whoever reaches the queue may name himself; what is remembered of each is little."""
    keys, wire = control(), sealed(control().of_host("h1"), REPORT)
    tracemalloc.start()
    try:
        for number in range(50):
            with pytest.raises(exception.CallerRefused) as refused:
                keys.sender(REPORT, {**wire, SEAL: {**wire[SEAL], "by": f"{number}{'x' * 100_000}"}}, PAYLOAD)
            assert len(str(refused.value)) < 1000
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
