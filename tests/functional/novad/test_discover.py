"""``nova discover``: listing announced nodes without a connection to novad."""

import contextlib
import json
import signal
import subprocess
import sys

import pytest

from nova.novad.nodes.discovery import Announcer
from nova.novad.options import Options
from tests.functional.cli.conftest import run
from tests.functional.client import wait_for

_COMMAND = [sys.executable, "-c", "import sys; from nova.cli.main import main; sys.exit(main())", "discover"]


@contextlib.contextmanager
def announced(**options):
    announcer = Announcer(Options(listen="tcp://127.0.0.1:18994", node="n1.of-discover", roles=("compute",), **options))
    announcer.start()
    try:
        yield announcer
    finally:
        announcer.stop()


@pytest.fixture
def nowhere(monkeypatch):
    """Make discovery find no novad and no address."""
    monkeypatch.setenv("NOVA_ADDR", "nonsense")


def ours(*words):
    return [one for one in json.loads(run("discover", *words, "-f", "json").out) if one["Node"] == "n1.of-discover"]


def test_discover_lists_announced_nodes_as_json(nowhere):
    with announced() as announcer:
        wait_for(lambda: announcer._said, 20, "the announcement is sent")
        found = ours("-t", "2")
    assert [(one["Roles"], one["Addresses"]) for one in found] == [("compute", "tcp://127.0.0.1:18994")]
    assert ours("-t", "1") == []


def test_node_with_announce_disabled_is_not_discovered(nowhere):
    with announced(announce=False):
        assert ours("-t", "3") == []


def test_discover_shows_nodes_appear_and_leave_until_interrupted(nowhere):
    def as_in_a_terminal():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Shells ignore SIGINT in background processes.

    with subprocess.Popen(_COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=as_in_a_terminal) as watching:
        lines = (line for line in watching.stdout if "n1.of-discover" in line)
        with announced():
            assert "+ n1.of-discover" in next(lines)
        assert "- n1.of-discover" in next(lines)
        watching.send_signal(signal.SIGINT)
        assert (watching.wait(10), watching.stderr.read()) == (130, "")


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "x", "1e9"])
def test_discover_with_an_invalid_timeout_is_refused(seconds):
    assert "--timeout" in run("discover", "-t", seconds).err
