"""Self-update of novad from a release server on loopback, and rollback of unhealthy releases."""

import functools
import http.server
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

import nova
from nova.novad.client import Client
from nova.novad.release.launcher import Releases
from tests.functional.cli.conftest import run
from tests.functional.client import wait_for
from tests.functional.novad.conftest import free_port
from tests.novad_wheels import wheel
from tools.novad_release import add

NEXT = "0.9.1"
_LOADS = "    options = configuration.load"
# Releases that start but report that they do not serve, that exit, or that never report anything.
SICK = {"says so": ("novad/server.py", ("HealthCheckResponse.SERVING", "HealthCheckResponse.NOT_SERVING")),
        "ends": ("cmd/novad.py", (_LOADS, f"    sys.exit(3)\n{_LOADS}")),
        "hangs": ("cmd/novad.py", (_LOADS, f"    threading.Event().wait(600)\n{_LOADS}"))}


class Novad:
    def __init__(self, directory, site, watch):
        self.directory, self.data, self.port = directory, directory / "data", free_port()
        self.process = None
        (directory / "platform.toml").write_text('name = "p"\n[components.a]\nimage = "registry/a"\n')
        (directory / "novad.toml").write_text(
            f'listen = "tcp://127.0.0.1:{self.port}"\ndata_dir = "{self.data}"\n'
            f'platform = "{directory}/platform.toml"\n'
            f'podman_socket = "{directory}/none"\nannounce = false\nupdate_url = "{site}"\nupdate_watch = {watch}\n'
            f'update_key = "{directory}/key.pub"\n')
        key = ed25519.Ed25519PrivateKey.generate()
        (directory / "key.pem").write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        (directory / "key.pub").write_bytes(key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))

    def start(self):
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "nova.cmd.novad", "serve", "--config",
                                             self.directory / "novad.toml"], stdout=log, stderr=log)
        wait_for(self.version, 180, "novad")

    def kill(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(120)

    def update(self, code=0):
        ended = run("update")
        assert ended.code == code, f"{ended.code}\n{ended.out}\n{ended.err}\n{(self.directory / 'log').read_text()}"
        return ended

    def version(self):
        """Return the version that answers, or ""."""
        client = Client(f"tcp://127.0.0.1:{self.port}", self.secret())
        try:
            from nova.novad.api import novad_pb2 as pb
            return client.ask(client.updates.Show, pb.UpdatesRequest()).version
        except Exception:
            return ""
        finally:
            client.close()

    def secret(self):
        file = self.data / "shared-secret"
        return file.read_text() if file.exists() else "none"

    def children(self):
        found = subprocess.run(["pgrep", "-P", str(self.process.pid), "-f", "nova.cmd.novad"], capture_output=True,
                               text=True, check=False)
        return [int(word) for word in found.stdout.split()]


@pytest.fixture
def site(tmp_path):
    """Serve a directory and return it with its URL."""
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_args):
            pass

    place = tmp_path / "site"
    place.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=place))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield place, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def novad(tmp_path, site, monkeypatch, request):
    made = Novad(tmp_path, site[1], getattr(request, "param", 120))
    made.start()
    monkeypatch.setenv("NOVA_ADDR", f"tcp://127.0.0.1:{made.port}")
    monkeypatch.setenv("NOVA_SHARED_SECRET", made.secret())
    yield made
    if made.process.poll() is None:
        made.kill()


def test_novad_updates_itself_to_verified_releases_and_keeps_the_launcher_process(novad, site):
    place, _url = site
    child = novad.children()
    assert "cannot be fetched" in novad.update(code=1).err
    made = wheel(place, NEXT)
    add(place, [made], novad.directory / "key.pem")
    content = made.read_bytes()
    made.write_bytes(content[:-1] + b"x")
    assert "does not have the checksum" in novad.update(code=1).err
    assert (novad.version(), novad.children()) == (nova.__version__, child)
    made.write_bytes(content)
    assert run("update", "--check").out == f"novad {nova.__version__} runs. Latest release: {NEXT}\n"
    pid = novad.process.pid
    assert novad.update().out.endswith(f"novad {NEXT} runs, and is healthy\n")
    assert (novad.version(), novad.process.pid, novad.process.poll()) == (NEXT, pid, None)
    assert f"novad {NEXT} is the latest" in novad.update().out
    assert novad.kill() == 0
    novad.start()
    assert novad.version() == NEXT
    novad.kill()


# Silent releases have a shorter timeout than slow ones.
@pytest.mark.parametrize(("novad", "how"), [(2, "says so"), (120, "ends"), (2, "hangs")], indirect=["novad"])
def test_unhealthy_update_is_rolled_back_to_the_previous_release(novad, site, how):
    place, _url = site
    path, change = SICK[how]
    add(place, [wheel(place, NEXT, {path: change})], novad.directory / "key.pem")
    err = novad.update(code=1).err
    assert f"novad {NEXT} does not become healthy: " in err
    assert f"novad {nova.__version__} runs again." in err
    assert novad.version() == nova.__version__
    if how == "ends":
        add(place, [wheel(place, "0.9.2")], novad.directory / "key.pem")
        assert "novad 0.9.2 runs" in novad.update().out


@pytest.mark.skipif(os.geteuid() != 0, reason="reads the environment of a process that is not dumpable")
@pytest.mark.parametrize("victim", ["launcher", "novad"])
def test_novad_killed_during_an_update_trial_restarts_in_a_valid_release(novad, site, victim):
    place, _url = site
    add(place, [wheel(place, NEXT)], novad.directory / "key.pem")
    updating = threading.Thread(target=run, args=("update",), daemon=True)
    releases = Releases(novad.data)
    updating.start()
    wait_for(lambda: releases.trial() and novad.version() == NEXT, 180, "the new release is on trial")
    child, = novad.children()
    told = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    left, = (pathlib.Path(os.fsdecode(word.partition(b"=")[2])).parent for word in told
             if word.startswith(b"NOVAD_SOCKET="))
    os.kill(novad.process.pid if victim == "launcher" else child, signal.SIGKILL)
    if victim == "launcher":
        novad.process.wait(60)
        shutil.rmtree(left)
        wait_for(lambda: not novad.version(), 60, "novad of the new release has exited")
        novad.start()
        wait_for(lambda: not releases.trial(), 180, "the trial has ended")
        assert novad.version() == NEXT
    else:
        wait_for(lambda: novad.version() == nova.__version__, 180, "the previous release is running")
        assert releases.failure() == (NEXT, "it ended with -9")
    novad.kill()
