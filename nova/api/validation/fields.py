"""Fields of requests and responses, declared once with the microversions in which they exist.

A declaration yields the JSON schema of a version (:meth:`Type.schema`), the validation of a request
(:meth:`Type.validator`, compiled once per schema), the rendered body (:meth:`View.render`) and the OpenAPI document
(:mod:`nova.api.openapi`).

    CREATE = Object({"keypair": Field(Object({
        "name": Field(NAME, required=True),
        "type": Field(enum("ssh", "x509"), since=2),
    }), required=True)})
    INDEX = Query({"limit": Field(LIMIT, since=35)}, strict=75)
    KEYPAIR = View([Out("name", STRING), Out("type", STRING, since=2)])

``since`` and ``until`` are minor versions, both inclusive; ``required`` is True or the version from which the field is
required.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova.api import microversion
from nova.api.validation.keywords import matcher
from nova.api.validation.schema import Validator

Getter = Callable[[Any, Any], Any]

# Maximum number of occurrences of a parameter in one query; more are refused.
_REPEATED = 100

# Value that a getter of a View returns to omit the key from the response.
ABSENT: Any = object()


class Type:
    """Base of the types that declare the properties of bodies and queries."""

    def schema(self, version: int) -> dict[str, Any]:
        """Return the JSON schema (2020-12) in this version."""
        raise NotImplementedError

    def clean(self, value: Any) -> Any:
        """Return ``value`` as /v2 accepts it: without unknown keys, names without surrounding spaces."""
        return value

    def takes_null(self, version: int) -> bool:
        kind = self.schema(version).get("type", "null")
        return kind == "null" or "null" in kind

    def validator(self, version: int) -> Validator:
        """Return the compiled schema of this version."""
        return _validator(self, version)


# Validators by the text of their schema.
_VALIDATORS: dict[str, Validator] = {}


@functools.cache
def _validator(kind: Type, version: int) -> Validator:
    """Return the compiled schema; equal schemas share it. Two threads may compile it twice, with the same result."""
    schema = kind.schema(version)
    text = repr(schema)
    if text not in _VALIDATORS:
        _VALIDATORS[text] = Validator(schema)
    return _VALIDATORS[text]


class Plain(Type):
    """A type that is the same in every microversion, declared as a JSON schema."""

    def __init__(self, **keywords: Any) -> None:
        self._schema = keywords

    def schema(self, version: int) -> dict[str, Any]:
        return self._schema


class Name(Plain):
    """A name; /v2 strips the spaces around it."""

    def clean(self, value: Any) -> Any:
        return value.strip() if isinstance(value, str) else value


class Changing(Type):
    """A type that differs between microversions: first microversion -> type."""

    def __init__(self, types: Mapping[int, Type]) -> None:
        self._types = sorted(types.items(), key=operator.itemgetter(0))

    def at(self, version: int) -> Type:
        return [kind for since, kind in self._types if since <= version][-1]

    def schema(self, version: int) -> dict[str, Any]:
        return self.at(version).schema(version)

    def clean(self, value: Any) -> Any:
        return self._types[0][1].clean(value)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A property: its type, the versions in which it exists, and whether it is required (from a version).

    ``single``: the version from which a query parameter may be given only once. ``gap``: the first and the last version
    of an interval in which the property does not exist."""

    type: Type
    since: int = 0
    until: int = microversion.MAX
    required: bool | int = False
    single: int | None = None
    gap: tuple[int, int] | None = None

    def exists(self, version: int) -> bool:
        if self.gap is not None and self.gap[0] <= version <= self.gap[1]:
            return False
        return self.since <= version <= self.until

    def is_required(self, version: int) -> bool:
        return self.required is True or (self.required is not False and version >= self.required)


Properties = Mapping[str, Field | Type]


def _fields(properties: Properties) -> dict[str, Field]:
    return {name: field if isinstance(field, Field) else Field(field) for name, field in properties.items()}


