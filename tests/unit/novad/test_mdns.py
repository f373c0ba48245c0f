"""mDNS announcements of novad, and the handling of untrusted announcements."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import ServiceStateChange

from nova.novad import mdns
from nova.novad.mdns import TYPE, Announcement, Instance, Watch, instance
from nova.novad.nodes import discovery
from nova.novad.nodes.discovery import announced
from nova.novad.options import Options

IPV4 = bytes([10, 0, 0, 7])


def test_instance_is_parsed_from_its_mdns_record():
    found = instance(f"n1.{TYPE}", {b"version": b"1.2", b"node": b"n1.example.org", b"roles": b"control,compute",
                                    b"tls": b"1"}, [IPV4, bytes(15) + b"\1"], 18080)
    assert found == Instance(name="n1", node="n1.example.org", version="1.2", roles=("control", "compute"),
                             addresses=("tls://10.0.0.7:18080", "tls://[::1]:18080"))


def test_untrusted_record_is_truncated_and_stripped_of_control_characters():
    found = instance(f"\x1b[2Jevil\x07\r\n.{TYPE}", {
        b"version": b"1\x1b]0;owned\x07" * 99, b"node": "\u202egnp.exe\x00".encode() + b"\xff" * 500,
        b"roles": b",".join([b"../../etc", b"control", b"a b", b""] + [b"x"] * 500), b"tls": None}, [IPV4] * 99, 1)
    assert found.name == "[2Jevil"
    assert (len(found.version), len(found.node), len(found.addresses)) == (40, 63, 16)
    assert set(found.roles) == {"control", "x"}
    assert all(text.isprintable() for text in (found.name, found.version, found.node, *found.roles))


@given(st.text(), st.dictionaries(st.binary(), st.none() | st.binary()), st.lists(st.binary()), st.integers(0, 65535))
def test_arbitrary_record_is_parsed_without_errors(name, properties, addresses, port):
    wanted = {b"version": b"", b"node": b"", b"roles": b"", b"tls": b""}
    values = list(properties.values())
    found = instance(name, {**properties, **dict(zip(wanted, values, strict=False))}, addresses, port)
    assert (found.name + found.node + found.version).isprintable()


ADDRESSES = {"127.0.0.1": "lo", "::1": "lo", "10.0.0.7": "eth0", "192.0.2.9": "eth1", "2001:db8::1": "eth1",
             "fe80::1": "eth0"}


class Adapter:
    def __init__(self, name):
        self.name = name
        self.ips = [type("IP", (), {"ip": (ip, 0, 0) if ":" in ip else ip})
                    for ip, at in ADDRESSES.items() if at == name]


@pytest.mark.parametrize(("listen", "announce", "said"), [
    ("127.0.0.1", True, ["127.0.0.1"]), ("localhost", True, ["127.0.0.1"]), ("10.0.0.7", True, ["10.0.0.7"]),
    ("0.0.0.0", True, ["10.0.0.7", "192.0.2.9"]), ("[::]", True, ["10.0.0.7", "192.0.2.9", "2001:db8::1"]),
    ("0.0.0.0", ("eth1",), ["192.0.2.9"]), ("0.0.0.0", ("10.0.0.7", "127.0.0.1"), ["10.0.0.7"]),
    ("10.0.0.7", ("192.0.2.9",), []), ("127.0.0.1", ("eth0",), []), ("198.51.100.1", True, []),
    ("no.such.name.invalid", True, [])])
def test_only_listening_addresses_are_announced(listen, announce, said, monkeypatch):
    monkeypatch.setattr("ifaddr.get_adapters", lambda: [Adapter(name) for name in ("lo", "eth0", "eth1")])
    monkeypatch.setattr(discovery.socket, "getaddrinfo", lambda host, *_args, **_more: [
        (0, 0, 0, "", ("127.0.0.1" if host == "localhost" else host, 0))])
    assert announced(Options(listen=f"tcp://{listen}:1", announce=announce)) == said


def test_watch_reports_added_and_removed_instances():
    told = Instance(name="", node="n1.test-of-mdns", version="1", roles=("control",), addresses=())
    with contextlib.closing(Watch(["127.0.0.1"])) as watch:
        made = Announcement(told, ["127.0.0.1"], 18993, tls=True)
        events = ((here, one) for here, one in watch.events(20) if one.node == told.node)
        here, one = next(events)
        assert (here, one.version, one.roles, one.addresses) == (True, "1", ("control",), ("tls://127.0.0.1:18993",))
        made.withdraw()
        assert next(events) == (False, one)


def test_complete_announcement_is_reported_while_silent_instances_fill_table_and_queue():
    """Resolving the silent instances takes two minutes, since nobody sends their addresses."""
    told = Instance(name="", node="n2.test-of-mdns", version="1", roles=(), addresses=())
    with contextlib.closing(Watch(["127.0.0.1"])) as watch:
        for number in range(mdns._MOST_INSTANCES + 100):
            watch._changed(None, TYPE, f"silent{number}.{TYPE}", ServiceStateChange.Added)
        made = Announcement(told, ["127.0.0.1"], 18994, tls=True)
        try:
            assert any(one.node == told.node for here, one in watch.events(20) if here)
        finally:
            made.withdraw()


def test_packet_flood_is_bounded_in_table_and_queue(monkeypatch):
    monkeypatch.setattr(mdns, "_MOST_INSTANCES", 5)
    with contextlib.closing(Watch(["127.0.0.1"])) as watch:
        watch._pool.shutdown()
        submitted = []
        watch._pool = type("Pool", (), {"submit": lambda _self, _work, name: submitted.append(name),
                                        "shutdown": lambda _self, **_words: None})()
        watch._zeroconf.get_service_info = lambda *_words: None  # An instance without an address.

        def heard(name, state=ServiceStateChange.Added):
            watch._changed(None, TYPE, f"{name}.{TYPE}", state)
        for _packet in range(50):
            heard("s0", ServiceStateChange.Updated)
        assert len(submitted) == 1
        for number in range(50):
            heard(f"s{number}")
        assert (len(submitted), len(watch._instances)) == (5, 5)
        for name in submitted:
            watch._resolve(name)
        heard("n2")
        assert (submitted[-1], len(watch._instances), f"s0.{TYPE}" in watch._instances) == (f"n2.{TYPE}", 5, False)


def test_full_table_of_resolved_instances_admits_new_ones(monkeypatch):
    monkeypatch.setattr(mdns, "_MOST_INSTANCES", 5)
    with contextlib.closing(Watch(["127.0.0.1"])) as watch:
        info = type("Info", (), {"port": 1, "properties": {}, "addresses_by_version": lambda _self, _version: [IPV4]})()
        watch._zeroconf.get_service_info = lambda *_words: info
        seen = []
        for number in range(12):
            watch._changed(None, TYPE, f"s{number}.{TYPE}", ServiceStateChange.Added)
            seen.append(next(one.name for here, one in watch.events(20) if here))
        assert seen == [f"s{number}" for number in range(12)]
        assert list(watch._instances) == [f"s{number}.{TYPE}" for number in range(7, 12)]
