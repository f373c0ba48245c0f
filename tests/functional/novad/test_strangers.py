"""Unauthenticated and malformed calls to novad."""

import contextlib
import socket
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from nova.novad import server as module
from tests.functional.client import wait_for


@pytest.fixture
def channel(node):
    with grpc.insecure_channel(f"127.0.0.1:{node.server.port}") as channel:
        yield channel


def unfinished(channel, method):
    """Start a call that never sends its request."""
    never = threading.Event()

    def nothing():
        never.wait(30)
        yield from ()
    call = channel.stream_unary(method).future(nothing(), timeout=30)
    call.never = never
    return call


@pytest.mark.parametrize("method", ["/nova.novad.v1.Platform/Show", "/nova.novad.v1.Logs/Read", "/no.such/Method"])
def test_unauthenticated_unfinished_calls_hold_no_threads(node, channel, method):
    calls = [unfinished(channel, method) for _number in range(module._THREADS + 8)]
    assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
    assert node.nova("info").code == 0
    for call in calls:
        call.never.set()


def test_health_check_is_answered_before_the_request_body_arrives(node, channel):
    """Check that the health service replies without holding a thread."""
    calls = [unfinished(channel, "/grpc.health.v1.Health/Check") for _number in range(module._THREADS + 8)]
    assert {health_pb2.HealthCheckResponse.FromString(call.result()).status for call in calls} == {
        health_pb2.HealthCheckResponse.SERVING}
    for call in calls:
        call.never.set()


def test_health_watch_without_the_secret_is_refused(node, channel):
    with pytest.raises(grpc.RpcError) as raised:
        list(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=10))
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_idle_and_invalid_connections_do_not_block_novad(node):
    with contextlib.ExitStack() as stack:
        for number in range(400):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", node.server.port), timeout=10))
            if number % 2:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        assert "api: runs version 1" in node.nova("deploy").out
    wait_for(lambda: node.nova("info").code == 0, 10)


def test_too_large_request_to_novad_is_refused(node):
    ended = node.nova("deploy", "db=" + "1" * (2 << 20), code=1)
    assert "larger" in ended.err or "exceed" in ended.err
    assert node.daemon.journal.deployments() == []


def test_corrupt_journal_is_reported_and_blocks_deployments(node):
    node.nova("deploy")
    journal = node.daemon.journal
    journal._connection.execute("pragma wal_checkpoint(truncate)")
    with open(journal.path, "r+b") as file:
        size = file.seek(0, 2)
        file.seek(100)
        file.write(b"\xff" * (size - 100))
    journal._connection.execute("pragma shrink_memory")
    before = dict(node.runtime.running)
    for words in (("history",), ("deploy", "api=2"), ("platform-info",)):
        assert "The journal" in node.nova(*words, code=1).err
    assert node.runtime.running == before