class Object(Type):
    """A JSON object with these properties and, if ``additional``, any further ones.

    ``patterns``: types of properties whose names match a regular expression. Other keywords are added to the schema.
    """

    def __init__(self, properties: Properties | None = None, additional: bool = False, null: bool = False,
                 patterns: Mapping[str, Type] | None = None, **keywords: Any) -> None:
        self.fields = _fields(properties or {})
        self.additional = additional
        self.patterns = dict(patterns or {})
        self._base = {"type": ["object", "null"] if null else "object", **keywords}

    def schema(self, version: int) -> dict[str, Any]:
        present = {name: field for name, field in self.fields.items() if field.exists(version)}
        made = {**self._base, "properties": {name: field.type.schema(version) for name, field in present.items()}}
        required = [name for name, field in present.items() if field.is_required(version)]
        if required:
            made["required"] = required
        if self.patterns:
            made["patternProperties"] = {name: kind.schema(version) for name, kind in self.patterns.items()}
        made["additionalProperties"] = self.additional
        return made

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
        self.items = items
        self._base = {"type": ["array", "null"] if null else "array", **keywords}

    def schema(self, version: int) -> dict[str, Any]:
        return {**self._base, "items": self.items.schema(version)}

    def clean(self, value: Any) -> Any:
        return [self.items.clean(item) for item in value] if isinstance(value, list) else value


class Combined(Type):
    """``oneOf``, ``anyOf`` or ``allOf`` of several types."""

    def __init__(self, keyword: str, *types: Type, **keywords: Any) -> None:
        self.keyword, self.types, self._base = keyword, types, keywords

    def schema(self, version: int) -> dict[str, Any]:
        return {**self._base, self.keyword: [kind.schema(version) for kind in self.types]}


class Query(Type):
    """The query parameters of an operation; a parameter may be repeated.

    ``strict``: the version from which unknown parameters are refused; before it they are ignored. None: always ignored.
    """

    def __init__(self, properties: Properties | None = None, strict: int | None = 102,
                 patterns: Mapping[str, Type] | None = None) -> None:
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

    def existing(self, given: Mapping[str, list[str]], version: int) -> dict[str, list[str]]:
        """Return ``given`` without the parameters that do not exist in this version."""
        return {name: values for name, values in given.items()
                if (name in self.fields and self.fields[name].exists(version))
                or (self.patterns and matcher(tuple(self.patterns))(name))}


class Out:
    """A key of a response. ``get(object, request)`` returns its value, or ABSENT to omit the key.

    Without ``get`` the value is the attribute of the same name."""

    __slots__ = ("get", "name", "since", "type", "until")

    def __init__(self, name: str, kind: Type, get: Getter | str | None = None,
                 since: int = 0, until: int = microversion.MAX) -> None:
        self.name, self.type, self.since, self.until = name, kind, since, until
        self.get: Getter
        if callable(get):
            self.get = get
        else:
            read = operator.attrgetter(get or name)
            self.get = lambda item, _req: read(item)


class View(Type):
    """The representation of a resource: its keys with the versions in which they exist."""

    def __init__(self, keys: Sequence[Out]) -> None:
        self.keys = keys
        self._rows: dict[int, list[tuple[str, Getter]]] = {}

    def render(self, item: Any, req: Any) -> dict[str, Any]:
        """Return the representation of ``item`` in the microversion of the request."""
        version = req.version
        rows = self._rows.get(version)
        if rows is None:
            rows = self._rows[version] = [(key.name, key.get) for key in self.keys if key.since <= version <= key.until]
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


class Rendered(Object):
    """A response body with one key: the view of the resource that the handler returns; ``many``: a list of views."""

    def __init__(self, name: str, view: View, many: bool = False) -> None:
        super().__init__({name: Array(view) if many else view})
        self._name, self._view, self._many = name, view, many

    def render(self, returned: Any, req: Any) -> dict[str, Any]:
        """Return the body of the response to a request."""
        if self._many:
            return {self._name: [self._view.render(item, req) for item in returned]}
        return {self._name: self._view.render(returned, req)}


def single(name: str, view: View) -> Rendered:
    return Rendered(name, view)


def listed(name: str, view: View) -> Rendered:
    return Rendered(name, view, many=True)


def enum(*values: Any) -> Plain:
    return Plain(type="string", enum=list(values))


def string(**keywords: Any) -> Plain:
    return Plain(type="string", **keywords)


def integer(minimum: int | None = None, maximum: int | None = None) -> Plain:
    """Return the type of an integer or a string of digits; the handler converts it with ``int()``."""
    limits = {name: value for name, value in (("minimum", minimum), ("maximum", maximum)) if value is not None}
    return Plain(type=["integer", "string"], pattern="^[0-9]+$", **limits)


def only(name: str, kind: Type | None = None) -> Object:
    """Return the body of an action: one required key."""
    return Object({name: Field(kind or Plain(), required=True)})
