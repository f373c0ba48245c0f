"""novad as a separate process, without containers."""

import gzip
import http.client
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys

import pytest

from tests.functional.client import wait_for
from tests.functional.novad.conftest import free_port


@pytest.fixture
def serve(tmp_path):
    """Return ``serve("--pprof-addr", …)``, which starts novad; ``before`` are global options."""
    (tmp_path / "platform.toml").write_text('name = "s"\n[components.x]\nimage = "i"\n')
    (tmp_path / "novad.toml").write_text(
        f'listen = "tcp://127.0.0.1:{free_port()}"\ndata_dir = "{tmp_path}/data"\n'
        f'platform = "{tmp_path}/platform.toml"\npodman_socket = "{tmp_path}/none"\n')
    started = []

    def serve(*words, before=(), **more):
        process = subprocess.Popen([sys.executable, "-m", "nova.cmd.novad", *before, "serve", "--config",
                                    tmp_path / "novad.toml", *words], stderr=subprocess.PIPE, text=True, **more)
        started.append(process)
        return process

    yield serve
    for process in started:
        process.kill()
        process.communicate()


def test_novad_profiling_accepts_only_the_token_in_its_file(serve, tmp_path):
    port = free_port()
    process = serve("--pprof-addr", f"127.0.0.1:{port}")
    answers = {}

    def ask(path, file="profiling-token"):
        given = tmp_path / "data" / file
        known = {"Authorization": f"Bearer {given.read_text()}"} if given.is_file() else {}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", path, headers=known)
            answer = connection.getresponse()
            answers[path] = answer.read()
            return answer.status == 200
        except OSError:
            assert process.poll() is None
            return False
        finally:
            connection.close()

    wait_for(lambda: ask("/debug/pprof/heap"), 60)
    assert not ask("/debug/pprof/heap?seconds=9", file="")
    assert not ask("/debug/pprof/heap?seconds=8", file="shared-secret")
    assert (tmp_path / "data/profiling-token").stat().st_mode & 0o777 == 0o600
    assert ask("/debug/pprof/profile?seconds=0.5&format=speedscope")
    assert b"builtins.dict" in gzip.decompress(answers["/debug/pprof/heap"])
    assert json.loads(answers["/debug/pprof/profile?seconds=0.5&format=speedscope"])["profiles"][0]["type"] == "sampled"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.mark.parametrize("address", ["0.0.0.0:6060", "here"])
def test_profiling_address_other_than_loopback_is_refused(serve, address):
    process = serve("--pprof-addr", address)
    assert "--pprof-addr" in process.communicate(timeout=60)[1]
    assert process.returncode == 1


@pytest.mark.parametrize(("before", "words", "debug"), [
    (["-D"], [], True), ([], [], False)], ids=["-D serve", "serve"])
def test_novad_logs_debug_lines_only_with_debug(serve, before, words, debug):
    process = serve(*words, before=before)
    log = []
    while "serves platform s" not in (line := process.stderr.readline()):
        assert line, "novad ended"
        log.append(line)
    process.send_signal(signal.SIGTERM)
    log += process.communicate(timeout=60)[0:2][1].splitlines()
    assert any(" DEBUG " in line for line in log) == debug


def _unlimited():
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


def test_novad_crash_leaves_no_core_dump(serve, tmp_path):
    """Check that novad sets the limit itself when its parent has set none."""
    process = serve(preexec_fn=_unlimited, cwd=tmp_path)
    while "serves platform s" not in (line := process.stderr.readline()):
        assert line, "novad ended"
    limits = pathlib.Path(f"/proc/{process.pid}/limits").read_text().splitlines()
    assert [line.split()[4:6] for line in limits if line.startswith("Max core file size")] == [["0", "0"]]
    if os.geteuid() != 0:  # Files of a process that is not dumpable belong to root.
        assert pathlib.Path(f"/proc/{process.pid}/status").stat().st_uid == 0
    os.kill(process.pid, signal.SIGABRT)
    _pid, status = os.waitpid(process.pid, 0)
    assert (os.WTERMSIG(status), os.WCOREDUMP(status)) == (signal.SIGABRT, False)
    assert not list(tmp_path.glob("*core*"))


def test_novad_process_is_not_dumpable():
    code = ("import ctypes, nova.cmd.novad as novad; libc = ctypes.CDLL(None); before = libc.prctl(3, 0, 0, 0, 0); "
            "novad._forbid_core_dumps(libc); print(before, libc.prctl(3, 0, 0, 0, 0))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 0\n"
