"""Recorded child processes: exactly they are stopped. Needs no Kubernetes."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from nova.common.errors import Invalid
from nova.federator.local.pki import Authority
from nova.federator.local.processes import Processes, Record
from tests.integration.federator import clusters

SLEEP = ("sleep", "600")
STUBBORN = ("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done")


@pytest.fixture
def processes(tmp_path: pathlib.Path) -> Iterator[Processes]:
    processes = Processes(tmp_path, prefix=clusters.END_WITH_TESTS)
    yield processes
    asyncio.run(processes.stop(processes.names(), kill=True))


def running(pid: int) -> bool:
    return pathlib.Path(f"/proc/{pid}").exists()


def pid_of(processes: Processes, name: str) -> int:
    record = processes.record(name)
    assert record is not None
    return record.pid


def test_stop_ends_recorded_processes_of_an_earlier_run(processes: Processes, tmp_path: pathlib.Path) -> None:
    processes.start("a", SLEEP)
    processes.start("b", SLEEP)
    a, b = pid_of(processes, "a"), pid_of(processes, "b")
    asyncio.run(Processes(tmp_path).stop(["a"]))
    assert not running(a)
    assert running(b)
    assert processes.names() == ["b"]


def test_process_with_the_id_of_an_ended_process_is_not_stopped(processes: Processes, tmp_path: pathlib.Path) -> None:
    """A record with another start time, or of an earlier boot, names no process of today."""
    with subprocess.Popen(SLEEP) as foreign:
        processes.start("a", SLEEP)
        record = processes.record("a")
        assert record is not None
        started = int(pathlib.Path(f"/proc/{foreign.pid}/stat").read_text().split()[21])
        for stale in (Record(foreign.pid, started + 1, record.boot), Record(foreign.pid, started, "earlier boot")):
            (tmp_path / "run/foreign.json").write_bytes(msgspec.json.encode(stale))
            assert processes.record("foreign") is None
            assert not processes.signal("foreign", signal.SIGKILL)
            asyncio.run(processes.stop(["foreign"]))
            assert foreign.poll() is None
        foreign.kill()


def test_process_that_ignores_sigterm_is_killed(processes: Processes) -> None:
    processes.start("deaf", STUBBORN)
    pid = pid_of(processes, "deaf")
    clusters.until(lambda: processes.log_tail("deaf") == "deaf")
    asyncio.run(processes.stop(["deaf"], timeout=0.5))
    assert not running(pid)


def test_frozen_process_is_stopped(processes: Processes) -> None:
    processes.start("frozen", SLEEP)
    pid = pid_of(processes, "frozen")
    assert processes.signal("frozen", signal.SIGSTOP)
    asyncio.run(processes.stop(["frozen"], timeout=60))
    assert not running(pid)


def test_unrecorded_process_is_stopped_by_its_name(processes: Processes) -> None:
    """A crash between start and record leaves a process that only its environment identifies."""
    processes.start("lost", SLEEP)
    pid = pid_of(processes, "lost")
    clusters.until(lambda: b"sleep" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
    processes.forget("lost")
    asyncio.run(processes.stop(["other"]))
    assert running(pid)
    asyncio.run(processes.stop(["lost"]))
    assert not running(pid)


def test_long_logs_are_rotated(processes: Processes, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nova.federator.local.processes._LOG_LIMIT", 1000)
    processes.start("writer", ("sh", "-c", "head -c 2000 /dev/zero; echo first; read x < $0; echo second",
                               str(tmp_path / "pipe")))
    clusters.until(lambda: processes.log("writer").stat().st_size > 2000)
    processes.rotate_logs()
    assert (tmp_path / "log/writer.log.1").stat().st_size > 2000
    assert processes.log("writer").stat().st_size < 1000


def test_damaged_authority_is_reported_and_not_replaced(tmp_path: pathlib.Path) -> None:
    first = Authority(tmp_path, "ca", "test")
    assert Authority(tmp_path, "ca", "test").pem == first.pem
    for damage in (lambda: (tmp_path / "ca.key").write_bytes(b"no key"), (tmp_path / "ca.key").unlink):
        damage()
        with pytest.raises(Invalid, match=r"ca\.key is unreadable"):
            Authority(tmp_path, "ca", "test")
    Authority(tmp_path, "other", "test")
    (tmp_path / "other.key").rename(tmp_path / "ca.key")
    with pytest.raises(Invalid, match=r"is not the key of"):
        Authority(tmp_path, "ca", "test")
    assert (tmp_path / "ca.crt").read_bytes() == first.pem


@pytest.mark.parametrize("option", ["--taint=novalue", "--label=novalue", "--count=many"])
def test_fake_nodes_name_the_invalid_option(tmp_path: pathlib.Path, option: str) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("{contexts: [{name: a, context: {cluster: a, user: a}}], users: [{name: a, user: {}}], "
                          "clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]}")
    command = [sys.executable, "-m", "nova.federator.local.fake_nodes", f"--kubeconfig={kubeconfig}", option]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert option.strip("-").partition("=")[0] in result.stderr.splitlines()[-1]
