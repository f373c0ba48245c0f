"""Every documented image property and extra spec is read, refused by name, or listed in doc/properties.md as ignored.
tests/data/documented_properties.json has the names with a meaning in the public documentation of Glance and Nova."""

import ast
import collections
import contextlib
import json
import re

import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.images.image import Image
from nova.objects.requirements import properties as current
from nova.objects.requirements.requested_resources import host_requirements
from nova.objects.servers.instance import Instance
from nova.virt.libvirt.xml.guest_config import guest_config
from nova.virt.libvirt.xml.settings import Settings
from tests.paths import ROOT

DOCUMENTED = {
    kind: set(names)
    for kind, names in json.loads((ROOT / "tests/data/documented_properties.json").read_text("utf-8")).items()}
# Modules that contain names of properties without an effect: validation, views and copies.
_WITHOUT_EFFECT = ("nova/cli/", "nova/novad/", "nova/notifications/", "nova/api/validation/extra_specs.py",
                   "nova/api/compute/servers/servers_view.py", "nova/conductor/resources/server_images.py")
_OF_IMAGES = ("nova/objects/requirements/properties.py", "nova/image/", "nova/objects/servers/volume_image.py")
_PREFIXED = re.compile("(hw|img|os|cinder|vmware|xenapi)_|[a-z_]+:|hide_hypervisor_id$|group_policy$")
_ROW = re.compile(r"\| `([^`]+)` \| (read|refused|ignored) \|")
# Families of names, and properties that the library cursive reads for [glance]verify_glance_signatures.
_FAMILIES = {"trait:NAME", "resources:NAME", "capabilities:NAME", "aggregate_instance_extra_specs:NAME",
             "img_signature", "img_signature_hash_method", "img_signature_key_type", "img_signature_certificate_uuid"}
_HOST = Settings(owner="host1", virt_type="qemu", cpu_mode="host-model")
# Combinations of properties that are required for the code to read further properties.
_TOGETHER = [
    ({}, {}), ({"hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}, {}),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0"}, {}),
    ({"hw:mem_encryption": "true", "hw:ephemeral_encryption": "true", "hw:tpm_version": "2.0"}, {}),
    ({"hw:mem_page_size": "any"}, {"hw_firmware_type": "uefi", "hw_mem_page_size": "small"})]


class Recorder(dict):
    """A dict that records the keys that are read."""

    def __init__(self, *values):
        super().__init__(*values)
        self.asked = set()

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)


def _server(specs, properties):
    return Instance(
        uuid="u", project_id="p", user_id="u", display_name="n", hostname="n", created_at=utcnow(),
        flavor=Flavor(flavorid="1", name="m1", vcpus=2, memory_mb=512, root_gb=1, extra_specs=specs),
        image=Image(id="i", properties=properties))


def _asked_for(monkeypatch):
    """Return the names that scheduling and the guest configuration read, by kind."""
    asked = {"image": set(), "flavor": set()}
    monkeypatch.setattr(current, "with_current_names", lambda given: given)  # returns a plain dict
    for specs, properties in _TOGETHER:
        server = _server(Recorder(specs), Recorder(properties))
        for read in (lambda server: host_requirements(server.flavor, server.image),
                     lambda server: guest_config(server, _HOST)):
            with contextlib.suppress(exception.Invalid):
                read(server)
        asked["flavor"] |= server.flavor.extra_specs.asked
        asked["image"] |= server.image.properties.asked
    return asked


def _named():
    """Return the strings of all modules in which properties have an effect; unprefixed ones of image modules only."""
    found = set()
    for path in (ROOT / "nova").rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(_WITHOUT_EFFECT):
            strings = {node.value for node in ast.walk(ast.parse(path.read_text("utf-8")))
                       if isinstance(node, ast.Constant) and isinstance(node.value, str)}
            found |= {each for each in strings if place.startswith(_OF_IMAGES) or _PREFIXED.match(each)}
    return found


@pytest.fixture(scope="module")
def is_read():
    """Return a function that returns True if Nova reads the property or contains its name where names have effects."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        asked = _asked_for(monkeypatch)
    named = _named()

    def find(kind, name):
        numbered = re.sub(r"cpus\.N|mem\.N", "nodes", name)  # hw:numa_cpus.N are read with hw:numa_nodes
        return name in _FAMILIES or bool({name, numbered} & (asked[kind] | named))

    return find


def _table():
    """Return {kind: {name: handling}} of the tables in doc/properties.md."""
    found, kind = collections.defaultdict(dict), ""
    for line in (ROOT / "doc/properties.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            kind = {"## Image properties": "image", "## Flavor extra specs": "flavor"}.get(line, "")
        elif row := _ROW.match(line):
            assert row[1] not in found[kind], f"{row[1]} is in the table twice"
            found[kind][row[1]] = row[2]
    return found


@pytest.mark.parametrize("kind", ["image", "flavor"])
def test_properties_document_lists_every_documented_property(kind):
    table = _table()[kind]
    assert sorted(DOCUMENTED[kind] - table.keys()) == [], "add these to doc/properties.md with their handling"
    assert sorted(table.keys() - DOCUMENTED[kind]) == [], "list these in tests/data/documented_properties.json"
    print(f"{kind}: {len(table)} documented, {dict(collections.Counter(table.values()))}")


@pytest.mark.parametrize("kind", ["image", "flavor"])
def test_properties_document_matches_the_code(kind, is_read):
    wrong = [f"{name}: the table says {handling}" for name, handling in _table()[kind].items()
             if (handling != "ignored") != is_read(kind, name)]
    assert wrong == []


@pytest.mark.parametrize("kind", ["image", "flavor"])
def test_properties_listed_as_refused_are_refused_by_name(kind):
    refused = [name for name, handling in _table()[kind].items() if handling == "refused"]
    for name in refused:
        server = _server({name: "1"}, {}) if kind == "flavor" else _server({}, {name: "1"})
        with pytest.raises(exception.Invalid, match=name):
            guest_config(server, _HOST)
    assert refused
