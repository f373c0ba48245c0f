"""CPU time of request validation: every keyword of every schema, on adversarial and on valid input of maximum size.

Times are CPU times of the thread, relative to a loop of as many steps as the input has bytes. A check, or a whole
request, may take :data:`_MOST` times as long. For the largest body this is 50 ms where a step takes 45 ns.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import operator
import string
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nova import exception, image
from nova.api.validation import extra_specs
from nova.api.validation.keywords import compiled
from nova.api.validation.schema import BODY, QUERY, SchemaError, Validator
from nova.conf import CONF
from nova.objects import expression
from nova.objects.hosts.aggregate import Aggregate
from nova.rpcapi.accounts import Flavors
from nova.rpcapi.hosts import Aggregates
from nova.rpcapi.servers import ExternalEvents, ServerGroups
from tests.unit.api.canned import stub
from tests.unit.api.conftest import Client
from tests.unit.api.declared import VALUES, Schema, every_part, every_schema, example
from tests.unit.api.servers.test_servers import IMAGE, MINE, Conductor, Images

# Bytes of a body or a query. The small sizes detect a slow check before the large size takes too long.
_SIZES = (400, 4_000, 112_000)
_MOST = 10
# Seconds below which a measurement is noise.
_NOISE = 0.005


def _seconds(work: Callable[[], Any], enough: float = _NOISE) -> float:
    """Return the minimum CPU time of up to four runs. Stops after a run of less than ``enough``."""
    least = float("inf")
    for _run in range(4):
        began = time.thread_time()
        work()
        least = min(least, time.thread_time() - began)
        if least < enough:
            break
    return least


def _steps(number: int) -> None:
    seen = {}
    for step in range(number):
        seen[step & 1023] = step


@pytest.fixture(scope="module")
def step() -> float:
    """Return the CPU seconds of a step of the calibration loop."""
    return min(_seconds(lambda: _steps(200_000)) for _run in range(3)) / 200_000


# Pieces of patterns and formats, to be repeated: almost a match until the last character.
_REPEATED = ("a", "0", "-", "_", " ", "/", ".", ":", "a-", "a0", "1:", "0.", " 00", "é", "\xa0", "A ", "a:1, b",
             "(", "[a", "\\",
             r"\pL", r"(\W\pL){9}", "(a?){9}", "a|", "+", "2026-01-01T00:00:00")


@functools.cache
def _texts(size: int) -> list[str]:
    made = [piece * (size // len(piece)) + end for piece in _REPEATED for end in ("", "!")]
    return [*made, "".join(map(chr, range(0x4E00, 0x4E00 + min(size, 20_000))))]


@functools.cache
def _lists(count: int) -> list[list[Any]]:
    return [[{}] * count, [[]] * count, [""] * count, [None] * count, list(range(count)),
            [{"a": number} for number in range(count)], [{"a": [number]} for number in range(count)],
            list(itertools.islice(itertools.cycle([True, "a", {}, [], 1.5]), count))]


@functools.cache
def _names(count: int) -> list[str]:
    names = (itertools.product(string.ascii_letters, repeat=size) for size in (1, 2, 3))
    return ["".join(name) for name in itertools.islice(itertools.chain.from_iterable(names), count)]


@functools.cache
def _objects(size: int) -> list[dict[str, Any]]:
    names = _names(size // 6)
    made: list[dict[str, Any]] = [
        {f"{begin}{name}": value for name in names} for value in ("", {}, []) for begin in ("", "_", "property-")]
    deep: Any = {}
    for _level in range(31):
        deep = {"a": deep, "b": [{}] * (size // 100)}
    return [*made, deep, {"a" * size: ""}, {"property-" * (size // 9): ""}, {"!" + "a" * size: "", "a": "a" * size}]


def _fitting(size: int, schema: Schema) -> Iterator[Any]:
    """Yield long values whose parts fit the schema, and long values with a single invalid part."""
    whole = example(schema)
    if isinstance(whole, str):
        longest = min(schema.get("maxLength", size), size)
        yield from (piece * (longest // len(piece)) for piece in ("a", "1", "A-", "\xa0"))
    elif isinstance(whole, list):
        most = min(schema.get("maxItems", size), size // max(len(json.dumps(whole)), 1))
        yield from (whole * count for count in {most, most - 1, most // 2})
        yield [*whole * (most - 1), None]
    elif isinstance(whole, dict):
        yield from ({**whole, name: value} for name in whole for value in ([{}] * (size // 3), "a" * size))
        yield {**whole, **dict.fromkeys(_names(size // 6), "")}


def _values(size: int, schema: Schema) -> Iterator[Any]:
    if "properties" not in schema:
        yield from _texts(size)
        for count in {size // 3, min(schema.get("maxItems", size // 3), size // 3)}:
            yield from _lists(count)
    yield from _objects(size)
    yield from _fitting(size, schema)


def _of_the_right_type(values: Iterator[Any], schema: Schema) -> Iterator[Any]:
    """Return the values whose type the schema accepts."""
    right = compiled({"type": schema["type"]}) if "type" in schema else lambda _value: None
    return (value for value in values if right(value) is None)


def _check_cost(size: int, step: float, check: Callable[[Any], Any], value: Any, what: str) -> float:
    """Return the CPU seconds of a check. Fails if it takes too long."""
    most = _MOST * step * size + _NOISE
    spent = _seconds(lambda: check(value), most)
    assert spent < most, f"{what}: {spent * 1000:.1f} ms for {size} bytes: {str(value)[:80]}"
    return spent


def _slowest(found: dict[int, tuple[float, str]]) -> str:
    return "; ".join(f"{size} bytes {spent * 1000:.1f} ms ({what[:150]})" for size, (spent, what) in found.items())


def test_validation_time_of_every_schema_is_linear_in_the_input(step: float) -> None:
    keywords: Counter[str] = Counter()
    values = 0
    slowest = dict.fromkeys(_SIZES, (0.0, ""))
    for text, schema in every_part().items():
        keywords.update(schema.keys())
        check = compiled(schema)
        # The properties of objects are in the list themselves.
        for size in _SIZES[:2] if "properties" in schema and "patternProperties" not in schema else _SIZES:
            for value in _of_the_right_type(_values(size, schema), schema):
                slowest[size] = max(slowest[size], (_check_cost(size, step, check, value, text), text))
                values += 1
    print(f"{len(every_part())} schemas, {values} values, keywords {dict(keywords)}\n"
          f"a loop of 112,000 steps takes {step * 112e6:.1f} ms; slowest checks: {_slowest(slowest)}")
    assert values > 10_000


def test_validation_time_of_bodies_with_long_values_is_linear(step: float) -> None:
    """Validate whole bodies with nested schemas, including the error message that quotes the body."""
    size = 28_000
    slowest = {size: (0.0, "")}
    bodies = 0
    values = itertools.cycle([[{}] * (size // 4), dict.fromkeys(_names(size // 6), ""), "a" * size, [[]] * (size // 4)])
    latest = {where.partition(" 2.")[0] + where.rpartition(" ")[2]: (where, schema) for where, schema in every_schema()}
    for where, schema in latest.values():
        whole = example(schema)
        validator, what = Validator(schema), QUERY if where.endswith("query") else BODY
        for path in _places(whole):
            body = _with(whole, path, next(values))
            slowest[size] = max(slowest[size], (_check_cost(
                size, step, lambda body, validator=validator, what=what: _refused(validator, body, what), body,
                where), where))
            bodies += 1
    print(f"{bodies} bodies and queries; slowest: {_slowest(slowest)}")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(item, (*path, name))


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = copy.copy(value)
    copied[path[0]] = _with(value[path[0]], path[1:], new)
    return copied


def _refused(validator: Validator, value: Any, what: str = BODY) -> None:
    with contextlib.suppress(SchemaError):
        validator.check(value, what)


def _largest(schema: Schema, size: int) -> Iterator[Any]:
    """Yield valid values of about ``size`` bytes: one long string, list or object at a time, with short and long items.
    """
    whole = example(schema)
    room = size - _length(whole)
    for inner in (*schema.get("oneOf", ()), *schema.get("anyOf", ())):
        yield from _largest(inner, size) if "required" not in inner else ()
    if isinstance(whole, str) and "enum" not in schema:
        longest = min(schema.get("maxLength", size), size)
        yield from (piece * (longest // len(piece.encode())) for piece in ("a", "1", "A-", "Y Q==\n", "YWJj", "é"))
    elif isinstance(whole, list) and "items" in schema:
        for item in _items(schema["items"]):
            yield [item] * min(schema.get("maxItems", size), room // (_length(item) + 1))
    elif isinstance(whole, dict):
        for pattern, inner in schema.get("patternProperties", {}).items():
            prefix = "property-" if "property" in pattern else ""
            for item in _items(inner):
                count = min(schema.get("maxProperties", size), room // (_length(item) + len(prefix) + 7))
                yield {**whole, **{prefix + name: item for name in _names(count)}}
        if schema.get("additionalProperties") is not False:
            yield {**whole, **dict.fromkeys(_names(room // 8), 1)}
        for name, inner in schema.get("properties", {}).items():
            yield from ({**whole, name: value} for value in _largest(inner, room))


def _items(schema: Schema) -> list[Any]:
    """Return valid items: all fields, only the required fields, each field alone, and values of other types."""
    whole = example(schema)
    if not isinstance(whole, dict):
        return [whole, *itertools.islice((value for value in VALUES if compiled(schema)(value) is None), 2)]
    least = {name: value for name, value in whole.items() if name in schema.get("required", ())}
    return [whole, least, *({**least, name: value} for name, value in whole.items())]


def _length(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def _with_last_item_invalid(value: Any) -> Any:
    """Return a copy in which the last item of the longest list or object is an object, which no item may be."""
    path = max(_places(value), key=lambda path: len(_at(value, path)) if isinstance(
        _at(value, path), dict | list) else 0)
    longest = _at(value, path)
    return _with(value, (*path, len(longest) - 1 if isinstance(longest, list) else list(longest)[-1]), {"": None})


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    return functools.reduce(operator.getitem, path, value)


def test_valid_bodies_of_maximum_size_are_validated_within_the_time_limit(step: float) -> None:
    """Validate the largest valid bodies of every route, and the same bodies with an error in the last item."""
    size = CONF.oslo_middleware.max_request_body_size
    slowest = {"valid": (0.0, ""), "invalid": (0.0, "")}
    counts: Counter[str] = Counter()
    latest = {where.partition(" 2.")[0] + where.rpartition(" ")[2]: (where, schema) for where, schema in every_schema()}
    distinct = {json.dumps(schema): (where, schema) for where, schema in latest.values() if where.endswith("body")}
    for where, schema in distinct.values():
        validator = Validator(schema)
        for body in _largest(schema, size):
            valid = validator._check(body) is None
            for kind, sent in (("valid" if valid else "invalid", body), ("invalid", _with_last_item_invalid(body))):
                spent = _check_cost(size, step, functools.partial(_refused, validator), sent, where)
                slowest[kind] = max(slowest[kind], (spent, f"{where}: {str(sent)[:120]}"))
                counts[kind] += 1
    print(f"{len(distinct)} schemas, {dict(counts)} bodies of up to {size} bytes; slowest: {slowest}")
    assert min(counts.values()) > 300


def _uuid(number: int) -> str:
    return str(uuid.UUID(int=number))


_BASE = {"name": "n", "imageRef": IMAGE, "flavorRef": "1", "networks": "auto"}
_BODIES: dict[str, tuple[str, str, Any]] = {
    "hostname of labels": ("/servers", "2.92", {"server": {**_BASE, "hostname": "a" * 110_000 + "!"}}),
    "policies": ("/os-server-groups", "2.63", {"server_group": {"name": "g", "policies": [{}] * 28_000}}),
    "distinct policies": ("/os-server-groups", "2.63", {"server_group": {"name": "g", "policies": [
        {"a": number} for number in range(7_000)]}}),
    "networks": ("/servers", "2.104", {"server": {**_BASE, "networks": [{}] * 27_000}}),
    "metadata": ("/servers", "2.104", {"server": {**_BASE, "metadata": dict.fromkeys(_names(12_000), "") | {"!": ""}}}),
    "unknown names": ("/servers", "2.104", {"server": {**_BASE, **dict.fromkeys(_names(12_000), "")}}),
    "deep lists": ("/servers", "2.104", {"server": {**_BASE, "name": [[[[{}] * 9] * 9] * 9] * 30}}),
}


@pytest.mark.parametrize("what", _BODIES)
def test_invalid_body_of_maximum_size_is_refused_in_linear_time(api: Client, step: float, what: str) -> None:
    """Measure the whole request: parsing, validation and response."""
    path, version, body = _BODIES[what]
    raw = json.dumps(body, separators=(",", ":")).encode()
    assert 20_000 < len(raw) <= CONF.oslo_middleware.max_request_body_size
    answers = []

    def ask(_body: Any) -> None:
        answers.append(api("POST", f"/v2.1{path}", raw=raw, version=version, roles="reader").status)

    spent = _check_cost(len(raw), step, ask, body, what)
    print(f"{what}: {len(raw)} bytes, {spent * 1000:.1f} ms")
    assert set(answers) == {400}


_METADATA = dict.fromkeys(_names(12_500), "")
_SPECS = {"traits": dict.fromkeys(map("trait{}:CUSTOM_A".format, _names(3_300)), "required"),
          "resources": dict.fromkeys(map("resources{}:VCPU".format, _names(4_900)), 1),
          "CPUs of cells": dict.fromkeys(map("hw:numa_cpus.{}".format, range(3_900)), "0-1"),
          "capabilities": dict.fromkeys(map("capabilities:host:{}".format, _names(3_900)), "1"),
          "unknown namespaces": dict.fromkeys(map("x_{}:x".format, _names(8_500)), 0),
          "free names": dict.fromkeys(_names(11_000), 0)}
_VALID: dict[str, tuple[str, str, str, Any]] = {
    **{f"{name} of a new server": ("POST", "/servers", version, {"server": {**_BASE, **fields}, **more})
       for name, version, fields, more in (
        ("metadata", "2.104", {"metadata": _METADATA}, {}),
        ("networks", "2.104", {"networks": [{"uuid": _uuid(1), "tag": f"t{number}", "fixed_ip": f"fd00::{number:x}"}
                                            for number in range(255)]}, {}),
        ("files", "2.50", {"personality": [{"path": f"/{number}", "contents": "YWJj" * 97} for number in range(255)]},
         {}),
        ("user data", "2.104", {"user_data": "YWJj" * 16_383}, {}),
        ("devices", "2.104", {"imageRef": "", "block_device_mapping_v2": [{
            "source_type": "volume", "destination_type": "volume", "uuid": _uuid(number), "boot_index": number,
            "device_name": f"/dev/vd{number}", "tag": f"t{number}", "disk_bus": "virtio", "device_type": "disk",
            "delete_on_termination": True, "volume_type": None, "guest_format": "x" * 150} for number in range(255)]},
         {}),
        ("security groups", "2.104", {"security_groups": [{"name": f"{number}{'é' * 200}"} for number in range(255)]},
         {}),
        ("tags", "2.104", {"tags": [f"{number}{'é' * 55}" for number in range(50)]}, {}),
        ("hints", "2.104", {}, {"os:scheduler_hints": {name: [] for name in _names(12_500)}}),
        ("lists of a hint", "2.104", {}, {"os:scheduler_hints": {"a": [{}] * 37_000}}),
        ("hosts of hints", "2.104", {}, {"os:scheduler_hints": {
            hint: list(map(_uuid, range(255))) for hint in ("different_host", "same_host", "different_cell")}}))},
    "metadata": ("PUT", f"/servers/{_uuid(1)}/metadata", "2.104", {"metadata": _METADATA}),
    "metadata of a rebuild": ("POST", f"/servers/{_uuid(1)}/action", "2.104", {
        "rebuild": {"imageRef": IMAGE, "metadata": _METADATA}}),
    "tags": ("PUT", f"/servers/{_uuid(1)}/tags", "2.104", {"tags": [f"{number}{'é' * 55}" for number in range(50)]}),
    "policies": ("POST", "/os-server-groups", "2.63", {"server_group": {"name": "g" * 255, "policies": ["affinity"]}}),
    "events": ("POST", "/os-server-external-events", "2.104", {"events": [
        {"name": "network-changed", "server_uuid": _uuid(number), "tag": "t" * 20} for number in range(1000)]}),
    "metadata of an aggregate": ("POST", "/os-aggregates/1/action", "2.104", {
        "set_metadata": {"metadata": dict.fromkeys(_names(11_000), "v")}}),
    **{f"extra specs: {name}": ("POST", "/flavors/1/os-extra_specs", "2.104", {"extra_specs": specs})
       for name, specs in _SPECS.items()},
}


@pytest.mark.parametrize("what", _VALID)
def test_valid_request_of_maximum_size_is_handled_within_the_time_limit(
        api: Client, step: float, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Measure the whole request up to the encoded call of the conductor. Lists and texts have their maximum size."""
    api.headers["X-Project-Id"] = MINE
    api.behind.servers = Conductor()
    monkeypatch.setattr(image, "store", Images)
    stub(api, "flavors", Flavors, set_extra_specs=lambda specs, **_given: specs)
    stub(api, "aggregates", Aggregates, set_metadata=lambda **given: Aggregate(
        uuid="u", name="a", metadata=given["metadata"]))
    stub(api, "external_events", ExternalEvents, create=lambda events: [200] * len(events))
    stub(api, "server_groups", ServerGroups, create=lambda group: group)
    method, path, version, body = _VALID[what]
    raw = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(raw) <= CONF.oslo_middleware.max_request_body_size
    answers = []

    def ask(_body: Any) -> None:
        answers.append(api(method, f"/v2.1{path}", raw=raw, version=version, roles="admin"))

    spent = _check_cost(CONF.oslo_middleware.max_request_body_size, step, ask, body, what)
    print(f"{what}: {len(raw)} bytes, {spent * 1000:.1f} ms")
    assert {answer.status for answer in answers} <= {200, 202}, answers[0].text


