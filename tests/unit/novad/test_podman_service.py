"""Tests of the podman service that do not need podman."""

import os
import pathlib
import tempfile
import time

import pytest

from nova.novad.errors import RuntimeFault
from nova.novad.runtime import service as module
from nova.novad.runtime.service import PodmanService, missing

PROGRAMS = ("podman", "runc", "netavark", "aardvark-dns", "catatonit", "iptables")


@pytest.fixture
def node(tmp_path):
    """Return a directory with all programs that containers require."""
    for name in PROGRAMS:
        (tmp_path / name).touch(mode=0o755)
    return tmp_path


@pytest.mark.parametrize("name", PROGRAMS)
def test_missing_container_programs_are_reported(node, name):
    assert missing(str(node)) == []
    (node / name).unlink()
    assert missing(str(node)) == [name]


def test_runc_or_crun_is_sufficient(node):
    (node / "runc").rename(node / "crun")
    assert missing(str(node)) == []


_ANSWERS = """\
#!/usr/bin/env python3
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[-1].removeprefix("unix://"))
listening.listen()
while True:
    listening.accept()[0].sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
"""
_HANGS = "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.1; done\n"
_EXITS = "#!/bin/sh\nexit 125\n"


@pytest.fixture
def service(node, monkeypatch):
    """Return ``service(program)``, which installs a program as podman and returns its service."""
    monkeypatch.setenv("PATH", f"{node}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "_START", 2.0)
    monkeypatch.setattr(module, "_END", 1.0)
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(module, "_RUN", pathlib.Path(short) / "run")
        made = []

        def install(program):
            (node / "podman").write_text(program)
            if not made:
                made.append(PodmanService(pathlib.Path(short) / "podman"))
            return made[0]

        yield install
        made[0].stop()


@pytest.mark.parametrize("program", [_EXITS, _HANGS], ids=["exits", "hangs"])
def test_podman_service_that_does_not_start_is_ended_and_started_again(service, program):
    started = service(program)
    with pytest.raises(RuntimeFault, match=r"does not start; see .*podman\.log"):
        started.start()
    assert not started.alive()
    assert not list(started.run.glob("podman.*"))
    service(_ANSWERS).start()
    assert started.alive()


def test_podman_service_is_restarted_on_a_full_disk(service, monkeypatch):
    """Check that the configuration is not written again. A disk that is full then must not end novad either."""
    started = service(_ANSWERS)
    started.start()
    started.stop()
    monkeypatch.setattr(pathlib.Path, "write_text", _on_full_disk(pathlib.Path.write_text))
    started.start()
    assert started.alive()
    started.stop()
    (started.directory / "containers.conf").unlink()
    with pytest.raises(RuntimeFault, match="cannot be started: No space left on device"):
        started.start()


def _on_full_disk(write):
    def refused(path, text):
        if path.name == "containers.conf":
            raise OSError(28, "No space left on device", str(path))
        return write(path, text)
    return refused


def test_podman_service_that_exits_is_reported_at_once(service):
    started = service(_ANSWERS)
    started.start()
    started._process.kill()
    for _number in range(100):
        if not started.alive():
            return
        time.sleep(0.05)
    pytest.fail("alive")
