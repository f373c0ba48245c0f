"""Checks of a snapshot before it replaces the data of a control plane."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pathlib
import subprocess
import tracemalloc

import pytest

from nova.common.errors import Invalid, ReportedError
from nova.federator.client.backup import REPLACE, check
from nova.federator.kube import streams
from nova.federator.kube.config import Kubeconfig

DATA = bytes(range(256)) * 8


def snapshot(directory: pathlib.Path, content: bytes) -> pathlib.Path:
    path = directory / "nova.db"
    path.write_bytes(content)
    return path


def test_a_complete_snapshot_is_accepted(tmp_path):
    check(snapshot(tmp_path, DATA + hashlib.sha256(DATA).digest()))


@pytest.mark.parametrize("content", [
    b"", DATA, DATA[:-512] + hashlib.sha256(DATA).digest(), DATA + hashlib.sha256(DATA).digest()[:-1],
    DATA[:-1] + hashlib.sha256(DATA[:-1]).digest()])
def test_a_damaged_snapshot_is_refused(tmp_path, content):
    with pytest.raises(Invalid, match="not a complete backup"):
        check(snapshot(tmp_path, content))


def test_a_missing_snapshot_is_reported(tmp_path):
    with pytest.raises(Invalid, match="Cannot read"):
        check(tmp_path / "missing")


def test_a_large_snapshot_is_not_read_into_memory(tmp_path):
    data = bytes(32 << 20)
    path = snapshot(tmp_path, data + hashlib.sha256(data).digest())
    tracemalloc.start()
    try:
        check(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_each_restoration_retains_the_data_that_it_replaces(tmp_path):
    """The same snapshot may be restored again much later, or another one after an interruption."""
    def restore(name, content):
        (tmp_path / "restored").mkdir()
        (tmp_path / "restored" / "db").write_text(content)
        subprocess.run(["sh", "-e", "-c", REPLACE, name], cwd=tmp_path, check=True)
    restore("replaced-2026-11-29T10:00:00Z", "0")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    for number in range(1, 6):
        restore(f"replaced-2026-11-29T10:00:0{number}Z", str(number))
    stored = {path.name: (path / "db").read_text() for path in tmp_path.iterdir()}
    assert stored == {"data": "5", "replaced-2026-11-29T10:00:05Z": "4", "replaced-2026-11-29T10:00:04Z": "3",
                      "replaced-2026-11-29T10:00:03Z": "2"}


def test_a_repeated_restoration_retains_the_data_before_its_first_attempt(tmp_path):
    """Attempts that were interrupted after the exchange have the same name for the previous data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "db").write_text("previous")
    for attempt in range(5):
        (tmp_path / "restored").mkdir()
        (tmp_path / "restored" / "db").write_text(str(attempt))
        subprocess.run(["sh", "-e", "-c", REPLACE, "replaced-2026-11-29T10:00:00Z"], cwd=tmp_path, check=True)
    stored = {path.name: (path / "db").read_text() for path in tmp_path.iterdir()}
    assert stored == {"data": "4", "replaced-2026-11-29T10:00:00Z": "previous"}


def test_an_exchange_that_was_interrupted_between_its_renames_is_completed(tmp_path):
    """Neither the previous nor the new data are lost if the pod ends after it has renamed the previous data."""
    for name in ("replaced-2026-11-29T10:00:00Z", "restored"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "db").write_text(name)
    subprocess.run(["sh", "-e", "-c", REPLACE, "replaced-2026-11-29T10:00:00Z"], cwd=tmp_path, check=True)
    stored = {path.name: (path / "db").read_text() for path in tmp_path.iterdir()}
    assert stored == {"data": "restored", "replaced-2026-11-29T10:00:00Z": "replaced-2026-11-29T10:00:00Z"}


@pytest.mark.parametrize(("program", "problem"), [
    ("for part in 1 2 3 4 5; do sleep 0.4; head -c 1000 > /dev/null; done", ""),
    ("exec sleep 100", "cat in pod etcd-0 made no progress"),
    ("head -c 1000 >/dev/null; exec sleep 100", "no progress"),
    ("echo no space left; exit 1", "cat in pod etcd-0 failed: no space left")])
def test_a_command_in_a_pod_ends_when_its_node_is_lost(tmp_path, monkeypatch, program, problem):
    """kubectl exec waits for ever for a node that does not respond. A slow transfer continues."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\n{program}\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(streams, "_SILENCE", 1.0)
    source = tmp_path / "snapshot"
    source.write_bytes(bytes(5000))

    async def run() -> None:
        async with asyncio.timeout(10):
            await streams.execute(Kubeconfig(server="https://127.0.0.1:1"), "elotl", "etcd-0", "receive",
                                  "cat > snapshot", source)
    if problem:
        with pytest.raises(ReportedError, match=problem):
            asyncio.run(run())
    else:
        asyncio.run(run())
