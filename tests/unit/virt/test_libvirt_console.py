"""Tests of reading console logs that virtlogd rotates."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova import conf, exception
from nova.conf import CONF
from nova.virt import console_logs
from nova.virt.libvirt.files import disks

UUID = "5b4f9b8a-2f0c-4f39-9f2e-0a1b2c3d4e5f"


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the directory of the guest."""
    conf.register()
    CONF.set_override("instances_path", str(tmp_path))
    (tmp_path / UUID).mkdir()
    yield tmp_path / UUID
    CONF.clear_override("instances_path")


def test_console_log_files_are_joined_oldest_first(place: pathlib.Path) -> None:
    for name, text in (("console.log.1", b"one\n"), ("console.log.0", b"two\nth"), ("console.log", b"ree\nfour\n"),
                       ("console.log.bak", b"foreign\n")):
        (place / name).write_bytes(text)
    assert disks.console_output(UUID) == b"one\ntwo\nthree\nfour\n"
    assert disks.console_output(UUID, 2) == b"three\nfour\n"
    assert disks.console_output(UUID, 0) == b""
    assert disks.console_output(UUID, -1) == b"one\ntwo\nthree\nfour\n"


def test_long_console_log_is_truncated_to_its_end(place: pathlib.Path) -> None:
    (place / "console.log.0").write_bytes(b"x" * console_logs.MAX_BYTES)
    (place / "console.log").write_bytes(b"y" * 10)
    text = disks.console_output(UUID)
    assert len(text) == console_logs.MAX_BYTES
    assert text.endswith(b"x" + b"y" * 10)


def test_console_log_is_read_after_rotation(place: pathlib.Path) -> None:
    (place / "console.log.0").write_bytes(b"all\n")
    assert disks.console_output(UUID) == b"all\n"


@pytest.mark.usefixtures("place")
def test_missing_console_log_is_unavailable() -> None:
    with pytest.raises(exception.ConsoleLogUnavailable, match=UUID):
        disks.console_output(UUID)


@given(lines=st.lists(st.binary(max_size=5).filter(lambda line: b"\n" not in line), max_size=8),
       count=st.integers(0, 10), ended=st.booleans())
def test_last_lines_returns_the_requested_number_of_lines(lines: list[bytes], count: int, ended: bool) -> None:
    if not ended and lines and not lines[-1]:
        lines[-1] = b"x"  # An empty last line without a newline does not count.
    text = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    expected = b"\n".join(lines[max(0, len(lines) - count):]) if count else b""
    if ended and lines and count:
        expected += b"\n"
    assert console_logs.last_lines(text, count) == expected
