"""Impostor servers and relays at the address of novad, and the local socket."""

import contextlib
import hashlib
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from nova.novad import client as module
from nova.novad import signing
from nova.novad.api import novad_pb2 as pb
from nova.novad.client import Client, Unreachable
from nova.novad.daemon import Daemon
from nova.novad.options import Options
from nova.novad.server import Server
from tests.functional.novad.conftest import free_port
from tests.unit.novad.runtimes import FakeRuntime
from tests.unit.novad.test_deploy import REGISTRY


class Relay:
    """A relay that forwards traffic between clients and a novad and records it."""

    def __init__(self, port):
        self.seen, self._port = bytearray(), port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                caller = self._listening.accept()[0]
                novad = socket.create_connection(("127.0.0.1", self._port))
                for source, target in ((caller, novad), (novad, caller)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source, target):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                self.seen.extend(piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def close(self):
        self._listening.close()


class Impostor(grpc.GenericRpcHandler):
    """A gRPC server without the secret that records the metadata of all calls and replies with ``answer``."""

    def __init__(self, answer):
        self.calls, self._answer = [], answer

    def service(self, details):
        self.calls.append((details.method, dict(details.invocation_metadata)))
        return grpc.stream_stream_rpc_method_handler(self._answered)

    def _answered(self, requests, context):
        self._answer(context)
        yield pb.ChallengeAnswer(nonce="0" * 80, proof="0" * 64).SerializeToString()


@contextlib.contextmanager
def impostor(answer):
    handler = Impostor(answer)
    server = grpc.server(ThreadPoolExecutor(4), handlers=[handler])
    handler.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield handler
    finally:
        server.stop(0).wait()


VERBS = [("info",), ("deploy",), ("secrets", "list"), ("service-logs", "--no-follow", "api")]


@pytest.mark.parametrize("answer", [
    lambda _context: None, lambda context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "what?"),
    lambda context: context.abort(grpc.StatusCode.UNAUTHENTICATED, "The shared secret is missing")],
    ids=["a wrong proof", "no such method", "an older novad"])
def test_impostor_server_receives_no_request_and_no_secret(node, answer):
    with impostor(answer) as found:
        for verb in VERBS:
            ended = node.nova("--addr", f"tcp://127.0.0.1:{found.port}", *verb, code=4)
            assert "does not prove that it knows the shared secret" in ended.err
    print(f"{len(VERBS)} verbs sent {[method for method, _metadata in found.calls]}")
    assert [method for method, _metadata in found.calls] == [signing.CHALLENGE] * len(VERBS)
    assert node.secret not in str(found.calls)


@pytest.fixture
def relay(node):
    relay = Relay(node.server.port)
    yield relay
    relay.close()


def test_relay_cannot_read_the_secret_or_replay_signatures(node, relay, monkeypatch):
    sent = []
    signature = signing.signature

    def kept(secret, method, ours, theirs, request):
        sent.append((method, request, signature(secret, method, ours, theirs, request)))
        return sent[-1][2]
    monkeypatch.setattr("nova.novad.signing.signature", kept)
    for verb in VERBS[1:]:
        node.nova("--addr", f"tcp://127.0.0.1:{relay.port}", *verb)
    assert b"registry/api" in relay.seen, "the relay reads the replies"
    assert node.secret.encode() not in relay.seen
    before = len(node.daemon.journal.deployments())
    with grpc.insecure_channel(f"127.0.0.1:{node.server.port}") as channel:
        tried = 0
        for method, request, old in sent:
            fresh = channel.unary_unary(signing.CHALLENGE)(b"", metadata=[(signing.NONCE, signing.new_nonce())])
            ours, _theirs, digest, mac = old.split()
            other = pb.DeployRequest(components=[pb.ComponentVersion(component="api", version="2")]).SerializeToString()
            nonce = pb.ChallengeAnswer.FromString(fresh).nonce
            for path, body, given in ((method, request, old), ("/nova.novad.v1.Platform/Remove", request, old),
                                      (method, other, old), (method, request, f"{ours} {nonce} {digest} {mac}"),
                                      (method, request, f"{ours} {nonce} {hashlib.sha256(other).hexdigest()} {mac}"),
                                      (method, request, "")):
                with pytest.raises(grpc.RpcError) as raised:
                    list(channel.unary_stream(path)(body, metadata=[(signing.SIGNATURE, given)], timeout=10))
                assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
                tried += 1
    print(f"{tried} calls made of {len(sent)} that were seen were refused")
    assert len(node.daemon.journal.deployments()) == before


