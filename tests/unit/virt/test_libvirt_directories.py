"""Owners of instance directories, and directories retained by migrations, on shared file systems."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator

import pytest

from nova import exception
from nova.conf import CONF, register
from nova.virt.guest_files import directories

ONE = "5b4f9b8a-2f0c-4f39-9f2e-0a1b2c3d4e5f"


@pytest.fixture(autouse=True)
def place(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    register(CONF)
    CONF.set_override("state_path", str(tmp_path))
    yield tmp_path / "instances"
    CONF.clear_override("state_path")


def test_directory_taken_by_another_host_is_not_removed_by_the_first(place: pathlib.Path) -> None:
    directories.make(ONE, "first")
    directories.take(ONE, "second")
    directories.remove(ONE, "first")
    assert (place / ONE).is_dir()
    for _ in range(2):
        directories.remove(ONE, "second")
    assert os.listdir(place) == []


def test_take_keeps_the_directory_token(place: pathlib.Path) -> None:
    token = directories.token(directories.make(ONE, "first"), "first")
    directories.take(ONE, "second")
    assert directories.owner(str(place / ONE)) == directories.Owner("second", token)
    directories.remove(ONE, "second")
    assert directories.token(directories.make(ONE, "first"), "first") != token


def test_directory_of_an_older_release_belongs_to_the_local_host(place: pathlib.Path) -> None:
    (place / ONE).mkdir(parents=True)
    assert directories.owner(str(place / ONE)) is None
    token = directories.token(str(place / ONE), "first")
    assert directories.token(str(place / ONE), "second") == token
    directories.remove(ONE, "first")
    assert not (place / ONE).exists()


def test_retained_directory_is_separate_and_can_be_restored(place: pathlib.Path) -> None:
    token = directories.token(directories.make(ONE, "first"), "first")
    directories.set_aside(ONE)
    assert directories.retained_servers() == {ONE}
    assert directories.is_aside(ONE)
    directories.remove(ONE, "first")
    assert directories.is_aside(ONE), "remove() deleted the retained directory"
    directories.put_back(ONE, "first")
    assert directories.token(str(place / ONE), "first") == token
    directories.set_aside(ONE)
    directories.make(ONE, "second")
    with pytest.raises(exception.MigrationError, match="another host"):
        directories.put_back(ONE, "first", former="third")
    directories.put_back(ONE, "first", former="second")
    assert directories.token(str(place / ONE), "first") == token
    directories.set_aside(ONE)
    directories.make(ONE, "second")
    for _ in range(2):
        directories.remove_aside(ONE)
    assert directories.retained_servers() == {ONE}


def test_interrupted_removal_is_completed(place: pathlib.Path) -> None:
    directories.make(ONE, "first")
    os.rename(place / ONE, place / f"{ONE}.deleted")
    assert directories.retained_servers() == set()
    directories.remove(ONE, "first")
    assert os.listdir(place) == []


def test_missing_directory_is_ignored_and_invalid_uuid_is_refused() -> None:
    directories.take(ONE, "first")
    directories.remove(ONE, "first")
    for strange in ("../../etc", "", ONE.upper()):
        with pytest.raises(exception.InvalidInput):
            directories.directory(strange)


def _content(place: pathlib.Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in place.iterdir() if path.name != "owner"}


def _writer(text: str) -> Callable[[str], None]:
    return lambda path: directories.write(text, path)


def _breaks(_path: str = "") -> None:
    raise exception.DiskFull(reason="now")


def test_replaced_files_become_visible_after_release_of_the_old_files(place: pathlib.Path) -> None:
    here = pathlib.Path(directories.make(ONE, "first"))
    for name in ("disk", "kernel", "disk.eph0"):
        (here / name).write_text("old")
    seen: list[dict[str, str]] = []
    directories.replace(str(here), {"disk": _writer("new")}, {"disk.eph0"}, "one", lambda: seen.append(_content(here)))
    assert seen == [{"disk": "old", "kernel": "old", "disk.eph0": "old", "disk.part": "new", "rebuilt.part": "one"}]
    assert _content(here) == {"disk": "new", "disk.eph0": "old", "rebuilt": "one"}
    assert (directories.text(ONE, directories.MARK), directories.owner(str(here)) is not None) == ("one", True)


@pytest.mark.parametrize(("builder", "give_up"), [(_breaks, lambda: None), (_writer("new"), _breaks)])
def test_failed_replacement_leaves_the_old_files(
        place: pathlib.Path, builder: Callable[[str], None], give_up: Callable[[], None]) -> None:
    here = pathlib.Path(directories.make(ONE, "first"))
    (here / "disk").write_text("old")
    with pytest.raises(exception.DiskFull):
        directories.replace(str(here), {"disk": _writer("new"), "disk.swap": builder}, (), "one", give_up)
    assert (_content(here), directories.text(ONE, directories.MARK)) == ({"disk": "old"}, "")
