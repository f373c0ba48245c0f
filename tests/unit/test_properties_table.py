"""Every documented image property and extra spec is supported, refused by name or ignored, as in doc/properties.md.
tests/data/documented_properties.json has the names with a meaning in the public documentation of Glance and Nova."""

import ast
import collections
import contextlib
import json
import re
from types import SimpleNamespace

import pytest

import nova.image
from nova import exception
from nova.conductor.resources.server_images import ServerImages
from nova.image import lookup, signatures
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.images.image import Image
from nova.objects.requirements import properties as current
from nova.objects.requirements.requested_resources import host_requirements
from nova.objects.servers.instance import Instance
from nova.virt.libvirt.xml.guest_config import guest_config
from nova.virt.libvirt.xml.settings import Settings
from tests.paths import ROOT
from tests.service_recorder import Fields

DOCUMENTED = {
    kind: set(names)
    for kind, names in json.loads((ROOT / "tests/data/documented_properties.json").read_text("utf-8")).items()}
# Modules that read properties without an effect on servers: validation and views.
_WITHOUT_EFFECT = ("nova/cli/", "nova/novad/", "nova/notifications/", "nova/api/validation/extra_specs.py",
                   "nova/api/compute/servers/servers_view.py")
_ROW = re.compile(r"\| `([^`]+)` \| (supported|refused|ignored) \|")
# Objects with image properties or extra specs, in the code that reads a name from them.
_SOURCES, _SOURCES_OF_GLANCE = re.compile(r"propert|\bspecs$|extra_specs|image$"), re.compile(r"^raw$")
_READERS = {"get", "image_flag", "image_number", "bounded_number", "spec_number"}
# Families that filters of the scheduler read: tests/unit/scheduler/test_filters_*.py.
_FILTERED = {"capabilities:NAME", "aggregate_instance_extra_specs:NAME"}
_SIGNATURE = ("img_signature", "img_signature_hash_method", "img_signature_key_type", "img_signature_certificate_uuid")
_HOST = Settings(owner="host1", virt_type="qemu", cpu_mode="host-model")
# Combinations of properties that are required for the code to read further properties.
_TOGETHER = [
    ({}, {}), ({"hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}, {}), ({}, {"hw_numa_nodes": "1"}),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0"}, {}), ({"hw:cpu_policy": "mixed"}, {}),
    ({"hw:mem_encryption": "true", "hw:ephemeral_encryption": "true", "hw:tpm_version": "2.0"}, {}),
    ({"hw:mem_page_size": "any"}, {"hw_firmware_type": "uefi", "hw_mem_page_size": "small"})]


def _server(specs, properties):
    return Instance(
        uuid="u", project_id="p", user_id="u", display_name="n", hostname="n", created_at=utcnow(),
        flavor=Flavor(flavorid="1", name="m1", vcpus=2, memory_mb=512, root_gb=1, extra_specs=specs),
        image=Image(id="i", properties=properties))


def _asked_for(monkeypatch):
    """Return the names that scheduling, the guest configuration and the check of signatures read, by kind."""
    asked = {"image": set(), "flavor": set()}
    monkeypatch.setattr(current, "with_current_names", lambda given: given)  # returns a plain dict
    for specs, properties in _TOGETHER:
        server = _server(Fields(specs), Fields(properties))
        for read in (lambda server: host_requirements(server.flavor, server.image),
                     lambda server: guest_config(server, _HOST)):
            with contextlib.suppress(exception.Invalid):
                read(server)
        asked["flavor"] |= server.flavor.extra_specs.read
        asked["image"] |= server.image.properties.read
    unsigned = Fields()
    lookup.boot_files(None, Image(id="i", properties=unsigned))
    asked["image"] |= unsigned.read
    monkeypatch.setattr(signatures, "_get", lambda *_args: None)
    signed = Fields(dict.fromkeys(_SIGNATURE, "RSA-PSS"))
    with contextlib.suppress(exception.Invalid, AttributeError):
        signatures.certificate_of(None, Image(id="i", properties=signed), ())
    asked["image"] |= signed.read
    return asked


