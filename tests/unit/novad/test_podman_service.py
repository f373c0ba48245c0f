"""podman's service, as far as it can be seen without podman."""

import pytest

from nova.novad.runtime.service import missing

PROGRAMS = ("podman", "runc", "netavark", "aardvark-dns", "catatonit", "iptables")


@pytest.fixture
def node(tmp_path):
    """A directory with all that containers need."""
    for name in PROGRAMS:
        (tmp_path / name).touch(mode=0o755)
    return tmp_path


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_node_lacks_is_named_before_a_container_misses_it(node, name):
    assert missing(str(node)) == []
    (node / name).unlink()
    assert missing(str(node)) == [name]


def test_either_runtime_of_containers_will_do(node):
    (node / "runc").rename(node / "crun")
    assert missing(str(node)) == []
