"""Fields of requests and responses, declared once with the microversions in which they exist.

From a declaration come the JSON schema of a version (:meth:`Type.schema`), the validation of a
request (:func:`validate`, compiled once per range of versions), the rendered body
(:meth:`View.render`) and the OpenAPI document (:mod:`nova.api.openapi`).

    CREATE = Object({"keypair": Field(Object({
        "name": Field(NAME, required=True),
        "type": Field(enum("ssh", "x509"), since=2),
    }), required=True)})
    INDEX = Query({"limit": Field(LIMIT, since=35)}, strict=75)
    KEYPAIR = View([Out("name", STRING), Out("type", STRING, since=2)])

``since`` and ``until`` are minor versions, both inclusive; ``required`` is True or the version
from which the field must be there.
"""

from __future__ import annotations

import bisect
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nova.api import microversion
from nova.api.validation.keywords import matcher
from nova.api.validation.schema import Validator

Getter = Callable[[Any, Any], Any]

# Maximum number of repetitions of a query parameter.
_REPEATED = 100

# Value that a getter of a View returns for a key to be left out.
ABSENT: Any = object()


class Type:
    """Base of all declarations."""

    def __init__(self) -> None:
        self._compiled: dict[int, Validator] = {}
        self._steps: list[int] | None = None

    def schema(self, version: int) -> dict[str, Any]:
        """The JSON schema (2020-12) in this version."""
        raise NotImplementedError

    def steps(self) -> Iterable[int]:
        """The versions at which the schema may change."""
        return ()

    def clean(self, value: Any) -> Any:
        """``value`` as /v2 takes it: without unknown keys, names without surrounding spaces."""
        return value

    def takes_null(self, version: int) -> bool:
        kind = self.schema(version).get("type", "null")
        return kind == "null" or "null" in kind

    def validator(self, version: int) -> Validator:
        """The compiled schema; versions between two steps share one."""
        if self._steps is None:
            self._steps = sorted({0, *self.steps()})
        step = self._steps[bisect.bisect_right(self._steps, version) - 1]
        validator = self._compiled.get(step)
        if validator is None:  # two threads may both compile: the same result
            validator = self._compiled[step] = Validator(self.schema(step))
        return validator


