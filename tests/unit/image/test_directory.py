"""Tests of the image store in a directory."""

from __future__ import annotations

import hashlib
import os
import threading
import time

import pytest

from nova import conf, context, exception
from nova.conf import CONF
from nova.image import directory
from nova.image.directory import DirectoryStore
from nova.objects.images.image import Image

ADMIN = context.RequestContext(overwrite=False, is_admin=True, roles=["admin"])
OWNER = context.RequestContext(overwrite=False, project_id="p1", roles=["member"])
OTHER = context.RequestContext(overwrite=False, project_id="p2", roles=["member"])
TOKEN = "token"


@pytest.fixture
def store(tmp_path):
    conf.register()
    return DirectoryStore(str(tmp_path / "images"))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "cirros.img"
    path.write_bytes(b"data" * 1000)
    return str(path)


@pytest.mark.parametrize("end", ["upload", "delete"])
def test_remains_of_an_interrupted_upload_are_removed(store, source, tmp_path, monkeypatch, end):
    def die(*_args):
        raise SystemExit("the process is killed")

    wanted = Image(id="i1", name="copy", owner="p1")
    store.create(ADMIN, wanted)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", die)  # The process is killed before the cleanup.
        patch.setattr(os, "replace", die)
        with pytest.raises(SystemExit):
            store.upload(ADMIN, "i1", source, "qcow2")
    places = tmp_path / "images"
    assert [path for path in places.iterdir() if path.stat().st_size == 4000], "the data were not written completely"
    store.upload(ADMIN, "i1", source, "qcow2") if end == "upload" else store.delete(ADMIN, "i1")
    names = {path.name for path in places.iterdir()} - {".lock"}
    assert names == ({"i1", "i1.json"} if end == "upload" else set())


def test_added_image_is_shown_and_downloaded(store, source, tmp_path):
    added = store.add(source, Image(id="i1", name="cirros", disk_format="qcow2", visibility="public"))
    assert (added.size, added.status) == (4000, "active")
    assert added.checksum == hashlib.md5(b"data" * 1000, usedforsecurity=False).hexdigest()
    assert store.show(OTHER, "i1", TOKEN) == added
    sizes = []
    store.download(OTHER, "i1", str(tmp_path / "out"), sizes.append)
    assert sizes == [4000]
    assert (tmp_path / "out").read_bytes() == b"data" * 1000


def test_image_files_are_readable_by_nova_only(store, source, tmp_path):
    store.add(source, Image(id="i1", visibility="private", owner="p1"))
    files = [path for path in (tmp_path / "images").iterdir() if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o640}
    assert (tmp_path / "images").stat().st_mode & 0o027 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_image_added_by_root_is_owned_by_the_service_user(store, source, tmp_path):
    os.chown(tmp_path, 65534, 65534)
    store.add(source, Image(id="i1"))
    paths = [tmp_path / "images", *(tmp_path / "images").iterdir()]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in paths} == {(65534, 65534)}


def test_adding_an_existing_image_replaces_the_image(store, source):
    first = store.add(source, Image(id="i1", name="one"))
    second = store.add(source, Image(id="i1", name="two"))
    assert store.show(ADMIN, "i1").name == "two"
    assert second.created_at == first.created_at


def test_private_image_of_another_project_is_not_found(store, source):
    store.add(source, Image(id="mine", owner="p1"))
    assert store.show(OWNER, "mine", TOKEN).id == "mine"
    assert store.show(ADMIN, "mine", TOKEN).id == "mine"
    assert store.show(OTHER, "mine").id == "mine"  # Without a token, the caller is the service itself.
    with pytest.raises(exception.ImageNotFound):
        store.show(OTHER, "mine", TOKEN)
    assert store.index(OTHER, {}, token=TOKEN) == []
    with pytest.raises(exception.ImageNotFound):
        store.delete(OTHER, "mine", TOKEN)


@pytest.mark.parametrize("image_id", ["", "nothing", "../etc/passwd", "a/b", ".", "x" * 100])
def test_invalid_image_ids_are_not_found(store, source, image_id, tmp_path):
    store.add(source, Image(id="i1"))
    with pytest.raises(exception.ImageNotFound):
        store.show(ADMIN, image_id)
    with pytest.raises(exception.ImageNotFound):
        store.download(ADMIN, image_id, str(tmp_path / "out"), lambda size: None)


