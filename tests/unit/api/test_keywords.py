"""Comparison of the compiled validators with jsonschema, for all schemas of the API and for rare keywords."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import jsonschema
import pytest

from nova.api.validation import formats
from nova.api.validation.schema import SchemaError, Validator
from tests.unit.api.declared import VALUES, Schema, every_part, every_schema, example

# Limits of numeric strings are an extension of Nova (see the test below), so the comparison omits them.
_LIMITS = ("minimum", "maximum", "exclusiveMinimum")


def _checker() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())
    for name, check in formats.CHECKS.items():
        checker.checks(name, raises=ValueError)(
            lambda value, check=check: not isinstance(value, str) or bool(check(value)))
    return checker


def _reference(schema: Schema) -> Any:
    # In JSON Schema "$" matches the end of the text only; in Python also before a final line break.
    text = json.dumps(schema).replace('$"', r'\\Z"')
    return jsonschema.Draft202012Validator(json.loads(text), format_checker=_checker())


def _fits(validator: Validator, value: Any) -> bool:
    try:
        validator.check(value)
    except SchemaError:
        return False
    return True


def _without_limits(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_limits(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _without_limits(item) for name, item in schema.items()
            if not (name in _LIMITS and "string" in schema.get("type", ()))}


def _containers(schema: Schema) -> list[Any]:
    """Return lists, objects, and variants of the schema's example in which a single property is replaced."""
    made: list[Any] = [[], {}, [{}], [[]], [1, 1.0], [1, True], ["a", "a"], [{"a": 1}, {"a": 1.0}], {"a": None}]
    whole = example(schema)
    made.append(whole)
    if isinstance(whole, dict):
        for name in whole:
            made.extend({**whole, name: value} for value in (None, "", {}))
            made.append({other: value for other, value in whole.items() if other != name})
        if "patternProperties" in schema:
            made.extend({str(value)[:300]: "a"} for value in VALUES)
        made.extend([{**whole, "junk": "a"}, {"a": 7}])
    if isinstance(whole, list):
        made.extend([value] for value in VALUES)
        made.extend(whole * count for count in (2, 50, 51, 256))
    return made


def test_validators_of_all_schemas_agree_with_jsonschema() -> None:
    keywords: Counter[str] = Counter()
    verdicts: Counter[bool] = Counter()
    for schema in map(_without_limits, every_part().values()):
        ours, theirs = Validator(schema), _reference(schema)
        keywords.update(schema.keys())
        for value in (*VALUES, *_containers(schema)):
            expected = next(theirs.iter_errors(value), None) is None
            assert _fits(ours, value) == expected, (schema, value)
            verdicts[expected] += 1
    print(f"{len(every_part())} schemas; accepted and refused: {dict(verdicts)}; keywords: {dict(keywords)}")
    assert min(verdicts[True], verdicts[False]) > 1000


@pytest.mark.parametrize("schema", [
    {"uniqueItems": True}, {"uniqueItems": False}, {"items": {"uniqueItems": True}},
    {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"oneOf": [{"type": "integer"}, {"minimum": 3}]},
    {"properties": {"a": {"type": "string"}}, "patternProperties": {"^a": {"maxLength": 1}, "b$": {"minLength": 1}},
     "additionalProperties": False},
    {"minProperties": 1, "maxProperties": 2}, {"minItems": 1, "maxItems": 0}, {"enum": [1, "a", None, True]}])
def test_validators_of_rare_keywords_agree_with_jsonschema(schema: Schema) -> None:
    theirs, ours = _reference(schema), Validator(schema)
    values = (None, True, 1, 1.0, 3, "a", [], {}, [1, 1.0], [1, True], [0, False], [[1], [True]], [[1], [1.0]],
              [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], [{"a": 1}, {"a": True}], [{}, {}], [[], []], [None, None], ["a"],
              ["a", 1], ["a", "b"], ["a", 1, "c"], {"a": "x"}, {"a": "xy"}, {"ab": ""}, {"ab": "xy"},
              {"c": 1}, {"b": 1},
              {"a": 1, "b": 1, "c": 1}, {"b": "", "ab": "x"})
    for value in values:
        assert _fits(ours, value) == theirs.is_valid(value), value


@pytest.mark.parametrize(("value", "fits"), [
    (1, True), ("1", True), ("5", True), (6, False), ("6", False), ("0", False), (0, False), ("1" * 5000, False),
    ("nothing", True), (True, True), (None, True), (1.5, True), ("1.5", True), ("-1", False)])
def test_minimum_and_maximum_apply_to_numeric_strings(value: Any, fits: bool) -> None:
    assert _fits(Validator({"minimum": 1, "maximum": 5}), value) is fits


@pytest.mark.parametrize(("schema", "value", "message"), [
    ({"type": ["string", "null"]}, 1, "1 is not of type 'string', 'null'"),
    ({"enum": ["a"]}, "b", "'b' is not one of ['a']"),
    ({"minLength": 1}, "", "'' should be non-empty"),
    ({"minItems": 2}, [], "[] is too short"),
    ({"maxLength": 0}, "a", "'a' is expected to be empty"),
    ({"maxProperties": 1}, {"a": 1, "b": 1}, "{'a': 1, 'b': 1} has too many properties"),
    ({"uniqueItems": True}, [1, 1], "[1, 1] has non-unique elements"),
    ({"pattern": "^a$"}, "b", "'b' does not match '^a$'"),
    ({"format": "uuid"}, "b", "'b' is not a 'uuid'"),
    ({"exclusiveMinimum": 0}, "0", "'0' is less than or equal to the minimum of 0"),
    ({"required": ["a"]}, {}, "'a' is a required property"),
    ({"additionalProperties": False}, {"a": 1, "b": 1}, "Additional properties are not allowed ('a', 'b' were "
                                                        "unexpected)"),
    ({"anyOf": [{"type": "null"}, {"type": "string"}]}, 1, "1 is not valid under any of the given schemas"),
    ({"items": {"type": "string"}}, ["a", 1], "Invalid input for field/attribute 1. Value: 1. 1 is not of type "
                                              "'string'"),
    ({"properties": {"a": {"oneOf": [{"type": "null"}, {"items": {"properties": {"b": {"type": "null"}}}}]}}},
     {"a": [{"b": 7}]}, "Invalid input for field/attribute b. Value: 7. 7 is not of type 'null'")])
def test_schema_error_contains_field_and_reason(schema: Schema, value: Any, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Validator(schema).check(value)
    assert caught.value.message == message


@pytest.mark.parametrize("schema", [
    {"colour": 1}, {"format": "colour"}, {"pattern": "(?!a)"}, {"pattern": "(?!a)", "maxLength": 256}])
def test_schemas_that_require_superlinear_checks_are_refused(schema: Schema) -> None:
    with pytest.raises(ValueError, match=r"unknown|RE2"):
        Validator(schema)


def test_example_of_every_schema_is_valid() -> None:
    for where, schema in every_schema():
        whole = example(schema)
        if "query" not in where and "oneOf" not in schema:
            Validator(schema).check(whole)
