"""A novad server in the test process, over gRPC on loopback, with a fake container runtime."""

import contextlib
import logging
import pathlib
import socket
import tempfile

import pytest

from nova.novad.daemon import Daemon
from nova.novad.options import Options
from nova.novad.server import Server
from tests.functional.cli.conftest import run
from tests.unit.novad.platforms import parse
from tests.unit.novad.runtimes import FakeRuntime
from tests.unit.novad.test_deploy import REGISTRY, TEXT


class Node:
    """Run ``nova("deploy")`` with the address and secret of this novad and return the result."""

    def __init__(self, daemon, server, patch):
        self.daemon, self.server, self.runtime = daemon, server, daemon.runtime
        self.secret, self.data_dir = daemon.shared_secret(), pathlib.Path(daemon.options.data_dir)
        scheme = "tls" if daemon.options.tls_cert else "tcp"
        patch.setenv("NOVA_ADDR", f"{scheme}://127.0.0.1:{server.port}")
        patch.setenv("NOVA_SHARED_SECRET", self.secret)
        self.patch = patch

    def nova(self, *words, code=0):
        ended = run(*words)
        assert ended.code == code, f"{words}: {ended.code}\n{ended.out}\n{ended.err}"
        return ended


def free_port():
    with contextlib.closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def serve(monkeypatch, caplog):
    """Return ``serve(tls_cert=…)``, which starts a node with these options, a platform file and registry images."""
    caplog.set_level(logging.DEBUG)
    with contextlib.ExitStack() as stack:
        # A socket path has at most 107 characters; tmp_path alone may reach that length.
        data_dir = stack.enter_context(tempfile.TemporaryDirectory())

        def serve(platform=TEXT, registry=REGISTRY, **options):
            daemon = Daemon(Options(data_dir=data_dir, listen=f"tcp://127.0.0.1:{free_port()}", node="n1",
                                    interval=0.1, **options), parse(platform, "toml"), FakeRuntime(dict(registry)))
            stack.callback(daemon.stop)
            server = Server(daemon)
            stack.callback(server.stop)
            daemon.start()
            server.start()
            return Node(daemon, server, monkeypatch)

        yield serve


@pytest.fixture
def node(serve):
    return serve()
