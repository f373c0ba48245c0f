"""The identity of a machine survives restarts, and is never partial or created twice."""

from __future__ import annotations

import concurrent.futures
import pathlib
import uuid
from collections.abc import Iterator

import pytest

from nova import conf, exception
from nova.compute import identity


@pytest.fixture
def state_path(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    conf.register()
    conf.CONF.set_override("state_path", str(tmp_path / "state"))
    yield tmp_path / "state"
    conf.CONF.clear_override("state_path")


def test_machine_identity_is_created_once(state_path: pathlib.Path) -> None:
    made = identity.of_this_machine()
    assert str(uuid.UUID(made)) == made
    assert identity.of_this_machine() == made
    assert [path.name for path in state_path.iterdir()] == [identity.FILE]


def test_concurrent_processes_create_the_same_identity(state_path: pathlib.Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: identity.of_this_machine(), range(16)))) == 1


def test_invalid_identity_file_is_refused_and_not_replaced(state_path: pathlib.Path) -> None:
    state_path.mkdir()
    (state_path / identity.FILE).write_text("me\n")
    with pytest.raises(exception.InvalidInput, match="does not contain the identity"):
        identity.of_this_machine()
    assert (state_path / identity.FILE).read_text() == "me\n"


def test_unwritable_state_path_is_reported(state_path: pathlib.Path) -> None:
    state_path.write_text("not a directory")
    with pytest.raises(exception.InvalidInput, match="does not contain the identity"):
        identity.of_this_machine()


def test_virtual_hosts_of_a_machine_have_different_identities(state_path: pathlib.Path) -> None:
    found = [identity.of_virtual_host(host) for host in ("a", "b", "a")]
    assert found[0] == found[2] != found[1]
    assert identity.of_this_machine() not in found
