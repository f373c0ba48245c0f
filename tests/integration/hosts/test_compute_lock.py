"""Two nova-compute processes of one host with one state_path: the second one exits with an error."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.cluster import command_of, environment
from tests.integration.processes import Process, eventually

LOCK = "nova-compute-{}.lock"


@pytest.fixture
def config(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return the configuration of a host whose broker is unreachable: nova-compute waits and holds its lock."""
    file = tmp_path / "nova.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = rabbit://n:n@127.0.0.1:1/\nstate_path = {tmp_path}\nhost = one\n"
                    "compute_driver = fake\n[network]\ndriver = none\n")
    return file


@pytest.fixture
def first(config: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Process]:
    process = Process("first", command("one", config), tmp_path / "first.log", env=environment())
    process.start()
    eventually(lambda: (tmp_path / LOCK.format("one")).exists() and (tmp_path / LOCK.format("one")).read_text(), 60,
               "nova-compute holds the lock")
    yield process
    process.kill()


def command(host: str, config: pathlib.Path) -> list[str]:
    own = config.with_name(f"{host}.conf")
    own.write_text(f"[DEFAULT]\nhost = {host}\n")
    return [*command_of("compute"), "--config-file", str(config), "--config-file", str(own)]


def test_second_compute_of_a_host_exits_with_an_error(first: Process, config: pathlib.Path) -> None:
    second = subprocess.run(command("one", config), env=environment(), capture_output=True, text=True, timeout=120,
                            check=False)
    assert second.returncode == os.EX_TEMPFAIL
    [line] = [line for line in second.stdout.splitlines() if " ERROR " in line]
    assert f"Another nova-compute of host one uses state_path {config.parent} (process {first.pid}" in line
    assert first.running()


def test_stale_compute_lock_file_is_taken_over(first: Process, config: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A killed container leaves a lock file. A compute service with another host name has its own lock."""
    lock = tmp_path / LOCK.format("one")
    other = Process("other", command("two", config), tmp_path / "other.log", env=environment())
    again = Process("again", command("one", config), tmp_path / "again.log", env=environment())
    try:
        other.start()
        eventually(lambda: (tmp_path / LOCK.format("two")).exists(), 60, "the other host has its own lock")
        before = lock.read_text()
        first.kill()
        assert lock.exists()
        again.start()
        eventually(lambda: lock.read_text() not in ("", before), 60, "the new nova-compute holds the lock")
        assert again.running()
        assert other.running()
    finally:
        other.kill()
        again.kill()
