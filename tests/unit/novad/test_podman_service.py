"""Tests of the podman service that do not need podman."""

import pytest

from nova.novad.runtime.service import missing

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
