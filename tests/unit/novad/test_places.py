"""Assignment of components to nodes, and the addresses of other nodes."""

import re

import msgspec
import pytest

from nova.common.errors import Invalid
from nova.novad.nodes.participant import Assignment
from nova.novad.options import Options
from nova.novad.platform import Place
from tests.unit.novad.platforms import parse

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
files = {"/etc/hosts" = "${address:db} db", "/etc/hostname" = "${node}.example"}
ports = [{container = 1, node = 1}, {container = 1, node = 1, address = "${address:compute}"}]
health = {command = ["ask", "${address:db}", "of.${node}"]}
"""
CONTROL = Place(node="n1", address="10.0.0.1", roles=("control",))
N2, N3 = (Place(node=f"n{each}", address=f"10.0.0.{each}", roles=("compute",)) for each in (2, 3))


def test_node_runs_components_of_its_roles_with_addresses_of_other_nodes():
    platform = parse(TEXT, "toml")
    assert set(platform.at(CONTROL, [CONTROL, N2]).components) == {"db"}
    compute = platform.at(N3, [CONTROL, N2, N3]).components["compute"]
    assert compute.env == {"URL": "db://${secret:db}@10.0.0.1:1", "SELF": "10.0.0.3"}
    assert (compute.files, compute.depends) == ({"/etc/hosts": "10.0.0.1 db", "/etc/hostname": "n3.example"}, ())
    assert compute.health.command == ("ask", "10.0.0.1", "of.n3")
    assert [port.address for port in compute.ports] == ["127.0.0.1", "10.0.0.3"]


@pytest.mark.parametrize(("address", "ports"), [("127.0.0.1", ["127.0.0.1"]), ("[fd00::1]", ["127.0.0.1", "fd00::1"])])
def test_port_is_published_once_per_address(address, ports):
    here = Place(node="n1", address=address, roles=("control", "compute"))
    assert [port.address for port in parse(TEXT, "toml").at(here, [here]).components["compute"].ports] == ports


def test_publishing_at_a_host_name_is_refused():
    here = Place(node="n1", address="n1.example", roles=("control", "compute"))
    with pytest.raises(Invalid, match=r"components\.compute\.ports\[1\]\.address: 'n1\.example' is not an IP address"):
        parse(TEXT, "toml").at(here, [here])


@pytest.mark.parametrize("name", ["", "a b", "a\nuser = root", "a/b", "-a", "ä", "a" * 256])
def test_unsafe_node_name_in_a_file_is_refused(name):
    place = Place(node=name, address="10.0.0.2", roles=("compute",))
    with pytest.raises(Invalid, match=r"components\.compute\.files\./etc/hostname: \$\{node}: the name of node"):
        parse(TEXT, "toml").at(place, [CONTROL, place])
    assert parse(TEXT, "toml").at(msgspec.structs.replace(place, roles=("control",)), [CONTROL, place])


def test_substituted_node_name_is_not_expanded_again():
    text = TEXT.replace('SELF = "${address:compute}"', 'SELF = "${addr${node}:nobody} ${sec${node}:none}"')
    place = Place(node="ess", address="10.0.0.2", roles=("compute",))
    assert parse(text, "toml").at(place, [CONTROL, place]).components["compute"].env["SELF"] == (
        "${address:nobody} ${secess:none}")


@pytest.mark.parametrize(("listen", "given", "address"), [
    ("tcp://127.0.0.1:1", "", "127.0.0.1"), ("tcp://[fd00::1]:1", "", "[fd00::1]"),
    ("tcp://[::]:1", "fd00::2", "[fd00::2]"), ("tcp://[::]:1", "[fd00::2]", "[fd00::2]"),
    ("tcp://0.0.0.0:1", "n1.example", "n1.example")])
def test_node_address_is_formatted_for_urls(listen, given, address):
    assert Options(listen=listen, node_address=given).place.address == address


@pytest.mark.parametrize(("places", "said"), [([N2, N3], "no node"), (
    [CONTROL, N2, Place(node="n4", address="10.0.0.4", roles=("control",))], "several nodes: n1, n4")])
def test_address_of_missing_or_ambiguous_component_is_refused_by_field(places, said):
    with pytest.raises(Invalid, match=rf"compute\.env\.URL: \$\{{address:db}}: the component runs on {said}"):
        parse(TEXT, "toml").at(N2, places)


@pytest.mark.parametrize(("right", "field"), [
    ("${address:db}:1", "env.URL"), ('${address:db} db', "files./etc/hosts"), ("${address:db}\",", "health.command"),
    ("${address:compute}", r"ports[1].address")])
@pytest.mark.parametrize(("wrong", "said"), [
    ("${address:nobody}", "nobody"), ("${address:db", "address:COMPONENT"), ("${node:n1}", r"as \$\{node}")])
def test_unknown_placeholder_is_refused_when_the_file_is_read(right, field, wrong, said):
    text = TEXT.replace('SELF = "${address:compute}"', 'SELF = ""')
    assert right in text
    with pytest.raises(Invalid, match=rf"platform: components\.compute\.{re.escape(field)}: .*{said}"):
        parse(text.replace(right, wrong + right.partition("}")[2]), "toml")


def test_assignment_is_encoded_and_hides_its_secrets():
    assignment = Assignment(coordinator="c", control="n1", kind="deploy", platform=parse(TEXT, "toml"),
                            values={"db": "geheim"})
    assert Assignment.decode(msgspec.json.encode(assignment)) == assignment
    assert "geheim" not in repr(assignment)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"kind": "reboot"}', msgspec.json.encode({
    "coordinator": "c", "control": "n1", "kind": "deploy", "platform": {"name": "../x", "components": {}}})])
def test_invalid_assignment_is_rejected(data):
    with pytest.raises(Invalid, match="Cannot decode the assignment"):
        Assignment.decode(data)


@pytest.mark.parametrize("listen", ["0.0.0.0", "[::]", "[0:0::0]"])
def test_wildcard_address_is_never_substituted(listen):
    """A wildcard address is never substituted, in any field of the platform file that accepts an address."""
    options = Options(listen=f"tcp://{listen}:18080", node="n1")
    for field, line in (("env.A", 'env = {A = "${address:x}"}'), ("files./a", 'files = {"/a" = "${address:x}"}'),
                        ("health.command", 'health = {command = ["${address:x}"]}'),
                        (r"ports\[0\].address", 'ports = [{container = 1, node = 1, address = "${address:x}"}]')):
        platform = parse(f'name = "s"\n[components.x]\nimage = "i"\n{line}', "toml")
        with pytest.raises(Invalid, match=rf"components.x.{field}: .*node n1 listens on all.*set node_address"):
            platform.at(options.place, [options.place])
        known = msgspec.structs.replace(options, node_address="10.0.0.1").place
        assert platform.at(known, [known]).components["x"] != platform.components["x"]
    without = parse('name = "s"\n[components.x]\nimage = "i"\nenv = {N = "${node}"}', "toml")
    assert without.at(options.place, [options.place]).components["x"].env == {"N": "n1"}
