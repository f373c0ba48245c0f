"""RPC compatibility with the previous release in both directions: the wire schema allows additions only.

tests/data/wire_schema.json is the schema of the last release. After an additive change, update it:
``python -m tests.unit.test_wire_schema``.
"""

import functools
import importlib
import json
import pkgutil

import msgspec
import pytest

from nova import rpcapi
from nova.rpcapi import Interface
from tests.paths import DATA

SNAPSHOT = DATA / "wire_schema.json"


def interfaces():
    for module in pkgutil.walk_packages(rpcapi.__path__, "nova.rpcapi."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Interface) and value is not Interface:
                yield value


@functools.cache
def wire_schema():
    """Return {"methods": {namespace.method: {kind, args, result}}, "structs": {name: schema}}."""
    methods, types = {}, []
    for declared in interfaces():
        for method in declared.methods().values():
            types += [method.args_type, method.result_type]
    references, components = msgspec.json.schema_components(types, ref_template="{name}")
    references = iter(references)
    for declared in interfaces():
        for method in declared.methods().values():
            shape = {"kind": method.kind, "args": next(references)["$ref"], "result": next(references)}
            for topic in filter(None, (declared.topic, declared.former_topic)):
                methods[f"{topic}/{declared.namespace}.{method.name}"] = shape
    structs = {name: {"fields": schema.get("properties", {}), "required": schema.get("required", [])}
               for name, schema in components.items()}
    return json.loads(json.dumps({"methods": methods, "structs": structs}, sort_keys=True))


def test_rpc_methods_of_the_last_release_are_unchanged():
    now = wire_schema()["methods"]
    before = json.loads(SNAPSHOT.read_text())["methods"]
    assert {name: now.get(name) for name in before} == before


@pytest.mark.parametrize("name", sorted(json.loads(SNAPSHOT.read_text())["structs"]) if SNAPSHOT.exists() else [])
def test_rpc_structs_gain_only_optional_fields(name):
    before = json.loads(SNAPSHOT.read_text())["structs"][name]
    now = wire_schema()["structs"][name]
    for field, schema in before["fields"].items():
        assert field in now["fields"], f"{name}.{field} was removed"
        assert now["fields"][field] == schema, f"{name}.{field} changed"
    assert set(now["required"]) <= set(before["required"]), f"{name}: new fields must have a default"


def test_wire_schema_snapshot_is_up_to_date():
    assert json.loads(SNAPSHOT.read_text()) == wire_schema(), "update it: python -m tests.unit.test_wire_schema"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(wire_schema(), indent=1, sort_keys=True) + "\n")
