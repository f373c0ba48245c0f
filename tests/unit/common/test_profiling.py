"""Profiles of a running process, in the formats of pprof and speedscope."""

import contextlib
import gzip
import http.client
import json
import socket
import subprocess
import sys
import threading

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from nova.common import profiling
from nova.common.errors import Invalid, Refused

SECRET = "a-shared-secret"
_KINDS = {"int": descriptor_pb2.FieldDescriptorProto.TYPE_INT64, "id": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
          "str": descriptor_pb2.FieldDescriptorProto.TYPE_STRING}
# The used part of profile.proto: {message: {field: (number, type, repeated)}}
_PROTO = {
    "ValueType": {"type": (1, "int", False), "unit": (2, "int", False)},
    "Sample": {"location_id": (1, "id", True), "value": (2, "int", True)},
    "Line": {"function_id": (1, "id", False), "line": (2, "int", False)},
    "Location": {"id": (1, "id", False), "line": (4, "Line", True)},
    "Function": {"id": (1, "id", False), "name": (2, "int", False), "system_name": (3, "int", False),
                 "filename": (4, "int", False)},
    "Profile": {"sample_type": (1, "ValueType", True), "sample": (2, "Sample", True), "location": (4, "Location", True),
                "function": (5, "Function", True), "string_table": (6, "str", True), "time_nanos": (9, "int", False),
                "duration_nanos": (10, "int", False), "period_type": (11, "ValueType", False),
                "period": (12, "int", False)}}


@pytest.fixture(scope="module")
def profile_class():
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for name, fields in _PROTO.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in _KINDS:
                added.type = _KINDS[kind]
            else:
                added.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                added.type_name = f".perftools.profiles.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


@pytest.fixture
def server():
    server = profiling.serve("127.0.0.1:0", SECRET)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def address(server):
    return server.server_address


def get(address, path, **headers):
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", path, headers={"Authorization": f"Bearer {SECRET}", **headers})
    answer = connection.getresponse()
    return answer.status, answer.read()


def spin_for_ever(end):
    while not end.is_set():
        sum(range(2000))


@pytest.fixture
def busy():
    end = threading.Event()
    thread = threading.Thread(target=spin_for_ever, args=(end,), name="busy")
    thread.start()
    yield
    end.set()
    thread.join()


def stacks(profile):
    """Return the value per stack, as a tuple of functions from the innermost to the outermost."""
    names = {one.id: profile.string_table[one.name] for one in profile.function}
    places = {one.id: names[one.line[0].function_id] for one in profile.location}
    return {tuple(places[ident] for ident in one.location_id): one.value[0] for one in profile.sample}


def test_cpu_profile_is_returned_in_pprof_format(address, busy, profile_class):
    status, body = get(address, "/debug/pprof/profile?seconds=0.5")
    profile = profile_class.FromString(gzip.decompress(body))
    assert (status, profile.string_table[0], profile.duration_nanos) == (200, "", 500_000_000)
    kind, = profile.sample_type
    assert [profile.string_table[number] for number in (kind.type, kind.unit)] == ["cpu", "nanoseconds"]
    spent = {stack: value for stack, value in stacks(profile).items() if "thread busy" in stack}
    assert sum(spent.values()) > 1_000_000
    assert all("spin_for_ever" in stack for stack in spent if len(stack) > 4)
    assert any(stack[-1] == "thread busy" and "spin_for_ever" in stack for stack in spent)


def test_cpu_profile_is_returned_in_speedscope_format(address, busy):
    status, body = get(address, "/debug/pprof/profile?seconds=0.3&format=speedscope")
    found = json.loads(body)
    profile, = found["profiles"]
    assert (status, profile["type"], profile["unit"]) == (200, "sampled", "nanoseconds")
    assert len(profile["samples"]) == len(profile["weights"]) > 0
    assert sum(profile["weights"]) == profile["endValue"]
    names = [frame["name"] for frame in found["shared"]["frames"]]
    assert any(names[sample[0]] == "thread busy" for sample in profile["samples"])


def test_heap_profile_lists_types_and_allocation_locations(address, profile_class):
    profile = profile_class.FromString(gzip.decompress(get(address, "/debug/pprof/heap")[1]))
    assert any(stack[0] == "builtins.dict" and value > 1000 for stack, value in stacks(profile).items())
    kept = []

    def allocate():
        for _number in range(200):
            kept.append(bytearray(10_000))
            threading.Event().wait(0.005)
    thread = threading.Thread(target=allocate)
    thread.start()
    profile = profile_class.FromString(gzip.decompress(get(address, "/debug/pprof/heap?seconds=0.5")[1]))
    thread.join()
    assert max(stacks(profile).items(), key=lambda item: item[1])[0][0].startswith("test_profiling:")


