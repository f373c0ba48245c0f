"""Filters by what a host is and can: extra specs, and the hint query."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from nova import exception
from nova.scheduler import attributes, operators
from nova.scheduler.columns import BoolColumn
from nova.scheduler.filters.base import Filter, everything
from nova.scheduler.plugin import Scope
from nova.scheduler.request import Request
from nova.scheduler.view import FleetView

# A query is evaluated for every host: a user must not make that long.
_MAX_DEPTH = 16
_MAX_TERMS = 128


class ComputeCapabilitiesFilter(Filter):
    """Extra specs ``capabilities:<path>`` (and unscoped names of host attributes) hold on the host."""

    def applies(self, request: Request) -> bool:
        return bool(self._asked(request))

    @staticmethod
    def _asked(request: Request) -> list[tuple[str, list[str], str]]:
        """(extra spec, path, what is asked)"""
        asked = []
        for key, value in request.extra_specs.items():
            path = key.split(":")
            if len(path) == 1:
                if attributes.known(key):
                    asked.append((key, path, value))
            elif path[0] == "capabilities":
                asked.append((key, path[1:], value))
            elif key == "hw:maxphysaddr_bits":
                asked.append((key, ["cpu_info", "maxphysaddr", "bits"], f">= {value}"))
        return asked

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        mask = everything(view)
        for _key, path, asked in self._asked(request):
            mask &= attributes.match(view, path, functools.partial(_satisfies, asked))
        return mask

    def reason(self, view: FleetView, request: Request) -> str:
        for key, path, asked in self._asked(request):
            offered = attributes.values(view, path)[0]
            if offered is None or not operators.match(offered, asked):
                return f"{key} must be '{asked}', the host has {'none' if offered is None else repr(offered)}"
        return super().reason(view, request)


def _satisfies(asked: str, offered: Any) -> bool:
    return operators.match(offered, asked)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}


class JsonFilter(Filter):
    """The hint query, a JSON expression over host attributes: ``["and", [">=", "$free_ram_mb", 1024], ...]``.

    Operators: = < > in <= >= not or and. The first operand is compared with all others. What
    cannot be compared, and attributes that do not exist, compare as false.
    """

    costly = True

    def applies(self, request: Request) -> bool:
        return bool(request.hint("query"))

    def scope(self, request: Request) -> Scope:
        return Scope.ROW

    def mask(self, view: FleetView, request: Request) -> BoolColumn:
        query = self._query(request)
        if not query:
            return everything(view)
        return np.array(_evaluate(query, view), np.bool_)

    @staticmethod
    def _query(request: Request) -> Any:
        try:
            query = json.loads(request.hint("query")[0])
        except (ValueError, RecursionError):
            raise exception.NoValidHost(reason="The scheduler hint query is not valid JSON.") from None
        if not isinstance(query, list):
            raise exception.NoValidHost(reason="The scheduler hint query must be a JSON list.")
        if _terms(query, 0) > _MAX_TERMS:
            raise exception.NoValidHost(reason="The scheduler hint query is too long or too deep.")
        return query

    def reason(self, view: FleetView, request: Request) -> str:
        return "the hint query does not hold"


def _terms(query: Any, depth: int) -> int:
    """How many operators and operands a query has; too many when it is too deep."""
    if not isinstance(query, list):
        return 1
    if depth > _MAX_DEPTH:
        return _MAX_TERMS + 1
    return sum(_terms(part, depth + 1) for part in query)


def _evaluate(query: Any, view: FleetView) -> list[bool]:
    """The truth of a query for every node of the view."""
    if not isinstance(query, list):
        return [bool(value) for value in _operand(query, view)]
    if not query:
        raise exception.NoValidHost(reason="The scheduler hint query has an empty expression.")
    name, arguments = query[0], query[1:]
    if name in ("and", "or", "not"):
        parts = [_evaluate(argument, view) for argument in arguments]
        if not parts:
            return [False] * len(view)
        if name == "not":
            return [not all(row) for row in zip(*parts, strict=True)]
        combine = all if name == "and" else any
        return [combine(row) for row in zip(*parts, strict=True)]
    if not isinstance(name, str) or (name != "in" and name not in _COMPARISONS):
        raise exception.NoValidHost(reason=f"The scheduler hint query has an unknown operator: {name!s:.40}.")
    if len(arguments) < 2:
        return [False] * len(view)
    first, *others = ([_operand(argument, view) for argument in arguments])
    if name == "in":
        return [left is not None and any(left == right for right in rights)
                for left, *rights in zip(first, *others, strict=True)]
    compare = _COMPARISONS[name]
    return [all(_holds(compare, left, right) for right in rights)
            for left, *rights in zip(first, *others, strict=True)]


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
