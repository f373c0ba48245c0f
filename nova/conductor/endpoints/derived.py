"""Methods of endpoints that do nothing but one function of nova.db in a transaction of its own.

The function has the parameters of the interface's method, by the same names, behind its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from nova.conductor.core import Core
from nova.context import RequestContext

P = ParamSpec("P")
R = TypeVar("R")
Query = Callable[Concatenate[sa.Connection, P], R]
Method = Callable[Concatenate[Any, RequestContext, P], R]


class Endpoint:
    """What answers for an interface with the shared parts of the conductor."""

    def __init__(self, core: Core) -> None:
        self.core = core


def reads(function: Query[P, R]) -> Method[P, R]:
    """The method that returns what ``function`` reads."""
    def method(self: Endpoint, ctx: RequestContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.core.db.read(lambda connection: function(connection, *args, **kwargs))

    method.__wrapped__ = function  # type: ignore[attr-defined]
    return method


def writes(function: Query[P, R]) -> Method[P, R]:
    """The method that has ``function`` write, and returns what it does."""
    def method(self: Endpoint, ctx: RequestContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.core.db.write(lambda connection: function(connection, *args, **kwargs))

    method.__wrapped__ = function  # type: ignore[attr-defined]
    return method
