"""The keywords of JSON Schema (2020-12) that the API's schemas use, each compiled to a function.

Numbers may come as strings of digits: ``minimum``, ``maximum`` and ``exclusiveMinimum`` compare those, too."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

import re2

from nova.api.validation import formats

# Maximum length of strings for patterns that only Python's re supports: its time can grow exponentially.
_LONGEST_BACKTRACKING = 255


class Failure:
    """A value that violates a keyword of its schema. ``path``: the names and indexes that lead to the value.

    ``alternatives``: if ``oneOf`` or ``anyOf`` failed, the failure of each alternative, with paths from ``value``."""

    __slots__ = ("_reason", "alternatives", "cause", "path", "value")

    def __init__(self, value: Any, reason: Callable[[], str], alternatives: Iterable[Failure] = (),
                 cause: Exception | None = None) -> None:
        self.value, self._reason, self.cause = value, reason, cause
        self.path: list[Any] = []
        self.alternatives = list(alternatives)

    @property
    def message(self) -> str:
        """Return the value with the reason of its failure. Formatted only on demand, since values can be long."""
        return self._reason()

    def inside(self, name: Any) -> Failure:
        """Prepend ``name``, the key or index of the value in the enclosing object or list, to the path."""
        self.path.insert(0, name)
        return self


Check = Callable[[Any], Failure | None]


def compiled(schema: dict[str, Any]) -> Check:
    """Return a function that returns the first failure of a value, or None. Raises ValueError for a bad schema."""
    unknown = schema.keys() - _MAKERS.keys() - _PART_OF_OTHERS
    if unknown:
        raise ValueError(f"unknown keywords of a schema: {', '.join(sorted(unknown))}")
    # _MAKERS lists cheap keywords first.
    checks = [make(schema[keyword], schema) for keyword, make in _MAKERS.items() if keyword in schema]
    if "patternProperties" in schema or schema.get("additionalProperties") is False:
        checks.append(_names(schema))
    return _all_of(checks)


# -- any value ------------------------------------------------------------------------------------
_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer()))}


def _type(wanted: str | list[str], _schema: dict[str, Any]) -> Check:
    names = [wanted] if isinstance(wanted, str) else wanted
    tests = [_TYPES[name] for name in names]

    def check(value: Any) -> Failure | None:
        for test in tests:  # faster than any(), for objects with thousands of properties
            if test(value):
                return None
        return Failure(value, lambda: f"{value!r} is not of type {', '.join(map(repr, names))}")

    return check


def _identity(value: Any) -> Any:
    """Return a hashable that is equal for values that are equal in JSON (1 and 1.0, but not 1 and true)."""
    if isinstance(value, dict):
        return dict, frozenset((name, _identity(item)) for name, item in value.items())
    if isinstance(value, list):
        return list, tuple(map(_identity, value))
    return (bool, value) if isinstance(value, bool) else value


def _enum(values: list[Any], _schema: dict[str, Any]) -> Check:
    allowed = frozenset(map(_identity, values))
    return lambda value: None if not isinstance(value, dict | list) and _identity(value) in allowed else Failure(
        value, lambda: f"{value!r} is not one of {values!r}")


# -- strings and numbers --------------------------------------------------------------------------
def _size(kind: type[str | list[Any] | dict[str, Any]], fits: Callable[[int, int], bool], words: str,
          special: tuple[int, str]) -> Any:
    """Return the maker of a keyword that limits the length of strings, lists or objects.

    ``words``: text of the error message; ``special``: a limit that has another text."""
    def make(limit: int, _schema: dict[str, Any]) -> Check:
        said = special[1] if limit == special[0] else words
        return lambda value: None if not isinstance(value, kind) or fits(len(value), limit) else Failure(
            value, lambda: f"{value!r} {said}")

    return make


def _number(value: Any) -> int | float | None:
    """Return ``value`` as a number, also if it is a string of digits; None for any other value."""
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


def _bound(fits: Callable[[Any, Any], bool], words: str) -> Any:
    """Return the maker of a keyword that limits numbers."""
    def make(limit: int | float, _schema: dict[str, Any]) -> Check:
        def check(value: Any) -> Failure | None:
            number = _number(value)
            return None if number is None or fits(number, limit) else Failure(
                value, lambda: f"{value!r} is {words} of {limit!r}")

        return check

    return make


def _format(name: str, _schema: dict[str, Any]) -> Check:
    try:
        fits = formats.CHECKS[name]
    except KeyError:
        raise ValueError(f"unknown format of a schema: {name}") from None

    def check(value: Any) -> Failure | None:
        if not isinstance(value, str):
            return None
        cause = None
        try:
            if fits(value):
                return None
        except ValueError as error:
            cause = error
        return Failure(value, lambda: f"{value!r} is not a {name!r}", cause=cause)

    return check


@functools.lru_cache(maxsize=128)
def matcher(patterns: tuple[str, ...]) -> Callable[[str], list[int] | None]:
    """Return a function that returns the indexes of the ``patterns`` found in a text, or None.

    The function's time is linear in the text. Raises re2.error for a pattern that RE2 does not support."""
    options = re2.Options()
    options.log_errors = False
    compiled_set = re2.Set.SearchSet(options)
    for pattern in patterns:
        compiled_set.Add(pattern)
    compiled_set.Compile()
    # RE2 raises no error for half of a surrogate pair: no pattern matches it.
    return lambda text: compiled_set.Match(text.encode(errors="surrogatepass"))


