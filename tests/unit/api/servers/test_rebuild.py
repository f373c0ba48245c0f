"""Rebuild over the API: the request to the conductor per microversion, and policy rules."""

import pytest

from nova.image import lookup
from nova.objects.images.image import Image
from nova.operations.rebuild import RebuildRequest
from tests.unit.api.servers.test_server_moves import SERVER, act, servers  # noqa: F401 (fixture)

IMAGE = "77777777-0000-4000-8000-000000000000"


@pytest.fixture(autouse=True)
def images(monkeypatch):
    """Provide every image. Return the list of requested images with their trusted certificates."""
    asked = []

    def find(ctx, ident, trusted=()):
        asked.append((ident, list(trusted)))
        return Image(id=ident)

    monkeypatch.setattr(lookup, "find", find)
    return asked


def rebuild(api, version="2.96", roles="admin", **values):
    return act(api, "rebuild", {"imageRef": IMAGE, **values}, version=version, roles=roles)


def asked_of(servers):  # noqa: F811
    given = servers.last("operate")
    assert given["operation"] == "rebuild"
    assert set(given["payload"]) <= set(RebuildRequest.__struct_fields__)
    return given["payload"]


def test_rebuild_passes_only_the_requested_changes(api, servers):  # noqa: F811
    assert rebuild(api, name="n", key_name=None, preserve_ephemeral="on", accessIPv6="2001:DB8::0:1").status == 202
    given = asked_of(servers)
    assert (given["display_name"], given["key_name"], given["keep_ephemerals"], given["access_ip_v6"]) == (
        "n", None, True, "2001:db8::1")
    assert given["image"]["id"] == IMAGE
    assert not {"display_description", "user_data", "metadata", "trusted_certs", "hostname"} & given.keys()


@pytest.mark.parametrize(("version", "reimage"), [("2.92", False), ("2.93", True)])
def test_rebuild_reimages_volumes_from_2_93(api, servers, version, reimage):  # noqa: F811
    assert rebuild(api, version=version).status == 202
    assert asked_of(servers)["reimage"] is reimage


@pytest.mark.parametrize(("field", "value", "since"), [
    ("description", "d", 19), ("key_name", "k", 54), ("user_data", "IyE=", 57),
    ("trusted_image_certificates", ["a"], 63), ("hostname", "h-1", 90)])
def test_rebuild_fields_are_refused_before_their_microversion(api, servers, field, value, since):  # noqa: F811
    assert rebuild(api, version=f"2.{since - 1}", **{field: value}).status == 400
    assert rebuild(api, version=f"2.{since}", **{field: value}).status == 202


def test_members_may_rebuild_with_trusted_certificates(api, servers, images):  # noqa: F811
    assert rebuild(api, roles="reader").status == 403
    assert rebuild(api, roles="member", trusted_image_certificates=["a", "b"]).status == 202
    assert images == [(IMAGE, ["a", "b"])]


def test_rebuild_password_above_255_characters_is_refused(api, servers):  # noqa: F811
    response = rebuild(api, adminPass="x" * 256)
    assert response.status == 400
    assert "x" * 256 not in response.text
    assert rebuild(api, adminPass="right").status == 202
    assert asked_of(servers)["admin_pass"] == "right"


def test_rebuild_returns_the_location_of_the_server(api, servers):  # noqa: F811
    assert rebuild(api).headers["location"].endswith(f"/servers/{SERVER}")
