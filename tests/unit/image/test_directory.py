"""Images in a directory."""

from __future__ import annotations

import hashlib

import pytest

from nova import context, exception
from nova.image.directory import DirectoryStore
from nova.objects.image import Image

ADMIN = context.RequestContext(overwrite=False, is_admin=True, roles=["admin"])
OWNER = context.RequestContext(overwrite=False, project_id="p1", roles=["member"])
OTHER = context.RequestContext(overwrite=False, project_id="p2", roles=["member"])
TOKEN = "token"


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(str(tmp_path / "images"))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "cirros.img"
    path.write_bytes(b"data" * 1000)
    return str(path)


def test_an_added_image_is_known_and_downloaded(store, source, tmp_path):
    added = store.add(source, Image(id="i1", name="cirros", disk_format="qcow2", visibility="public"))
    assert (added.size, added.status) == (4000, "active")
    assert added.checksum == hashlib.md5(b"data" * 1000, usedforsecurity=False).hexdigest()
    assert store.show(OTHER, "i1", TOKEN) == added
    told = []
    store.download(OTHER, "i1", str(tmp_path / "out"), told.append)
    assert told == [4000]
    assert (tmp_path / "out").read_bytes() == b"data" * 1000


def test_adding_again_replaces(store, source):
    first = store.add(source, Image(id="i1", name="one"))
    second = store.add(source, Image(id="i1", name="two"))
    assert store.show(ADMIN, "i1").name == "two"
    assert second.created_at == first.created_at


def test_what_a_user_may_not_see_is_not_found(store, source):
    store.add(source, Image(id="mine", owner="p1"))
    assert store.show(OWNER, "mine", TOKEN).id == "mine"
    assert store.show(ADMIN, "mine", TOKEN).id == "mine"
    assert store.show(OTHER, "mine").id == "mine"  # without a token: the service itself
    with pytest.raises(exception.ImageNotFound):
        store.show(OTHER, "mine", TOKEN)
    assert store.index(OTHER, {}, token=TOKEN) == []
    with pytest.raises(exception.ImageNotFound):
        store.delete(OTHER, "mine", TOKEN)


@pytest.mark.parametrize("image_id", ["", "nothing", "../etc/passwd", "a/b", ".", "x" * 100])
def test_strange_ids_are_not_found(store, source, image_id, tmp_path):
    store.add(source, Image(id="i1"))
    with pytest.raises(exception.ImageNotFound):
        store.show(ADMIN, image_id)
    with pytest.raises(exception.ImageNotFound):
        store.download(ADMIN, image_id, str(tmp_path / "out"), lambda size: None)


def test_a_bad_id_or_file_is_refused(store, source):
    with pytest.raises(exception.InvalidInput):
        store.add(source, Image(id="../x"))
    with pytest.raises(exception.InvalidInput):
        store.add(source + ".missing", Image(id="i1"))
    assert store.index(ADMIN, {}) == []


def test_index_pages_and_filters(store, source):
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


def test_properties_merge_and_replace(store, source):
    store.add(source, Image(id="i1", owner="p1", visibility="public", properties={"a": "1", "b": "2"}))
    assert store.set_properties(OWNER, "i1", {"b": "3"}, False, TOKEN).properties == {"a": "1", "b": "3"}
    assert store.set_properties(OWNER, "i1", {"c": "4"}, True, TOKEN).properties == {"c": "4"}
    assert store.show(ADMIN, "i1").properties == {"c": "4"}
    with pytest.raises(exception.ImageNotAuthorized):
        store.set_properties(OTHER, "i1", {}, True, TOKEN)


def test_who_may_only_read_changes_nothing(store, source):
    store.add(source, Image(id="i1", owner="p1", visibility="public", properties={"a": "1"}))
    reader = context.RequestContext(overwrite=False, project_id="p1", roles=["reader"])
    for change in (lambda: store.set_properties(reader, "i1", {"b": "2"}, False, TOKEN),
                   lambda: store.delete(reader, "i1", TOKEN)):
        with pytest.raises(exception.ImageNotAuthorized):
            change()
    assert store.show(reader, "i1", TOKEN).properties == {"a": "1"}


def test_delete(store, source, tmp_path):
    store.add(source, Image(id="i1", owner="p1", visibility="public"))
    store.add(source, Image(id="kept", owner="p1", protected=True))
    with pytest.raises(exception.ImageNotAuthorized):
        store.delete(OTHER, "i1", TOKEN)
    store.delete(OWNER, "i1", TOKEN)
    with pytest.raises(exception.ImageNotFound):
        store.show(OWNER, "i1", TOKEN)
    with pytest.raises(exception.ImageNotAuthorized):
        store.delete(OWNER, "kept", TOKEN)
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["kept", "kept.json"]


def test_damaged_data_is_not_handed_out(store, source, tmp_path):
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