def _searcher(pattern: str, longest: int | None) -> Callable[[str], Any]:
    """Return a function whose result is true for a text in which the pattern is found.

    Patterns that RE2 does not support (look-around) run on Python's re; their texts must be limited to 255 characters.
    """
    try:
        return matcher((pattern,))
    except re2.error:
        if longest is None or longest > _LONGEST_BACKTRACKING:
            raise ValueError(f"RE2 does not support {pattern!r}, and maxLength is not {_LONGEST_BACKTRACKING} "
                             "or less") from None
    # In JSON Schema "$" is the end of the text; in Python it is also before a final line break.
    return re.compile(pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern).search


def _pattern(pattern: str, schema: dict[str, Any]) -> Check:
    search = _searcher(pattern, schema.get("maxLength"))
    return lambda value: None if not isinstance(value, str) or search(value) else Failure(
        value, lambda: f"{value!r} does not match {pattern!r}")


# -- lists ----------------------------------------------------------------------------------------
def _unique(wanted: bool, _schema: dict[str, Any]) -> Check:
    def check(value: Any) -> Failure | None:
        if not wanted or not isinstance(value, list) or len({_identity(item) for item in value}) == len(value):
            return None
        return Failure(value, lambda: f"{value!r} has non-unique elements")

    return check


def _prefix(schemas: list[dict[str, Any]], _schema: dict[str, Any]) -> Check:
    checks = [compiled(schema) for schema in schemas]

    def check(value: Any) -> Failure | None:
        if isinstance(value, list):
            for index, (item, check_item) in enumerate(zip(value, checks, strict=False)):
                if (failure := check_item(item)) is not None:
                    return failure.inside(index)
        return None

    return check


def _items(wanted: dict[str, Any], schema: dict[str, Any]) -> Check:
    check_item, first = compiled(wanted), len(schema.get("prefixItems", ()))

    def check(value: Any) -> Failure | None:
        if isinstance(value, list):
            for index in range(first, len(value)):
                if (failure := check_item(value[index])) is not None:
                    return failure.inside(index)
        return None

    return check


# -- objects --------------------------------------------------------------------------------------
def _required(names: list[str], _schema: dict[str, Any]) -> Check:
    def check(value: Any) -> Failure | None:
        missing = next((name for name in names if name not in value), None) if isinstance(value, dict) else None
        return None if missing is None else Failure(value, lambda: f"{missing!r} is a required property")

    return check


