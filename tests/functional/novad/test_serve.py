"""novad as a process of its own, without containers."""

import gzip
import http.client
import json
import signal
import subprocess
import sys

import pytest

from tests.functional.client import wait_for
from tests.functional.novad.conftest import free_port


@pytest.fixture
def serve(tmp_path):
    """``serve("--pprof-addr", …)``: the process, which may end at once; ``before``: global options."""
    (tmp_path / "platform.toml").write_text('name = "s"\n[components.x]\nimage = "i"\n')
    (tmp_path / "novad.toml").write_text(
        f'listen = "tcp://127.0.0.1:{free_port()}"\ndata_dir = "{tmp_path}/data"\n'
        f'platform = "{tmp_path}/platform.toml"\npodman_socket = "{tmp_path}/none"\n')
    started = []

    def serve(*words, before=()):
        process = subprocess.Popen([sys.executable, "-m", "nova.cmd.novad", *before, "serve", "--config",
                                    tmp_path / "novad.toml", *words], stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield serve
    for process in started:
        process.kill()
        process.communicate()


def test_a_running_novad_is_profiled(serve):
    port = free_port()
    process = serve("--pprof-addr", f"127.0.0.1:{port}")
    answers = {}

    def ask(path):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answers[path] = answer.read()
            return answer.status == 200
        except OSError:
            assert process.poll() is None
            return False
        finally:
            connection.close()

    wait_for(lambda: ask("/debug/pprof/heap"), 60)
    assert ask("/debug/pprof/profile?seconds=0.5&format=speedscope")
    assert b"builtins.dict" in gzip.decompress(answers["/debug/pprof/heap"])
    assert json.loads(answers["/debug/pprof/profile?seconds=0.5&format=speedscope"])["profiles"][0]["type"] == "sampled"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.mark.parametrize("address", ["0.0.0.0:6060", "here"])
def test_profiles_are_not_for_others(serve, address):
    process = serve("--pprof-addr", address)
    assert "--pprof-addr" in process.communicate(timeout=60)[1]
    assert process.returncode == 1


@pytest.mark.parametrize(("before", "words", "debug"), [
    (["-D"], [], True), ([], [], False)], ids=["-D serve", "serve"])
def test_a_novad_logs_calls_and_more_with_debug_only(serve, before, words, debug):
    process = serve(*words, before=before)
    log = []
    while "serves platform s" not in (line := process.stderr.readline()):
        assert line, "novad ended"
        log.append(line)
    process.send_signal(signal.SIGTERM)
    log += process.communicate(timeout=60)[0:2][1].splitlines()
    assert any(" DEBUG " in line for line in log) == debug
