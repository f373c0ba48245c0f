"""Fields of the responses of Neutron and Cinder, and of ports that Nova sends: all are used, refused or listed.

tests/data/service_fields.json lists the fields, with a reason for each field that is not used.
"""

import ast
import json
import typing

import pytest

from nova.network.neutron import api as neutron_api
from nova.volume.cinder import api as cinder_api
from tests.paths import ROOT

FIELDS = json.loads((ROOT / "tests/data/service_fields.json").read_text("utf-8"))
# The typed shapes of responses. Nova reads no field that is not in its shape.
_SHAPES = {
    "neutron port": neutron_api._SHAPES["port"], "neutron network": neutron_api._SHAPES["network"],
    "neutron subnet": typing.get_args(neutron_api._SHAPES["subnets"])[0],
    "cinder attachment": cinder_api._SHAPES["attachment"]}
# Modules that read or write untyped fields by name.
_MODULES = {"cinder connection_info": ("nova/volume/cinder/host.py", "nova/volume/cinder/server_volumes.py"),
            "sent with a port": ("nova/network/neutron/allocator.py", "nova/network/neutron/allocator.py")}


def _strings(path):
    return {node.value for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("kind", FIELDS)
def test_every_field_is_used_refused_or_listed_with_a_reason(kind):
    used, refused, unused = (FIELDS[kind][name] for name in ("used", "refused", "not used"))
    named = [*used, *refused, *unused]
    assert len(named) == len(set(named)), "a field is listed twice"
    assert all(unused.values())
    if kind in _SHAPES:
        assert sorted([*used, *refused]) == sorted(typing.get_type_hints(_SHAPES[kind]))
    else:
        strings = set().union(*map(_strings, _MODULES[kind]))
        assert sorted({*used, *refused} - strings) == []
    print(f"{kind}: {len(used)} used, {len(refused)} refused, {len(unused)} listed")


@pytest.mark.parametrize("kind", ["neutron port", "neutron network", "neutron subnet"])
def test_every_field_of_a_shape_is_read(kind):
    """A shape that checks unused fields would reject good responses."""
    strings = set().union(*map(_strings, _MODULES["sent with a port"]))
    assert sorted(set(typing.get_type_hints(_SHAPES[kind])) - strings) == []