@pytest.mark.parametrize(("path", "headers", "status"), [
    ("/debug/pprof/profile?seconds=301", {}, 400), ("/debug/pprof/profile?seconds=0", {}, 400),
    ("/debug/pprof/profile?seconds=nan", {}, 400), ("/debug/pprof/heap?seconds=x", {}, 400),
    ("/debug/pprof/profile?format=svg", {}, 400), ("/debug/pprof/", {}, 404), ("/etc/passwd", {}, 404),
    ("x://[", {}, 400), ("/debug/pprof/heap", {"Host": "attacker.example:6060"}, 403),
    *((path, {"Authorization": given}, 401) for path in ("/debug/pprof/heap", "/debug/pprof/profile", "/")
      for given in ("", "Bearer", "Bearer wrong", f"Bearer {SECRET}x", f"Basic {SECRET}", "Bearer \xff"))])
def test_invalid_profiling_requests_are_refused(address, path, headers, status):
    assert get(address, path, **headers)[0] == status


def test_concurrent_profile_is_refused(address):
    with profiling._Handler.turn:
        assert get(address, "/debug/pprof/profile?seconds=1")[0] == 429


def handlers():
    """Return the threads that serve connections."""
    return [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]


def wait_for_threads(most):
    for _number in range(600):
        if len(handlers()) <= most:
            return
        threading.Event().wait(0.05)
    raise AssertionError(handlers())


def test_idle_connections_do_not_block_profiles(address):
    before = len(handlers())
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(address, timeout=30)) for _number in range(300)]
        assert get(address, "/debug/pprof/heap")[0] == 200
        wait_for_threads(before + profiling._CONNECTIONS)
        assert idle[0].recv(1) == b""  # The oldest connections were closed.


def test_slow_request_is_disconnected(address, monkeypatch):
    monkeypatch.setattr(profiling, "_REQUEST_TIMEOUT", 1.0)
    with socket.create_connection(address, timeout=0.05) as sock:
        sock.sendall(b"GET /debug/pprof/heap HTTP/1.0\r\n")
        for _number in range(600):  # Each byte would restart a timeout that covers a single read.
            try:
                sock.sendall(b"X")
                assert sock.recv(1) == b""
            except TimeoutError:
                continue
            except (BrokenPipeError, ConnectionResetError):
                pass
            break
        else:
            pytest.fail("still connected")


def test_slow_reader_of_a_profile_is_disconnected(address, server, monkeypatch):
    monkeypatch.setattr(profiling, "_RESPONSE_TIMEOUT", 1.0)
    before = len(handlers())
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(address)
        sock.sendall(b"GET /debug/pprof/heap?format=speedscope HTTP/1.0\r\nHost: 127.0.0.1:1\r\n"
                     b"Authorization: Bearer " + SECRET.encode() + b"\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.0 200"
        wait_for_threads(before)
    assert get(address, "/debug/pprof/heap")[0] == 200


def test_profile_is_returned_while_idle_clients_connect(address):
    """Check that only connections without an authorized request are replaced."""
    with contextlib.ExitStack() as stack:
        taken = []
        profile = threading.Thread(target=lambda: taken.append(get(address, "/debug/pprof/profile?seconds=1")[0]))
        profile.start()
        for _number in range(200):
            stack.enter_context(socket.create_connection(address, timeout=30))
            threading.Event().wait(0.01)
        profile.join()
    assert taken == [200]


@pytest.mark.parametrize("given", ["0.0.0.0:6060", ":6060", "6060", "192.0.2.1:1", "127.0.0.1:x"])
def test_profiling_address_must_be_on_loopback(given):
    with pytest.raises(Invalid, match="--pprof-addr"):
        profiling.serve(given, SECRET)


def test_profiling_address_in_use_is_reported(address):
    with pytest.raises(Refused, match="--pprof-addr: 127"):
        profiling.serve(f"127.0.0.1:{address[1]}", SECRET)


def test_profiling_is_not_imported_without_the_option():
    code = ("import sys, nova.cmd.novad, nova.novad.server, nova.novad.runtime.podman; "
            "sys.exit(bool({'nova.common.profiling', 'tracemalloc'} & set(sys.modules)))")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
