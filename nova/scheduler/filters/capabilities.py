"""Filters by the capabilities of a host: extra specs, and the hint query."""

import functools
import json
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from nova import exception
from nova.scheduler import attributes
from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter, everything
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView

# Maximum depth and number of terms of a query. Larger queries of users are refused: a query is evaluated for each host.
_MAX_DEPTH = 16
_MAX_TERMS = 128


class ComputeCapabilitiesFilter(Filter):
    """Extra specs ``capabilities:<path>`` (and unscoped names of host attributes) must match the host."""

    def applies(self, request: Request) -> bool:
        return bool(self._requirements(request))

    @staticmethod
    def _requirements(request: Request) -> list[tuple[str, list[str], str]]:
        """Return (extra spec, path, required value)."""
        requirements = []
        for key, value in request.extra_specs.items():
            path = key.split(":")
            if len(path) == 1:
                if attributes.is_attribute(key):
                    requirements.append((key, path, value))
            elif path[0] == "capabilities":
                requirements.append((key, path[1:], value))
            elif key == "hw:maxphysaddr_bits":
                requirements.append((key, ["cpu_info", "maxphysaddr", "bits"], f">= {value}"))
        return requirements

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        mask = everything(view)
        for _key, path, required in self._requirements(request):
            mask &= attributes.match(view, path, functools.partial(attributes.satisfies, required=required))
        return mask

    def reason(self, view: FleetView, request: Request) -> str:
        for key, path, required in self._requirements(request):
            offered = attributes.values(view, path)[0]
            if offered is None or not attributes.satisfies(offered, required):
                return f"{key} must be '{required}', the host has {'none' if offered is None else repr(offered)}"
        return super().reason(view, request)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {"=": operator.eq, "<": operator.lt, ">": operator.gt,
                                                       "<=": operator.le, ">=": operator.ge}


class JsonFilter(Filter):
    """The hint query, a JSON expression over host attributes: ``["and", [">=", "$free_ram_mb", 1024], ...]``.
    Operators: = < > in <= >= not or and. The first operand is compared with all others. Missing attributes and operands
    that cannot be compared evaluate to false."""

    costly = True
    refusal = "the host does not satisfy the scheduler hint 'query'"

    def applies(self, request: Request) -> bool:
        return bool(request.spec.hint("query"))

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        query = self._query(request)
        return np.array(_evaluate(query, view), np.bool_) if query else everything(view)

    @staticmethod
    def _query(request: Request) -> Any:
        try:
            query = json.loads(request.spec.hint("query")[0])
        except (ValueError, RecursionError):
            raise exception.NoValidHost(reason="The scheduler hint query is not valid JSON.") from None
        if not isinstance(query, list):
            raise exception.NoValidHost(reason="The scheduler hint query must be a JSON list.")
        if _terms(query, 0) > _MAX_TERMS:
            raise exception.NoValidHost(reason="The scheduler hint query is too long or too deep.")
        return query


def _terms(query: Any, depth: int) -> int:
    """Return the number of operators and operands of a query, or more than the limit if it is nested too deeply."""
    if not isinstance(query, list):
        return 1
    return sum(_terms(operand, depth + 1) for operand in query) if depth <= _MAX_DEPTH else _MAX_TERMS + 1


def _evaluate(query: Any, view: FleetView) -> list[bool]:
    """Return the value of a query for every node of the view."""
    if not isinstance(query, list):
        return [bool(value) for value in _operand(query, view)]
    if not query:
        raise exception.NoValidHost(reason="The scheduler hint query has an empty expression.")
    name, arguments = query[0], query[1:]
    if name in ("and", "or", "not"):
        operands = [_evaluate(argument, view) for argument in arguments]
        if not operands:
            return [False] * len(view)
        if name == "not":
            return [not all(row) for row in zip(*operands, strict=True)]
        combine = all if name == "and" else any
        return [combine(row) for row in zip(*operands, strict=True)]
    if not isinstance(name, str) or (name != "in" and name not in _COMPARISONS):
        raise exception.NoValidHost(reason=f"The scheduler hint query has an unknown operator: {name!s:.40}.")
    if len(arguments) < 2:
        return [False] * len(view)
    first, *others = ([_operand(argument, view) for argument in arguments])
    if name == "in":
        return [left is not None and any(left == right for right in rights)
                for left, *rights in zip(first, *others, strict=True)]
    compare = _COMPARISONS[name]
    return [all(_holds(compare, left, right) for right in rights) for left, *rights in zip(first, *others, strict=True)]


def _operand(value: Any, view: FleetView) -> list[Any]:
    if isinstance(value, str) and value.startswith("$"):
        return attributes.values(view, value[1:].split("."))
    return [value] * len(view)


def _holds(compare: Callable[[Any, Any], bool], left: Any, right: Any) -> bool:
    if left is None or right is None:
        return False
    try:
        return bool(compare(left, right))
    except TypeError:
        return False
