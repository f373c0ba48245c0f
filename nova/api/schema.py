"""JSON-Schema validation with the peculiarities of the Compute API."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
from jsonschema import validators

from nova import exception
from nova.api import formats

BODY = "field/attribute"
QUERY = "query parameters"

# An error repeats what was sent; a sane message is shorter than this.
_LONGEST = 4096


class SchemaError(exception.Invalid):
    """A request that does not fit its schema; ``field`` is what the message names."""


class Validator:
    """A compiled schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self._validator = _Draft(schema, format_checker=formats.CHECKER)

    def check(self, value: Any, what: str = BODY) -> None:
        """Raises SchemaError that names the first field that does not fit. ``what``: BODY or QUERY."""
        error = next(self._validator.iter_errors(value), None)
        if error is None:
            return
        error = _closest(error)
        # A format's own explanation is better than "does not match".
        detail = str(error.cause) if isinstance(error.cause, formats.NameError_) else error.message
        if error.path:
            name = str(error.path[0]) if what == QUERY else _innermost(list(error.absolute_path))
            detail = f"Invalid input for {what} {name}. Value: {_short(str(error.instance))}. {_short(detail)}"
        raise SchemaError(_short(detail, _LONGEST))


def _closest(error: Any) -> Any:
    """The error itself or, where several alternatives fail, the one furthest inside what was sent."""
    while error.context:
        inner = max(error.context, key=lambda other: len(other.path))
        if not inner.path:
            break
        error = inner
    return error


def _innermost(path: list[Any]) -> str:
    """The last name of a path, with the index where it is an item of a list ("tags.0")."""
    return str(path[-1]) if isinstance(path[-1], str) or len(path) < 2 else f"{path[-2]}.{path[-1]}"


def _short(text: str, most: int = _LONGEST // 4) -> str:
    return text if len(text) <= most else f"{text[:most // 2]}…{text[-most // 2:]}"


@functools.lru_cache(maxsize=512)
def _compile(pattern: str) -> re.Pattern[str]:
    # In JSON Schema "$" is the end of the text; in Python it is also before a final line break.
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1] + r"\Z"
    return re.compile(pattern)


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _compile(pattern).search(instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, schema in patterns.items():
        for name, value in instance.items():
            if _compile(pattern).search(name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional(_validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if allowed is not False or not isinstance(instance, dict):
        return
    known = schema.get("properties", {})
    patterns = [_compile(pattern) for pattern in schema.get("patternProperties", {})]
    extra = [name for name in instance if name not in known and not any(p.search(name) for p in patterns)]
    if extra:
        verb = "was" if len(extra) == 1 else "were"
        names = ", ".join(repr(name) for name in extra)
        yield jsonschema.ValidationError(f"Additional properties are not allowed ({names} {verb} unexpected)")


def _number(value: Any) -> Any:
    """Numbers may come as strings of digits; None for what is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            try:
                return float(value)
            except ValueError:
                return None
    return value if isinstance(value, int | float) else None


def _minimum(_validator: Any, least: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    number = _number(instance)
    if number is not None and number < least:
        yield jsonschema.ValidationError(f"{instance!r} is less than the minimum of {least!r}")


def _maximum(_validator: Any, most: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    number = _number(instance)
    if number is not None and not number <= most:
        yield jsonschema.ValidationError(f"{instance!r} is greater than the maximum of {most!r}")


def _exclusive_minimum(_validator: Any, least: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    number = _number(instance)
    if number is not None and not number > least:
        yield jsonschema.ValidationError(f"{instance!r} is less than or equal to the minimum of {least!r}")


_Draft = validators.extend(jsonschema.Draft202012Validator, {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
})