def test_invalid_image_id_or_file_is_refused(store, source):
    with pytest.raises(exception.InvalidInput):
        store.add(source, Image(id="../x"))
    with pytest.raises(exception.InvalidInput):
        store.add(source + ".missing", Image(id="i1"))
    assert store.index(ADMIN, {}) == []


def test_image_index_pages_and_filters(store, source):
    for number in range(5):
        store.add(source, Image(id=f"i{number}", name=f"n{number % 2}", visibility="public", min_ram=number,
                                properties={"os": "linux"} if number else {}))
    everything = [image.id for image in store.index(ADMIN, {})]
    assert sorted(everything) == [f"i{number}" for number in range(5)]
    first = store.index(ADMIN, {}, limit=2)
    assert [image.id for image in first + store.index(ADMIN, {}, marker=first[-1].id)] == everything
    assert {image.id for image in store.index(ADMIN, {"name": "n1"})} == {"i1", "i3"}
    assert [image.id for image in store.index(ADMIN, {"min_ram": "3"})] == ["i3"]
    assert len(store.index(ADMIN, {"os": "linux"})) == 4
    assert len(store.index(ADMIN, {"updated_at": "gte:2020-01-01T00:00:00Z"})) == 5
    assert store.index(ADMIN, {"status": "queued"}) == []
    assert store.index(ADMIN, {"size_min": "4001"}) == []
    with pytest.raises(exception.MarkerNotFound):
        store.index(ADMIN, {}, marker="nothing")


def test_image_properties_are_merged_or_replaced(store, source):
    store.add(source, Image(id="i1", owner="p1", visibility="public", properties={"a": "1", "b": "2"}))
    assert store.set_properties(OWNER, "i1", {"b": "3"}, False, TOKEN).properties == {"a": "1", "b": "3"}
    assert store.set_properties(OWNER, "i1", {"c": "4"}, True, TOKEN).properties == {"c": "4"}
    assert store.show(ADMIN, "i1").properties == {"c": "4"}
    with pytest.raises(exception.ImageNotAuthorized):
        store.set_properties(OTHER, "i1", {}, True, TOKEN)


def test_reader_role_cannot_change_images(store, source):
    store.add(source, Image(id="i1", owner="p1", visibility="public", properties={"a": "1"}))
    reader = context.RequestContext(overwrite=False, project_id="p1", roles=["reader"])
    for change in (lambda: store.set_properties(reader, "i1", {"b": "2"}, False, TOKEN),
                   lambda: store.delete(reader, "i1", TOKEN)):
        with pytest.raises(exception.ImageNotAuthorized):
            change()
    assert store.show(reader, "i1", TOKEN).properties == {"a": "1"}


def test_delete_image_requires_ownership_and_no_protection(store, source, tmp_path):
    store.add(source, Image(id="i1", owner="p1", visibility="public"))
    store.add(source, Image(id="kept", owner="p1", protected=True))
    with pytest.raises(exception.ImageNotAuthorized):
        store.delete(OTHER, "i1", TOKEN)
    store.delete(OWNER, "i1", TOKEN)
    with pytest.raises(exception.ImageNotFound):
        store.show(OWNER, "i1", TOKEN)
    with pytest.raises(exception.ImageNotAuthorized):
        store.delete(OWNER, "kept", TOKEN)
    assert names(tmp_path / "images") == ["kept", "kept.json"]


