"""JSON Schema validation with the peculiarities of the Compute API, in time linear in the size of the input.

A schema becomes one function per keyword. The cheap keywords (types, lengths, counts) run before those that read the
whole value, and checking ends at the first failure. Patterns run on RE2, in linear time, and unique items are found by
their hashes. tests/unit/api/test_validation_costs.py measures every keyword of every schema on long input."""

from typing import Any

from nova import exception
from nova.api.validation import formats
from nova.api.validation.keywords import Check, Failure, compiled

BODY = "field/attribute"
QUERY = "query parameters"

# Maximum number of characters of an error message; longer ones, which contain long values, are cut in the middle.
_LONGEST = 4096


class SchemaError(exception.Invalid):
    """A request that violates its schema. ``field``: the field that the message names."""


class Validator:
    """A compiled schema. Raises ValueError for a schema with an unknown keyword or format."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self._check: Check = compiled(schema)

    def check(self, value: Any, what: str = BODY) -> None:
        """Raise SchemaError, which names the first invalid field. ``what``: BODY or QUERY."""
        failure = self._check(value)
        if failure is None:
            return
        failure = _closest(failure)
        # The rule that a name violates is more helpful than "is not a 'name'".
        detail = str(failure.cause) if isinstance(failure.cause, formats.NameError_) else failure.message
        path = failure.path
        if path:
            name = str(path[0]) if what == QUERY else _innermost(path)
            detail = f"Invalid input for {what} {name}. Value: {_short(str(failure.value))}. {_short(detail)}"
        raise SchemaError(_short(detail, _LONGEST))


def _closest(failure: Failure) -> Failure:
    """Return the failure or, if several alternatives failed, the failure that is nested deepest in the value."""
    while failure.alternatives:
        inner = max(failure.alternatives, key=lambda other: len(other.path))
        if not inner.path:
            break
        inner.path[:0] = failure.path
        failure = inner
    return failure


def _innermost(path: list[Any]) -> str:
    """Return the last name of a path, followed by the index if the value is an item of a list ("tags.0")."""
    return str(path[-1]) if isinstance(path[-1], str) or len(path) < 2 else f"{path[-2]}.{path[-1]}"


def _short(text: str, most: int = _LONGEST // 4) -> str:
    return text if len(text) <= most else f"{text[:most // 2]}…{text[-most // 2:]}"
