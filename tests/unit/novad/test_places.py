"""Which node runs what, and by which address it reaches the others."""

import msgspec
import pytest

from nova.novad.errors import Invalid
from nova.novad.platform import Place, parse
from nova.novad.shares import Share, unpacked

TEXT = """
name = "suite"
[secrets.db]
[components.db]
image = "registry/db"
roles = ["control"]
[components.compute]
image = "registry/compute"
depends = ["db"]
roles = ["compute"]
env = {URL = "db://${secret:db}@${address:db}:1", SELF = "${address:compute}"}
files = {"/etc/hosts" = "${address:db} db"}
"""
CONTROL = Place(node="n1", address="10.0.0.1", roles=("control",))
N2, N3 = (Place(node=f"n{each}", address=f"10.0.0.{each}", roles=("compute",)) for each in (2, 3))


def test_each_node_runs_what_its_roles_say_and_knows_the_others_by_their_addresses():
    platform = parse(TEXT, "toml")
    assert set(platform.at(CONTROL, [CONTROL, N2]).components) == {"db"}
    compute = platform.at(N3, [CONTROL, N2, N3]).components["compute"]
    assert compute.env == {"URL": "db://${secret:db}@10.0.0.1:1", "SELF": "10.0.0.3"}
    assert (compute.files, compute.depends) == ({"/etc/hosts": "10.0.0.1 db"}, ())


@pytest.mark.parametrize(("places", "said"), [([N2, N3], "no node"), (
    [CONTROL, N2, Place(node="n4", address="10.0.0.4", roles=("control",))], "several nodes: n1, n4")])
def test_an_address_that_is_none_or_several_is_refused_by_the_name_of_the_field(places, said):
    with pytest.raises(Invalid, match=rf"components\.compute\.env\.URL: \$\{{address:db}}: it runs on {said}"):
        parse(TEXT, "toml").at(N2, places)


@pytest.mark.parametrize("wrong", ["${address:nobody}", "${address:db"])
def test_an_address_of_nothing_is_refused_when_the_file_is_read(wrong):
    with pytest.raises(Invalid, match=r"platform: components\.compute\.env\.URL: .*(nobody|address:COMPONENT)"):
        parse(TEXT.replace("${address:db}:1", wrong), "toml")


def test_a_share_travels_and_does_not_show_its_secrets():
    share = Share(coordinator="c", control="n1", kind="deploy", platform=parse(TEXT, "toml"), values={"db": "geheim"})
    assert unpacked(share.packed()) == share
    assert "geheim" not in repr(share)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"kind": "reboot"}', msgspec.json.encode({
    "coordinator": "c", "control": "n1", "kind": "deploy", "platform": {"name": "../x", "components": {}}})])
def test_a_share_that_is_none_is_refused(data):
    with pytest.raises(Invalid, match="share of a deployment"):
        unpacked(data)
