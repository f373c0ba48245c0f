"""Label selectors: compiled with errors that name the field, and an index that finds the selectors of an object."""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from nova.common.errors import Invalid
from nova.federator.api.types import Selector

T = TypeVar("T")
_TERMS = 100  # labels and expressions of a selector
_VALUES = 1000  # values of an expression


def compile_selector(selector: object, field: str) -> Selector:
    """Return a LabelSelector ready for matching. ``field``: its name for errors. An empty selector matches everything.
    Raises Invalid."""
    if not isinstance(selector, Mapping):
        raise Invalid(f"{field}: not an object.")
    if unknown := selector.keys() - {"matchLabels", "matchExpressions"}:
        raise Invalid(f"{field}.{min(map(str, unknown))}: unknown field.")
    labels, expressions = selector.get("matchLabels") or {}, selector.get("matchExpressions") or []
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise Invalid(f"{field}.matchLabels: not a map of texts.")
    if not isinstance(expressions, list) or len(expressions) + len(labels) > _TERMS:
        raise Invalid(f"{field}.matchExpressions: not a list, or more than {_TERMS} terms.")
    equal = [(str(key), frozenset([value])) for key, value in labels.items()]
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
    key, operator, values = expression.get("key"), expression.get("operator"), expression.get("values") or []
    if not isinstance(key, str) or not key:
        raise Invalid(f"{field}.key: required.")
    if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
        raise Invalid(f"{field}.operator: {operator!r:.80} is not In, NotIn, Exists or DoesNotExist.")
    if not isinstance(values, list) or len(values) > _VALUES or not all(isinstance(value, str) for value in values):
        raise Invalid(f"{field}.values: not a list of at most {_VALUES} texts.")
    if (operator in ("In", "NotIn")) != bool(values):
        raise Invalid(f"{field}.values: {'not allowed' if values else 'required'} with {operator}.")
    return key, operator, frozenset(values)


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return True if the labels satisfy all terms of the selector."""
    return (all(labels.get(key) in values for key, values in selector.equal)
            and all(labels.get(key) not in values for key, values in selector.unequal)
            and selector.present <= labels.keys() and selector.absent.isdisjoint(labels))


class SelectorIndex(Generic[T]):
    """Owners of selectors, found by the labels of an object. A selector with a required value is looked up by it, so
    matching costs the labels of the object, not the number of selectors."""

    def __init__(self) -> None:
        self._by_label: dict[tuple[str, str], set[T]] = {}
        self._by_key: dict[str, set[T]] = {}
        self._general: set[T] = set()  # selectors without a required label

    def add(self, owner: T, selectors: Iterable[Selector]) -> None:
        for bucket in self._buckets(selectors, create=True):
            bucket.add(owner)

    def remove(self, owner: T, selectors: Iterable[Selector]) -> None:
        """Remove an owner that was added with these selectors."""
        for bucket in self._buckets(selectors, create=False):
            bucket.discard(owner)

    def candidates(self, labels: Mapping[str, str]) -> set[T]:
        """Return the owners of all selectors that can match: a superset, to be checked with :func:`matches`."""
        result = set(self._general)
        for key, value in labels.items():
            result |= self._by_label.get((key, value), set())
            result |= self._by_key.get(key, set())
        return result

    def _buckets(self, selectors: Iterable[Selector], create: bool) -> Iterable[set[T]]:
        empty: set[T] = set()
        for selector in selectors:
            if selector.equal:
                key, values = min(selector.equal, key=lambda term: len(term[1]))
                for value in values:
                    yield self._by_label.setdefault((key, value), set()) if create else self._by_label.get(
                        (key, value), empty)
            elif selector.present:
                key = min(selector.present)
                yield self._by_key.setdefault(key, set()) if create else self._by_key.get(key, empty)
            else:
                yield self._general
