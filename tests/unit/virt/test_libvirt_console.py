"""Tests of reading console logs that virtlogd rotates."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova import exception
from nova.virt.libvirt.files import console


def test_console_log_files_are_joined_oldest_first(tmp_path: pathlib.Path) -> None:
    for name, text in (("console.log.1", b"one\n"), ("console.log.0", b"two\nth"), ("console.log", b"ree\nfour\n"),
                       ("console.log.bak", b"foreign\n")):
        (tmp_path / name).write_bytes(text)
    assert console.read(str(tmp_path), "id") == b"one\ntwo\nthree\nfour\n"
    assert console.read(str(tmp_path), "id", 2) == b"three\nfour\n"
    assert console.read(str(tmp_path), "id", 0) == b""
    assert console.read(str(tmp_path), "id", -1) == b"one\ntwo\nthree\nfour\n"


def test_long_console_log_is_truncated_to_its_end(tmp_path: pathlib.Path) -> None:
    (tmp_path / "console.log.0").write_bytes(b"x" * console.MAX_BYTES)
    (tmp_path / "console.log").write_bytes(b"y" * 10)
    text = console.read(str(tmp_path), "id")
    assert len(text) == console.MAX_BYTES
    assert text.endswith(b"x" + b"y" * 10)


def test_console_log_is_read_after_rotation(tmp_path: pathlib.Path) -> None:
    (tmp_path / "console.log.0").write_bytes(b"all\n")
    assert console.read(str(tmp_path), "id") == b"all\n"


def test_missing_console_log_is_unavailable(tmp_path: pathlib.Path) -> None:
    with pytest.raises(exception.ConsoleLogUnavailable, match="id"):
        console.read(str(tmp_path), "id")


@given(lines=st.lists(st.binary(max_size=5).filter(lambda line: b"\n" not in line), max_size=8),
       count=st.integers(0, 10), ended=st.booleans())
def test_last_lines_returns_the_requested_number_of_lines(lines: list[bytes], count: int, ended: bool) -> None:
    if not ended and lines and not lines[-1]:
        lines[-1] = b"x"  # An empty last line without a newline does not count.
    text = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    expected = b"\n".join(lines[max(0, len(lines) - count):]) if count else b""
    if ended and lines and count:
        expected += b"\n"
    assert console.last_lines(text, count) == expected