def test_extra_spec_values_are_validated_in_bounded_time(step: float) -> None:
    """Validate every name with values of 255 characters that resemble lists, sizes or words."""
    names = [*extra_specs.EXACT, "hw:numa_cpus.0", "hw:numa_mem.0", "resources1:VCPU", "trait:CUSTOM_A",
             "aggregate_instance_extra_specs:a", "capabilities:host:a"]
    slowest = (0.0, "")
    for name, piece, end in itertools.product(names, (", b:1", ",1", "1-1,", "a:1,", " ", "1", "a", "^1,"), ("", "!")):
        value = f"a:1{piece * 60}"[:254] + end
        spent = _check_cost(255, step, lambda value, name=name: _refused_spec(name, value), value, name)
        slowest = max(slowest, (spent, f"{name}={value}"))
    print(f"{len(names)} names; slowest: {slowest[0] * 1000:.2f} ms ({slowest[1][:80]})")


def _refused_spec(name: str, value: str) -> None:
    with contextlib.suppress(exception.Invalid):
        extra_specs.validate(name, value)


def test_user_supplied_regular_expressions_compile_in_bounded_time(step: float) -> None:
    """A list request has up to 25 expressions; an expression that is slow to compile is matched literally."""
    pieces = (r"\pL", r"\PN", r"[\pL\pN\pM\pS\pP\pZ]", r"(\W\pL){9}", r"\W", r"[^\W]", "[[:^alpha:]]", ".{99}",
              "(a?){300}", "((a?){30}){30}", "é", r"[\x{100}-\x{10ffff}]", "(", "a|", "(?i)(a|b)*", "[a-z]{1,9}")
    slowest = (0.0, "")
    for piece, length in itertools.product(pieces, (20, 200, 1000)):
        pattern = piece * max(length // len(piece), 1)
        spent = _check_cost(length, step, lambda pattern=pattern: _compile_anew(pattern), pattern, pattern)
        slowest = max(slowest, (spent, pattern))
    print(f"{len(pieces)} expressions in 3 lengths; slowest: {slowest[0] * 1000:.2f} ms ({slowest[1][:40]})")


def _compile_anew(pattern: str) -> None:
    expression.compiled.cache_clear()
    expression.compiled(pattern)
