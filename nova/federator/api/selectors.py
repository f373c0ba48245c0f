"""Label selectors: a compiler, whose errors name the field, and indexes that find the selectors of an object and the
objects of a selector."""

import re
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from nova.common.errors import Invalid
from nova.federator.api.quantity import excerpt
from nova.federator.api.types import Selector

T = TypeVar("T")
_TERMS = 100  # maximum number of labels and expressions of a selector
_VALUES = 1000  # maximum number of values of an expression
_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_PREFIX = r"(?=.{1,253}/)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*/"
_KEY, _VALUE = re.compile(f"({_PREFIX})?{_NAME}", re.ASCII), re.compile(f"({_NAME})?", re.ASCII)


def compile_selector(selector: object, field: str) -> Selector:
    """Return a LabelSelector ready for matching. ``field``: name of its field in errors. An empty selector matches all
    objects. Raises Invalid."""
    if not isinstance(selector, Mapping):
        raise Invalid(f"{field}: not an object.")
    if unknown := selector.keys() - {"matchLabels", "matchExpressions"}:
        raise Invalid(f"{field}.{min(map(str, unknown)):.80}: unknown field.")
    labels, expressions = selector.get("matchLabels"), selector.get("matchExpressions")
    labels, expressions = {} if labels is None else labels, [] if expressions is None else expressions
    if not isinstance(labels, Mapping):
        raise Invalid(f"{field}.matchLabels: not a map of texts.")
    if not isinstance(expressions, list) or len(expressions) + len(labels) > _TERMS:
        raise Invalid(f"{field}.matchExpressions: not a list, or more than {_TERMS} terms.")
    equal = [(label_key(key, f"{field}.matchLabels"), frozenset([_label_value(value, f"{field}.matchLabels")]))
             for key, value in labels.items()]
    unequal: list[tuple[str, frozenset[str]]] = []
    present: set[str] = set()
    absent: set[str] = set()
    for number, expression in enumerate(expressions):
        key, operator, values = _expression(expression, f"{field}.matchExpressions[{number}]")
        if operator == "In":
            equal.append((key, values))
        elif operator == "NotIn":
            unequal.append((key, values))
        else:
            (present if operator == "Exists" else absent).add(key)
    return Selector(tuple(equal), tuple(unequal), frozenset(present), frozenset(absent))


def _expression(expression: object, field: str) -> tuple[str, str, frozenset[str]]:
    if not isinstance(expression, Mapping):
        raise Invalid(f"{field}: not an object.")
    if unknown := expression.keys() - {"key", "operator", "values"}:
        raise Invalid(f"{field}.{min(map(str, unknown)):.80}: unknown field.")
    key, operator = label_key(expression.get("key"), f"{field}.key"), expression.get("operator")
    values = expression.get("values")
    if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
        raise Invalid(f"{field}.operator: {excerpt(operator)} is not In, NotIn, Exists or DoesNotExist.")
    values = [] if values is None else values
    if not isinstance(values, list) or len(values) > _VALUES:
        raise Invalid(f"{field}.values: not a list of at most {_VALUES} texts.")
    if (operator in ("In", "NotIn")) != bool(values):
        raise Invalid(f"{field}.values: {'not allowed' if values else 'required'} with {operator}.")
    return key, operator, frozenset(_label_value(value, f"{field}.values") for value in values)


def label_key(value: object, field: str) -> str:
    """Return ``value`` if it is a valid label key. Raises Invalid otherwise."""
    if not isinstance(value, str) or not value:
        raise Invalid(f"{field}: {'required' if value is None or value == '' else 'not a text'}.")
    if len(value) > 317 or _KEY.fullmatch(value) is None:
        raise Invalid(f"{field}: {excerpt(value)} is not the key of a label.")
    return value


def _label_value(value: object, field: str) -> str:
    if not isinstance(value, str) or len(value) > 63 or _VALUE.fullmatch(value) is None:
        raise Invalid(f"{field}: {excerpt(value)} is not the value of a label.")
    return value


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return True if the labels satisfy all terms of the selector."""
    return (all(labels.get(key) in values for key, values in selector.equal)
            and all(labels.get(key) not in values for key, values in selector.unequal)
            and selector.present <= labels.keys() and selector.absent.isdisjoint(labels))


class SelectorIndex(Generic[T]):
    """Owners of selectors, found by the labels of an object. A selector with a required label is stored under this
    label, so the time of a search depends on the labels of the object, not on the number of selectors."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str | None] | None, set[T]] = {}  # see _places

    def add(self, owner: T, selectors: Iterable[Selector]) -> None:
        for place in _places(selectors):
            self._owners.setdefault(place, set()).add(owner)

    def remove(self, owner: T, selectors: Iterable[Selector]) -> None:
        """Remove an owner that was added with these selectors."""
        for place in _places(selectors):
            owners = self._owners.get(place, set())
            owners.discard(owner)
            if not owners:
                self._owners.pop(place, None)

    def candidates(self, labels: Mapping[str, str]) -> set[T]:
        """Return the owners of all selectors that can match: a superset, to be checked with :func:`matches`."""
        empty: set[T] = set()
        return self._owners.get(None, empty).union(*(self._owners.get(place, empty) for key, value in labels.items()
                                                     for place in ((key, value), (key, None))))


def _places(selectors: Iterable[Selector]) -> set[tuple[str, str | None] | None]:
    """Return where selectors are stored: under the values of a required label, under its key if any value matches, or
    under None without a required label."""
    places: set[tuple[str, str | None] | None] = set()
    for selector in selectors:
        if selector.equal:
            key, values = min(selector.equal, key=lambda term: len(term[1]))
            places |= {(key, value) for value in values}
        else:
            places.add((min(selector.present), None) if selector.present else None)
    return places


class LabelIndex:
    """Keys of objects, found by selectors, so that a change of a policy examines only objects that it may select."""

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}  # key of an object -> its labels
        self._keys: dict[str, dict[str, str | set[str]]] = {}  # label -> value -> key of an object, or several

    def __len__(self) -> int:
        return len(self._labels)

    def put(self, key: str, labels: Mapping[str, str]) -> None:
        """Add an object, or replace its labels."""
        if self._labels.get(key) == labels:
            return
        self.remove(key)
        self._labels[key] = labels
        for label, value in labels.items():
            values = self._keys.setdefault(label, {})
            stored = values.get(value)
            if isinstance(stored, set):
                stored.add(key)
            else:  # store a single key without a set, which would cost more: most values have one object
                values[value] = key if stored is None else {stored, key}

    def remove(self, key: str) -> None:
        for label, value in self._labels.pop(key, {}).items():
            values = self._keys[label]
            stored = values[value]
            if isinstance(stored, set) and len(stored) > 1:
                stored.discard(key)
                continue
            del values[value]
            if not values:
                del self._keys[label]

    def candidates(self, selectors: Iterable[Selector]) -> set[str]:
        """Return the keys of all objects that selectors can match: a superset, to be checked with :func:`matches`."""
        result: set[str] = set()
        for place in _places(selectors):
            if place is None:
                return set(self._labels)
            label, value = place
            values = self._keys.get(label, {})
            chosen = values.values() if value is None else [values[value]] if value in values else []
            for stored in chosen:
                if isinstance(stored, set):
                    result |= stored
                else:
                    result.add(stored)
        return result