def names(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


def test_created_image_is_queued_until_its_single_upload(store, source, tmp_path):
    wanted = Image(id="i1", name="copy", owner="p1", properties={"image_type": "snapshot"})
    store.create(ADMIN, wanted)
    store.create(ADMIN, Image(id="i1", name="again"))
    made = store.show(OWNER, "i1", TOKEN)
    assert (made.name, made.status, made.size, made.properties) == ("copy", "queued", None, wanted.properties)
    with pytest.raises(exception.ImageNotActive):
        store.download(ADMIN, "i1", str(tmp_path / "out"), lambda size: None)
    store.upload(ADMIN, "i1", source, "qcow2")
    made = store.show(OWNER, "i1", TOKEN)
    assert (made.status, made.size, made.disk_format, made.container_format) == ("active", 4000, "qcow2", "bare")
    other = tmp_path / "other"
    other.write_bytes(b"x")
    store.upload(ADMIN, "i1", str(other), "qcow2")
    store.download(ADMIN, "i1", str(tmp_path / "out"), lambda size: None)
    assert (tmp_path / "out").read_bytes() == b"data" * 1000


@pytest.fixture
def quota():
    yield lambda **limits: [CONF.set_override(name, value, group="image") for name, value in limits.items()]
    for name in ("quota_images", "quota_gigabytes"):
        CONF.clear_override(name, group="image")


def test_image_count_quota_per_project(store, source, quota):
    quota(quota_images=2)
    for name in ("i1", "i2"):
        store.create(ADMIN, Image(id=name, owner="p1"))
    with pytest.raises(exception.QuotaLimit, match="number of images"):
        store.create(ADMIN, Image(id="i3", owner="p1"))
    store.create(ADMIN, Image(id="i2", owner="p1"))  # The image exists already.
    store.create(ADMIN, Image(id="other", owner="p2"))
    store.upload(ADMIN, "i2", source, "raw")
    store.delete(ADMIN, "i1")
    store.create(ADMIN, Image(id="i3", owner="p1"))


def test_image_size_quota_per_project(store, tmp_path, quota):
    quota(quota_gigabytes=1)
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 600 << 20)
    for name in ("i1", "i2"):
        store.create(ADMIN, Image(id=name, owner="p1"))
    store.add(str(large), Image(id="i1", owner="p1"))
    with pytest.raises(exception.QuotaLimit, match="size of images"):
        store.upload(ADMIN, "i2", str(large), "raw")
    assert names(tmp_path / "images") == ["i1", "i1.json", "i2.json"], "data were copied despite the quota"
    os.truncate(large, 400 << 20)
    store.upload(ADMIN, "i2", str(large), "raw")


def test_properties_set_during_an_upload_are_kept(store, source, monkeypatch):
    store.create(ADMIN, Image(id="i1", owner="p1"))
    save, reached = store._save, threading.Event()

    def slowly(image):
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            time.sleep(0.3)
        save(image)

    monkeypatch.setattr(store, "_save", slowly)
    setting = threading.Thread(target=store.set_properties, args=(OWNER, "i1", {"a": "1"}, False, TOKEN))
    setting.start()
    assert reached.wait(10)
    store.upload(ADMIN, "i1", source, "raw")
    setting.join()
    shown = store.show(OWNER, "i1", TOKEN)
    assert (shown.status, shown.properties) == ("active", {"a": "1"})


def test_upload_to_a_deleted_image_leaves_no_data(store, source, tmp_path, monkeypatch):
    store.create(ADMIN, Image(id="i1"))
    copy = directory._copy

    def copied(*paths):
        result = copy(*paths)
        store.delete(ADMIN, "i1")
        return result

    monkeypatch.setattr(directory, "_copy", copied)
    with pytest.raises(exception.ImageNotFound):
        store.upload(ADMIN, "i1", source, "raw")
    with pytest.raises(exception.ImageNotFound):
        store.upload(ADMIN, "i1", source, "raw")
    assert names(tmp_path / "images") == []


def test_shared_image_is_visible_to_members_and_changed_by_its_owner_only(store):
    store.create(ADMIN, Image(id="i1", owner="p1", visibility="shared", members=["p2"]))
    assert store.show(OTHER, "i1", TOKEN).id == "i1"
    assert [image.id for image in store.index(OTHER, {}, token=TOKEN)] == ["i1"]
    with pytest.raises(exception.ImageNotAuthorized):
        store.delete(OTHER, "i1", TOKEN)
    with pytest.raises(exception.ImageNotFound):
        store.show(context.RequestContext(overwrite=False, project_id="p3", roles=["member"]), "i1", TOKEN)


def test_damaged_image_data_are_not_downloaded(store, source, tmp_path):
    store.add(source, Image(id="i1"))
    (tmp_path / "images" / "i1").write_bytes(b"DATA" * 1000)
    with pytest.raises(exception.ImageUnacceptable, match="checksum"):
        store.download(ADMIN, "i1", str(tmp_path / "out"), lambda size: None)
    (tmp_path / "images" / "i1").write_bytes(b"data" * 1001)
    with pytest.raises(exception.ImageUnacceptable, match="more than its 4000 bytes"):
        store.download(ADMIN, "i1", str(tmp_path / "out"), lambda size: None)
    (tmp_path / "images" / "i1").unlink()
    with pytest.raises(exception.ImageNotFound):
        store.download(ADMIN, "i1", str(tmp_path / "out"), lambda size: None)
    assert not (tmp_path / "out").exists()