def _properties(schemas: dict[str, dict[str, Any]], _schema: dict[str, Any]) -> Check:
    checks = {name: compiled(schema) for name, schema in schemas.items()}

    def check(value: Any) -> Failure | None:
        if isinstance(value, dict):
            for name, check_value in checks.items():
                if name in value and (failure := check_value(value[name])) is not None:
                    return failure.inside(name)
        return None

    return check


def _names(schema: dict[str, Any]) -> Check:
    """Return the check of ``patternProperties`` and ``additionalProperties``, in one pass over the names."""
    declared = schema.get("properties", {}).keys()
    patterns = schema.get("patternProperties", {})
    checks = [compiled(inner) for inner in patterns.values()]
    matching: Callable[[str], list[int] | None] = matcher(tuple(patterns)) if patterns else lambda _name: None
    closed = schema.get("additionalProperties") is False

    def check(value: Any) -> Failure | None:
        if not isinstance(value, dict):
            return None
        extra = []
        for name, item in value.items():
            matches = matching(name)
            for index in matches or ():
                if (failure := checks[index](item)) is not None:
                    return failure.inside(name)
            if closed and not matches and name not in declared:
                extra.append(name)
        return Failure(value, lambda: "Additional properties are not allowed ({} {} unexpected)".format(
            ", ".join(map(repr, extra)), "was" if len(extra) == 1 else "were")) if extra else None

    return check


# -- several schemas ------------------------------------------------------------------------------
def _all_of(checks: list[Check]) -> Check:
    """Return a check that returns the first failure."""
    def check(value: Any) -> Failure | None:
        for check_part in checks:
            if (failure := check_part(value)) is not None:
                return failure
        return None

    return check


def _alternatives(schemas: list[dict[str, Any]], exclusive: bool) -> Check:
    checks = [compiled(schema) for schema in schemas]

    def check(value: Any) -> Failure | None:
        failures, fitting = [], []
        for schema, check_part in zip(schemas, checks, strict=True):
            failure = check_part(value)
            if failure is not None:
                failures.append(failure)
            elif not exclusive:
                return None
            else:
                fitting.append(schema)
        if not fitting:
            return Failure(value, lambda: f"{value!r} is not valid under any of the given schemas", failures)
        return None if len(fitting) == 1 else Failure(
            value, lambda: f"{value!r} is valid under each of {', '.join(map(repr, fitting))}")

    return check


_MAKERS: dict[str, Callable[[Any, dict[str, Any]], Check]] = {
    "type": _type,
    "maxLength": _size(str, operator.le, "is too long", (0, "is expected to be empty")),
    "minLength": _size(str, operator.ge, "is too short", (1, "should be non-empty")),
    "maxItems": _size(list, operator.le, "is too long", (0, "is expected to be empty")),
    "minItems": _size(list, operator.ge, "is too short", (1, "should be non-empty")),
    "maxProperties": _size(dict, operator.le, "has too many properties", (0, "is expected to be empty")),
    "minProperties": _size(dict, operator.ge, "does not have enough properties", (1, "should be non-empty")),
    "enum": _enum,
    "pattern": _pattern,
    "minimum": _bound(operator.ge, "less than the minimum"),
    "maximum": _bound(operator.le, "greater than the maximum"),
    "exclusiveMinimum": _bound(operator.gt, "less than or equal to the minimum"),
    "format": _format,
    "uniqueItems": _unique,
    "prefixItems": _prefix,
    "items": _items,
    "properties": _properties,
    "required": _required,
    "allOf": lambda schemas, _schema: _all_of([compiled(schema) for schema in schemas]),
    "anyOf": lambda schemas, _schema: _alternatives(schemas, exclusive=False),
    "oneOf": lambda schemas, _schema: _alternatives(schemas, exclusive=True)}
# Keywords that the check of another one reads. ``additionalItems``, ignored since 2020-12, is in the API reference.
_PART_OF_OTHERS = frozenset({"patternProperties", "additionalProperties", "additionalItems"})
