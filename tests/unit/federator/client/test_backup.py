"""Checks of a snapshot before it replaces the data of a control plane."""

from __future__ import annotations

import hashlib
import pathlib

import pytest

from nova.common.errors import Invalid
from nova.federator.client.backup import check

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
    with pytest.raises(Invalid, match="no complete backup"):
        check(snapshot(tmp_path, content))


def test_a_missing_snapshot_is_reported(tmp_path):
    with pytest.raises(Invalid, match="Cannot read"):
        check(tmp_path / "missing")