def _families(monkeypatch):
    """Return the names of which an example changes what a server requires or which backups are rotated, by kind."""
    def outcome(specs, properties):
        server = _server({"hw:numa_nodes": "1", **specs}, properties)
        try:
            fields = host_requirements(server.flavor, server.image)
        except exception.Invalid as refusal:
            return str(refusal)
        return {name: value for name, value in fields.items() if name not in ("flavor", "image")}

    examples = {"trait:NAME": {"trait:CUSTOM_X": "required"}, "resources:NAME": {"resources:CUSTOM_X": "1"},
                "hw:numa_cpus.N": {"hw:numa_cpus.0": "0"}, "hw:numa_mem.N": {"hw:numa_mem.0": "9"},
                "hw_numa_cpus.N": {"hw_numa_cpus.0": "0"}, "hw_numa_mem.N": {"hw_numa_mem.0": "9"}}
    plain = outcome({}, {})
    assert outcome({"hw:unknown": "1"}, {"unknown": "1"}) == plain
    changed = {"flavor": {name for name, example in examples.items() if outcome(example, {}) != plain},
               "image": {name for name, example in examples.items() if outcome({}, example) != plain}}
    changed["flavor"] |= _FILTERED
    backup = {"image_type": "backup", "backup_type": "daily", "instance_uuid": "u"}
    assert _rotated(monkeypatch, backup) == ["i"]
    changed["image"] |= {name for name in backup if not _rotated(monkeypatch, {**backup, name: "other"})}
    return changed


def _rotated(monkeypatch, properties):
    """Return the images that the rotation of daily backups deletes, of an image with these properties."""
    deleted, newest = [], Image(id="newest", owner="p", properties={"backup_type": "daily"})
    monkeypatch.setattr(nova.image, "store", lambda: SimpleNamespace(
        index=lambda ctx, filters: [Image(id="i", owner="p", properties=properties)],
        delete=lambda ctx, uuid: deleted.append(uuid)))
    ServerImages(SimpleNamespace(ctx=None, instance=_server({}, {}))).rotate(newest, 0)
    return deleted


def _constants(tree):
    """Return {name: text} of the constants of a module."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, values = ((node.targets[0].elts, node.value.elts) if isinstance(node.targets[0], ast.Tuple)
                               and isinstance(node.value, ast.Tuple) else (node.targets, [node.value]))
            found |= {target.id: value.value for target, value in zip(targets, values, strict=False)
                      if isinstance(target, ast.Name) and isinstance(value, ast.Constant)}
    return found


def _read_by_name():
    """Return the names that the code reads from image properties or extra specs: ``properties.get("name")``,
    ``properties["name"]``, ``"name" in properties`` and the methods of Properties, also with the name in a constant."""
    trees = {path.relative_to(ROOT): ast.parse(path.read_text("utf-8")) for path in (ROOT / "nova").rglob("*.py")}
    constants = {".".join(path.with_suffix("").parts): _constants(tree) for path, tree in trees.items()}
    found = set()
    for path, tree in trees.items():
        if path.as_posix().startswith(_WITHOUT_EFFECT):
            continue
        local = {alias.name: constants[node.module][alias.name] for node in tree.body
                 if isinstance(node, ast.ImportFrom) and node.module in constants for alias in node.names
                 if alias.name in constants[node.module]} | constants[".".join(path.with_suffix("").parts)]
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=source, attr=attr), args=[name, *_]) if attr in _READERS:
                    certain = attr != "get"
                case ast.Subscript(value=source, slice=name, ctx=ast.Load()):
                    certain = False
                case ast.Compare(left=name, ops=[ast.In()], comparators=[source]):
                    certain = False
                case _:
                    continue
            sources = _SOURCES_OF_GLANCE if path.name == "glance.py" else _SOURCES
            if certain or sources.search(ast.unparse(source)):
                found.add(name.value if isinstance(name, ast.Constant) else local.get(getattr(name, "id", "")))
    return found


@pytest.fixture(scope="module")
def is_read():
    """Return a function that returns True if Nova reads the property."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        asked = _asked_for(monkeypatch)
    with pytest.MonkeyPatch.context() as monkeypatch:
        families = _families(monkeypatch)
    by_name = _read_by_name()

    def find(kind, name):
        new_name, = current.with_current_names({name: ""}) if kind == "image" else [name]
        return name in families[kind] or bool({name, new_name} & (asked[kind] | by_name))

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
    assert not wrong, wrong


@pytest.mark.parametrize("kind", ["image", "flavor"])
def test_properties_listed_as_refused_are_refused_by_name(kind):
    refused = [name for name, handling in _table()[kind].items() if handling == "refused"]
    for name in refused:
        server = _server({name: "1"}, {}) if kind == "flavor" else _server({}, {name: "1"})
        with pytest.raises(exception.Invalid, match=name):
            guest_config(server, _HOST)
    assert refused