def test_request_modified_by_a_relay_is_refused(node):
    with grpc.insecure_channel(f"127.0.0.1:{node.server.port}") as channel:
        ours = signing.new_nonce()
        answer = pb.ChallengeAnswer.FromString(channel.unary_unary(signing.CHALLENGE)(
            b"", metadata=[(signing.NONCE, ours)]))
        assert answer.proof == signing.proof(node.secret, ours, answer.nonce)
        method = "/nova.novad.v1.Platform/Deploy"
        signed = signing.signature(node.secret, method, ours, answer.nonce, b"")
        other = pb.DeployRequest(components=[pb.ComponentVersion(component="api", version="2")]).SerializeToString()
        with pytest.raises(grpc.RpcError, match="not the one that was signed"):
            list(channel.unary_stream(method)(other, metadata=[(signing.SIGNATURE, signed)], timeout=10))
    assert node.daemon.journal.deployments() == []


def test_client_of_the_previous_release_is_admitted_with_one_warning(node, caplog):
    with grpc.insecure_channel(f"127.0.0.1:{node.server.port}") as channel:
        for _time in range(2):
            channel.unary_unary("/nova.novad.v1.Daemon/Show")(
                b"", metadata=[("authorization", f"Bearer {node.secret}")], timeout=10)
    assert len([one for one in caplog.records if "over TCP without TLS" in one.message]) == 1


def test_unix_socket_requires_no_secret(node, monkeypatch):
    path = node.daemon.options.socket
    assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(module, "_SOCKET", path)
    for variable in ("NOVA_ADDR", "NOVA_SHARED_SECRET"):
        monkeypatch.delenv(variable)
    assert "n1" in node.nova("info").out
    assert "is done" in node.nova("--addr", f"unix://{path}", "deploy").out


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_unix_socket_of_another_account_is_refused(node):
    path = node.daemon.options.socket
    for spoiled, mended in ((lambda: os.chown(path, 65534, -1), lambda: os.chown(path, 0, -1)),
                            (lambda: path.parent.chmod(0o777), lambda: path.parent.chmod(0o700)),
                            (lambda: os.chown(path.parent, 65534, -1), lambda: os.chown(path.parent, 0, -1))):
        spoiled()
        with pytest.raises(Unreachable, match="belongs to another account"):
            Client(f"unix://{path}", environ={})
        mended()
    Client(f"unix://{path}", environ={}).close()


def test_node_secrets_are_refused_over_tcp_without_tls(node):
    ended = node.nova("nodes", "secret", "n2", code=1)
    assert f"--addr unix://{node.daemon.options.socket}" in ended.err


def test_client_falls_back_to_tcp_when_the_unix_socket_is_stale(node, tmp_path, monkeypatch):
    node.server.stop(0)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "stale"))
    monkeypatch.setattr(module, "_SOCKET", tmp_path / "stale")
    monkeypatch.setattr(module, "DEFAULT", f"tcp://127.0.0.1:{free_port()}")
    with contextlib.closing(Client(secret="secret", environ={})) as client, pytest.raises(grpc.RpcError) as raised:
        client.ask(client.daemon.Show, pb.Empty())
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


def test_novad_serves_tcp_when_the_socket_path_is_too_long(tmp_path, caplog):
    options = Options(data_dir=str(tmp_path / ("d" * 100)), listen=f"tcp://127.0.0.1:{free_port()}", platform="")
    daemon = Daemon(options, None, FakeRuntime(dict(REGISTRY)))
    server = Server(daemon)
    server.start()
    try:
        assert "Cannot listen on socket" in caplog.text
        with contextlib.closing(Client(options.listen, daemon.shared_secret(), {})) as client:
            assert client.ask(client.daemon.Show, pb.Empty()).steered
    finally:
        server.stop(0)
        daemon.stop()
