"""Rescue over the API: the request to the conductor per microversion."""

import pytest

from nova.image import lookup
from nova.objects.images.image import Image
from tests.unit.api.servers.test_server_moves import act, asked, servers  # noqa: F401 (fixture)

IMAGE = "77777777-0000-4000-8000-000000000000"


@pytest.mark.parametrize(("version", "allowed"), [("2.86", False), ("2.87", True)])
def test_rescue_without_an_image_passes_the_password(api, servers, version, allowed):  # noqa: F811
    response = act(api, "rescue", {"adminPass": "right"}, version=version, roles="member")
    assert (response.status, response.json) == (200, {"adminPass": "right"})
    assert asked(servers) == ("rescue", {"admin_pass": "right", "volume_backed": allowed})


def test_rescue_with_an_image_passes_the_image(api, servers, monkeypatch):  # noqa: F811
    monkeypatch.setattr(lookup, "find", lambda ctx, ident, trusted: Image(id=ident))
    assert act(api, "rescue", {"rescue_image_ref": IMAGE}, version="2.1").status == 200
    given = servers.last("operate")["payload"]
    assert (given["image"]["id"], given["kernel_id"], given["ramdisk_id"]) == (IMAGE, "", "")


def test_readers_cannot_rescue_or_unrescue(api, servers):  # noqa: F811
    for action in ("rescue", "unrescue"):
        assert act(api, action, roles="reader").status == 403
    assert act(api, "unrescue", roles="member").status == 202
    assert servers.last("operate")["operation"] == "unrescue"
