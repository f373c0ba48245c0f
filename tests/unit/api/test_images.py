"""The images proxy and the metadata of images."""

import pytest

from nova import exception, image
from nova.conf import CONF
from nova.image.base import ImageStore, check_property_count
from nova.objects.accounts.usage import Quotas as QuotaSet
from nova.objects.images.image import Image
from nova.rpcapi.accounts import Quotas
from tests.unit.api.canned import stub

PATH = "/v2.1/images/i"


class Store(ImageStore):
    """A fake image store in memory."""

    def __init__(self):
        self.kept = {"i": Image(id="i", name="cirros", size=10, min_disk=1, min_ram=64, status="active",
                                properties={"a": "b"}, created_at="2026-01-01T00:00:00Z")}
        self.asked = None

    def show(self, ctx, image_id, token=None):
        if image_id not in self.kept:
            raise exception.ImageNotFound(image_id=image_id)
        return self.kept[image_id]

    def index(self, ctx, filters, limit=None, marker=None, token=None):
        self.asked = {"filters": dict(filters), "limit": limit, "marker": marker, "token": token}
        return list(self.kept.values())[:limit]

    def download(self, ctx, image_id, path):
        raise NotImplementedError

    def create(self, ctx, image):
        self.kept[image.id] = image

    def upload(self, ctx, image_id, path, disk_format):
        raise NotImplementedError

    def delete(self, ctx, image_id, token=None):
        del self.kept[self.show(ctx, image_id).id]

    def set_properties(self, ctx, image_id, properties, replace, token=None, max_properties=-1):
        found = self.show(ctx, image_id)
        wanted = {**({} if replace else found.properties), **properties}
        kept = {name: value for name, value in wanted.items() if value is not None}
        check_property_count(kept, max_properties)
        found.properties = kept
        return found


@pytest.fixture
def store(api, monkeypatch):
    made = Store()
    monkeypatch.setattr(image, "store", lambda: made)
    stub(api, "quotas", Quotas, get=QuotaSet(limits={"metadata_items": 2}))
    return made


def test_show_image_returns_all_fields(api, store):
    CONF.set_override("glance_link_prefix", "http://images/", group="api")
    try:
        shown = api.get(PATH).json["image"]
    finally:
        CONF.clear_override("glance_link_prefix", group="api")
    assert shown == {
        "id": "i", "name": "cirros", "status": "ACTIVE", "progress": 100, "minDisk": 1, "minRam": 64,
        "created": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z", "metadata": {"a": "b"},
        "OS-EXT-IMG-SIZE:size": 10, "links": [
            {"rel": "self", "href": "http://api:8774/v2.1/images/i"},
            {"rel": "bookmark", "href": "http://api:8774/images/i"},
            {"rel": "alternate", "type": "application/vnd.openstack.image", "href": "http://images/images/i"}]}


@pytest.mark.parametrize(("status", "shown"), [
    ("queued", ("SAVING", 25)), ("saving", ("SAVING", 50)), ("active", ("ACTIVE", 100)), ("killed", ("ERROR", 0)),
    ("deleted", ("DELETED", 0)), ("deactivated", ("UNKNOWN", 0))])
def test_image_status_and_progress_per_glance_status(api, store, status, shown):
    store.kept["i"].status = status
    found = api.get(PATH).json["image"]
    assert (found["status"], found["progress"]) == shown


def test_snapshot_image_links_to_its_server(api, store):
    store.kept["i"].properties = {"instance_uuid": "s", "auto_disk_config": "False"}
    shown = api.get("/v2.1/images/detail").json["images"][0]
    assert shown["server"]["id"] == "s"
    assert shown["server"]["links"][0]["href"] == "http://api:8774/v2.1/servers/s"
    assert shown["OS-DCF:diskConfig"] == "MANUAL"


def test_list_images_translates_filters_for_glance(api, store):
    api.get("/v2.1/images?name=n&status=saving&type=snapshot&minRam=1&minDisk=2&property-os=linux&limit=1&marker=m"
            "&server=http://api/servers/s&changes-since=2026-01-01T00:00:00%2B01:00&other=x",
            headers={"X-Auth-Token": "t"})
    assert store.asked == {"limit": 1, "marker": "m", "token": "t", "filters": {
        "name": "n", "status": "queued", "image_type": "snapshot", "min_ram": "1", "min_disk": "2", "os": "linux",
        "instance_uuid": "s", "updated_at": "gte:2025-12-31T23:00:00Z"}}


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "changes-since=x", "minRam=x"])
def test_list_images_refuses_invalid_filters(api, store, query):
    assert api.get(f"/v2.1/images?{query}").error[1] == 400


def test_full_page_of_images_has_a_next_link(api, store):
    assert api.get("/v2.1/images?limit=1").json["images_links"] == [
        {"rel": "next", "href": "http://api:8774/v2.1/images?limit=1&marker=i"}]
    assert "images_links" not in api.get("/v2.1/images?limit=2").json


def test_delete_image_then_returns_404(api, store):
    assert api("DELETE", PATH).status == 204
    assert api("DELETE", PATH).error == ("itemNotFound", 404, "Image i could not be found.")
    assert api.get(PATH).error[1] == 404


@pytest.mark.parametrize(("path", "last"), [("/images", 35), ("/images/detail", 35), ("/images/i", 35),
                                            ("/images/i/metadata", 38), ("/images/i/metadata/a", 38)])
def test_images_proxy_ends_with_its_last_microversion(api, store, path, last):
    assert api.get(f"/v2.1{path}", version=f"2.{last}").status == 200
    assert api.get(f"/v2.1{path}", version=f"2.{last + 1}").error[1] == 404


# -- metadata ---------------------------------------------------------------------------------------
def test_image_metadata_is_merged_or_replaced(api, store):
    assert api.post(f"{PATH}/metadata", {"metadata": {"c": "d"}}).json == {"metadata": {"a": "b", "c": "d"}}
    assert api("PUT", f"{PATH}/metadata", {"metadata": {"e": "f"}}).json == {"metadata": {"e": "f"}}
    assert api("PUT", f"{PATH}/metadata/g", {"meta": {"g": "h"}}).json == {"meta": {"g": "h"}}
    assert api.get(f"{PATH}/metadata").json == {"metadata": {"e": "f", "g": "h"}}
    assert api.get(f"{PATH}/metadata/g").json == {"meta": {"g": "h"}}


def test_delete_image_metadata_item_twice_returns_404(api, store):
    assert api("DELETE", f"{PATH}/metadata/a").status == 204
    assert store.kept["i"].properties == {}
    for method in ("DELETE", "GET"):
        assert api(method, f"{PATH}/metadata/a").error == ("itemNotFound", 404, "Metadata item was not found")


@pytest.mark.parametrize(("method", "path", "body"), [
    ("POST", "", {"metadata": {"c": "1", "d": "2"}}), ("PUT", "", {"metadata": {"c": "1", "d": "2", "e": "3"}})])
def test_image_metadata_above_the_quota_returns_403(api, store, method, path, body):
    assert api(method, f"{PATH}/metadata{path}", body).error == ("forbidden", 403, "Image metadata limit exceeded")
    assert store.kept["i"].properties == {"a": "b"}


@pytest.mark.parametrize("body", [{"meta": {"b": "1"}}, {"meta": {"a": "1", "b": "2"}}, {"meta": {}},
                                  {"meta": {"a": 1}}, {"meta": {"a": "x" * 256}}, {}])
def test_invalid_image_metadata_items_are_refused(api, store, body):
    assert api("PUT", f"{PATH}/metadata/a", body).error[1] == 400