class Plain(Type):
    """A type that is the same in every version: a JSON schema as it is."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        self._schema = keywords

    def schema(self, version: int) -> dict[str, Any]:
        return self._schema


class Name(Plain):
    """A name; /v2 strips the spaces around it."""

    def clean(self, value: Any) -> Any:
        return value.strip() if isinstance(value, str) else value


class Changing(Type):
    """A type that differs between versions: the version from which it counts -> the type."""

    def __init__(self, types: Mapping[int, Type]) -> None:
        super().__init__()
        self._types = sorted(types.items(), key=operator.itemgetter(0))

    def at(self, version: int) -> Type:
        return [kind for since, kind in self._types if since <= version][-1]

    def schema(self, version: int) -> dict[str, Any]:
        return self.at(version).schema(version)

    def steps(self) -> Iterable[int]:
        for since, kind in self._types:
            yield since
            yield from kind.steps()

    def clean(self, value: Any) -> Any:
        return self._types[0][1].clean(value)


class Field:
    """A property: its type, when it exists, and whether it must be there."""

    __slots__ = ("gap", "required", "since", "single", "type", "until")

    def __init__(self, kind: Type, since: int = 0, until: int = microversion.MAX, required: bool | int = False,
                 single: int | None = None, gap: tuple[int, int] | None = None) -> None:
        self.type = kind
        self.since = since
        self.until = until
        self.required = required
        # Query parameters: the version from which the parameter may be given only once.
        self.single = single
        # Versions (first, last) in between in which the property was lost.
        self.gap = gap

    def exists(self, version: int) -> bool:
        if self.gap is not None and self.gap[0] <= version <= self.gap[1]:
            return False
        return self.since <= version <= self.until

    def is_required(self, version: int) -> bool:
        return self.required is True or (self.required is not False and version >= self.required)

    def steps(self) -> Iterable[int]:
        yield self.since
        yield self.until + 1
        if self.required is not True and self.required is not False:
            yield self.required
        if self.single is not None:
            yield self.single
        if self.gap is not None:
            yield from (self.gap[0], self.gap[1] + 1)
        yield from self.type.steps()


Properties = Mapping[str, Field | Type]


def _fields(properties: Properties) -> dict[str, Field]:
    return {name: field if isinstance(field, Field) else Field(field) for name, field in properties.items()}


class Object(Type):
    """An object with these properties and no others (unless ``additional``).

    ``patterns`` are properties by regular expression; further keywords go into the schema as they are.
    """

    def __init__(self, properties: Properties | None = None, additional: bool = False, null: bool = False,
                 patterns: Mapping[str, Type] | None = None, **keywords: Any) -> None:
        super().__init__()
        self.fields = _fields(properties or {})
        self.additional = additional
        self.patterns = dict(patterns or {})
        self._base = {"type": ["object", "null"] if null else "object", **keywords}

    def schema(self, version: int) -> dict[str, Any]:
        present = {name: field for name, field in self.fields.items() if field.exists(version)}
        made = dict(self._base)
        made["properties"] = {name: field.type.schema(version) for name, field in present.items()}
        required = [name for name, field in present.items() if field.is_required(version)]
        if required:
            made["required"] = required
        if self.patterns:
            made["patternProperties"] = {name: kind.schema(version) for name, kind in self.patterns.items()}
        made["additionalProperties"] = self.additional
        return made

    def steps(self) -> Iterable[int]:
        for field in self.fields.values():
            yield from field.steps()
        for kind in self.patterns.values():
            yield from kind.steps()

    def clean(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if self.additional or self.patterns:
            return {name: self.fields[name].type.clean(item) if name in self.fields else item
                    for name, item in value.items()}
        return {name: self.fields[name].type.clean(item) for name, item in value.items()
                if name in self.fields and self.fields[name].exists(microversion.LEGACY)}


class Array(Type):
    def __init__(self, items: Type, null: bool = False, **keywords: Any) -> None:
        super().__init__()
        self.items = items
        self._base = {"type": ["array", "null"] if null else "array", **keywords}

    def schema(self, version: int) -> dict[str, Any]:
        return {**self._base, "items": self.items.schema(version)}

    def steps(self) -> Iterable[int]:
        return self.items.steps()

    def clean(self, value: Any) -> Any:
        return [self.items.clean(item) for item in value] if isinstance(value, list) else value


class Combined(Type):
    """``oneOf``, ``anyOf`` or ``allOf`` of several types."""

    def __init__(self, keyword: str, *types: Type, **keywords: Any) -> None:
        super().__init__()
        self.keyword = keyword
        self.types = types
        self._base = keywords

    def schema(self, version: int) -> dict[str, Any]:
        return {**self._base, self.keyword: [kind.schema(version) for kind in self.types]}

    def steps(self) -> Iterable[int]:
        for kind in self.types:
            yield from kind.steps()


class Query(Type):
    """The query parameters of an operation; each may come several times.

    ``strict``: the version from which unknown parameters are refused (before it they are
    dropped); None: never.
    """

    def __init__(self, properties: Properties | None = None, strict: int | None = 102,
                 patterns: Mapping[str, Type] | None = None) -> None:
        super().__init__()
        self.fields = _fields(properties or {})
        self.strict = strict
        self.patterns = dict(patterns or {})

    def schema(self, version: int) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "object", "properties": {
            name: self._values(field, version) for name, field in self.fields.items() if field.exists(version)}}
        if self.patterns:
            made["patternProperties"] = {
                name: self._values(Field(kind), version) for name, kind in self.patterns.items()}
        made["additionalProperties"] = self.strict is None or version < self.strict
        return made

    @staticmethod
    def _values(field: Field, version: int) -> dict[str, Any]:
        schema = field.type.schema(version)
        single = field.single is not None and version >= field.single
        return {"maxItems": 1 if single else _REPEATED, **({"type": "array", "items": schema} if schema else {})}

    def steps(self) -> Iterable[int]:
        if self.strict is not None:
            yield self.strict
        for field in self.fields.values():
            yield from field.steps()

    def existing(self, given: Mapping[str, list[str]], version: int) -> dict[str, list[str]]:
        """Return ``given`` without the parameters that do not exist in this version."""
        return {name: values for name, values in given.items()
                if (name in self.fields and self.fields[name].exists(version))
                or (self.patterns and matcher(tuple(self.patterns))(name))}


class Out:
    """A key of a response: ``get(object, request)`` gives its value; ABSENT leaves it out.

    Without ``get`` it is the attribute of the same name.
    """

    __slots__ = ("get", "name", "since", "type", "until")

    def __init__(self, name: str, kind: Type, get: Getter | str | None = None,
                 since: int = 0, until: int = microversion.MAX) -> None:
        self.name = name
        self.type = kind
        self.since = since
        self.until = until
        self.get: Getter
        if callable(get):
            self.get = get
        else:
            read = operator.attrgetter(get or name)
            self.get = lambda item, _req: read(item)


class View(Type):
    """The representation of a resource: its keys with the versions in which they exist."""

    def __init__(self, keys: Sequence[Out]) -> None:
        super().__init__()
        self.keys = keys
        self._lock = threading.Lock()
        self._rows: dict[int, list[tuple[str, Getter]]] = {}

    def render(self, item: Any, req: Any) -> dict[str, Any]:
        """``item`` as the request's microversion shows it."""
        version = req.version
        rows = self._rows.get(version)
        if rows is None:
            rows = self._rows[version] = [
                (key.name, key.get) for key in self.keys if key.since <= version <= key.until]
        shown = {}
        for name, get in rows:
            value = get(item, req)
            if value is not ABSENT:
                shown[name] = value
        return shown

    def schema(self, version: int) -> dict[str, Any]:
        present = [key for key in self.keys if key.since <= version <= key.until]
        return {"type": "object", "properties": {key.name: key.type.schema(version) for key in present},
                "additionalProperties": False}

    def steps(self) -> Iterable[int]:
        for key in self.keys:
            yield key.since
            yield key.until + 1
            yield from key.type.steps()


def enum(*values: Any) -> Plain:
    return Plain(type="string", enum=list(values))


def string(**keywords: Any) -> Plain:
    return Plain(type="string", **keywords)


def integer(minimum: int | None = None, maximum: int | None = None) -> Plain:
    """An integer or a string of digits (use ``int()`` in the handler)."""
    limits = {name: value for name, value in (("minimum", minimum), ("maximum", maximum)) if value is not None}
    return Plain(type=["integer", "string"], pattern="^[0-9]+$", **limits)


def only(name: str, kind: Type | None = None) -> Object:
    """Return the body of an action: one required key."""
    return Object({name: Field(kind or Plain(), required=True)})
