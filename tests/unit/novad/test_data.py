"""Data directories of components, and their backups."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from nova.common.errors import Refused, ReportedError
from nova.novad.deployment import data as module
from nova.novad.deployment.data import Data
from nova.novad.platform import Component, Volume
from tests.unit.novad.runtimes import Killed, content

VOLUMES = (Volume(name="rows", destination="/rows"), Volume(name="cache", destination="/cache", backup=False))


@pytest.fixture
def data(tmp_path):
    data = Data(tmp_path)
    data.prepare("db", Component(image="i", volumes=VOLUMES))
    (data.volume("db", "rows") / "deep").mkdir()
    (data.volume("db", "rows") / "deep/file").write_text("one")
    os.symlink("file", data.volume("db", "rows") / "deep/link")
    (data.volume("db", "cache") / "file").write_text("hot")
    return data


def rows(data):
    return content(data.volume("db", "rows"))


def test_backup_contains_all_volumes_with_backup_enabled(data):
    place, size = data.back_up("db", VOLUMES, 7)
    assert (place, {path.name for path in (data.root / place).iterdir()}, size > 0) == (
        "backups/db/7", {"rows"}, True)
    (data.volume("db", "rows") / "deep/file").write_text("two")
    (data.volume("db", "rows") / "new").write_text("two")
    (data.volume("db", "cache") / "file").write_text("cold")
    data.restore("db", place)
    assert rows(data) == {"deep/file": "one", "deep/link": "one"}
    assert os.readlink(data.volume("db", "rows") / "deep/link") == "file"
    assert (data.volume("db", "cache") / "file").read_text() == "cold"
    assert (data.root / "backups").stat().st_mode & 0o777 == 0o700
    data.drop_backup(place)
    with pytest.raises(ReportedError, match="does not exist"):
        data.restore("db", place)


def test_interrupted_restore_can_be_repeated(data, monkeypatch):
    place, _size = data.back_up("db", VOLUMES, 1)
    wanted = rows(data)
    effects = {"copy": (module, "_copy"), "remove": (module, "_remove"), "rename": (module.pathlib.Path, "rename")}

    def run(left):
        """Restore with at most ``left`` effects. Return True if the restore completed."""
        with monkeypatch.context() as patch:
            for owner, name in effects.values():
                whole = getattr(owner, name)

                def cut(*args, whole=whole, **options):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed
                    return whole(*args, **options)
                patch.setattr(owner, name, cut)
            try:
                data.restore("db", place)
            except Killed:
                return False
            return True

    count = 0
    while True:
        (data.volume("db", "rows") / "deep/file").write_text("two")
        done = run([count])
        if done:
            break
        data.restore("db", place)
        assert rows(data) == wanted, count
        assert {path.name for path in (data.root / "volumes/db").iterdir()} == {"rows", "cache"}
        count += 1
    assert count >= 4


def test_backup_without_enough_disk_space_is_refused(data, monkeypatch):
    size = data.size("db", VOLUMES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 2 * size + module._MARGIN})())
    data.check_room([size])
    data.check_room([])
    with pytest.raises(Refused, match="Nothing was changed"):
        data.check_room([size, size])


def test_drop_backup_ignores_paths_outside_backups(data):
    for place in ("volumes/db", "../..", "", "backups"):
        data.drop_backup(place)
    assert rows(data)["deep/file"] == "one"
    assert (data.root / "backups").is_dir()


def test_component_files_contain_secrets_and_are_readable_by_their_user_only(data):
    component = Component(image="i", files={"/etc/a": "key ${secret:db}", "/etc/b": "plain"}, user="1234:5")
    written = data.write_files("api", component, {"db": "x"})
    assert {path: file.read_text() for path, file in written.items()} == {"/etc/a": "key x", "/etc/b": "plain"}
    assert {file.stat().st_mode & 0o777 for file in written.values()} == {0o600}
    if os.geteuid() == 0:
        assert {file.stat().st_uid for file in written.values()} == {1234}
    data.remove_files("api")
    assert content(data.root / "files") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_new_volume_is_owned_by_the_component_user_existing_keeps_its_owner(data):
    data.prepare("api", Component(image="i", volumes=VOLUMES, user="1234:5"))
    assert data.volume("api", "rows").stat().st_uid == 1234
    data.prepare("db", Component(image="i", volumes=VOLUMES, user="1234"))
    assert data.volume("db", "rows").stat().st_uid == 0


def test_accessible_data_directories_are_restricted_at_startup(tmp_path, caplog):
    caplog.set_level("INFO")
    names = ("volumes", "backups", "files")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o711)
    Data(tmp_path)
    Data(tmp_path)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in names} == {0o700}
    assert [record.message for record in caplog.records] == [
        f"Restricted {tmp_path / name} to its owner: mode 0711 of user {os.geteuid()} became 0700 of user "
        f"{os.geteuid()}" for name in names]


@pytest.mark.parametrize(("mode", "warned"), [(0o755, True), (0o700, False)])
def test_volume_moved_below_an_accessible_directory_is_reported(mode, warned, tmp_path, caplog):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as disk:
        os.chmod(disk, mode)
        os.mkdir(f"{disk}/rows")
        data = Data(tmp_path)
        (tmp_path / "volumes/db").mkdir()
        data.volume("db", "rows").symlink_to(f"{disk}/rows")
        data.prepare("db", Component(image="i", volumes=VOLUMES))
    assert [record.levelname for record in caplog.records if f"Volume rows of component db is at {disk}/rows" in
            record.message] == ["WARNING"] * warned


def nested(place, depth, name="d"):
    """Create nested directories whose path exceeds the maximum path length."""
    here = os.open(place, os.O_RDONLY)
    for _number in range(depth):
        os.mkdir(name, dir_fd=here)
        deeper = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)


@pytest.mark.parametrize("remove", [lambda data: data.remove("db"), lambda data: data.clear("db", "rows"),
                                    lambda data: data.restore("db", "backups/db/1")],
                         ids=["remove", "clear", "restore"])
def test_directories_nested_deeper_than_the_path_limit_are_removed(data, remove):
    data.back_up("db", VOLUMES, 1)
    nested(data.volume("db", "rows"), 1100)
    assert data.size("db", VOLUMES) < 1 << 20
    remove(data)
    assert not (data.volume("db", "rows") / "d").exists()


def test_backup_of_a_too_deep_volume_reports_path_and_reason(data):
    nested(data.volume("db", "rows"), 120, "d" * 40)
    with pytest.raises(ReportedError) as caught:
        data.back_up("db", VOLUMES, 1)
    assert str(caught.value).startswith(f"{data.volume('db', 'rows')} could not be copied to {data.root}/backups/db/1/")
    assert "d" * 41 not in str(caught.value)
    data.remove("db")
    assert not (data.root / "volumes/db").exists()


def test_hard_links_are_counted_and_copied_once(data):
    rows_ = data.volume("db", "rows")
    (rows_ / "large").write_bytes(os.urandom(1 << 20))
    for number in range(50):
        os.link(rows_ / "large", rows_ / str(number))
    assert 1 << 20 <= data.size("db", VOLUMES) < 2 << 20
    _place, size = data.back_up("db", VOLUMES, 1)
    assert size < 2 << 20


@pytest.fixture
def moved(data):
    """Move volume "rows" to another disk, next to unrelated files."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as disk:
        place = pathlib.Path(disk)
        shutil.move(data.volume("db", "rows"), place / "rows")
        data.volume("db", "rows").symlink_to(place / "rows")
        for name in (".rows.conf", ".rows.old", ".rows.d", "rows.other"):
            (place / name).write_text("of others")
        yield place


def test_files_next_to_a_moved_volume_are_retained(data, moved):
    place, _size = data.back_up("db", VOLUMES, 1)
    (moved / "rows/deep/file").write_text("two")
    left = moved / ".rows.0123abcd.restored"
    left.mkdir()
    data.restore("db", place)
    assert (moved / "rows/deep/file").read_text() == "one"
    assert {path.name for path in moved.iterdir()} == {"rows", ".rows.conf", ".rows.old", ".rows.d", "rows.other"}


def test_data_of_a_moved_volume_are_removed(data, moved):
    data.remove("db")
    assert not (data.root / "volumes/db").exists()
    assert {path.name for path in moved.iterdir()} == {".rows.conf", ".rows.old", ".rows.d", "rows.other"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_failed_data_removal_is_reported(data):
    busy = data.volume("db", "rows") / "deep"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", busy], check=True)
    try:
        for remove in (lambda: data.remove("db"), lambda: data.clear("db", "rows")):
            with pytest.raises(OSError, match=str(data.volume("db", "rows"))):
                remove()
    finally:
        subprocess.run(["umount", busy], check=True)
    data.remove("db")
    assert not (data.root / "volumes/db").exists()
