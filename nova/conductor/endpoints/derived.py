"""Methods of endpoints that do nothing but one function of nova.db in a transaction of its own.

The function has the parameters of the interface's method, by the same names, behind its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa

from nova.conductor.core import Core
from nova.context import RequestContext
from nova.objects.notification import Notification

P = ParamSpec("P")
R = TypeVar("R")
Query = Callable[Concatenate[sa.Connection, P], R]
# Has a change done (by its third argument) and returns what is to be told of it; the others are those of the change.
Tells = Callable[..., Sequence[Notification]]
Method = Callable[Concatenate[Any, RequestContext, P], R]


class Endpoint:
    """What answers for an interface with the shared parts of the conductor."""

    def __init__(self, core: Core) -> None:
        self.core = core


def told(core: Core, ctx: RequestContext, function: Query[P, R], tells: Tells | None) -> Query[P, R]:
    """``function``, whose change is told on the bus as ``tells`` says, where anything is."""
    if tells is None or not core.outbox.on:
        return function

    def telling(connection: sa.Connection, /, *args: P.args, **kwargs: P.kwargs) -> R:
        results: list[R] = []

        def do() -> R:
            results.append(function(connection, *args, **kwargs))
            return results[-1]

        core.outbox.tell(connection, ctx, lambda teller: tells(teller, connection, do, *args, **kwargs))
        return results[-1]

    return telling


def write(core: Core, ctx: RequestContext, function: Query[P, R], tells: Tells | None, /,
          *args: P.args, **kwargs: P.kwargs) -> R:
    """What ``function`` returns, written and told in one transaction."""
    change = told(core, ctx, function, tells)
    return core.db.write(lambda connection: change(connection, *args, **kwargs))


def reads(function: Query[P, R]) -> Method[P, R]:
    """The method that returns what ``function`` reads."""
    def method(self: Endpoint, ctx: RequestContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.core.db.read(lambda connection: function(connection, *args, **kwargs))

    method.__wrapped__ = function  # type: ignore[attr-defined]
    return method


def writes(function: Query[P, R], tells: Tells | None = None) -> Method[P, R]:
    """The method that has ``function`` write, and returns what it does."""
    def method(self: Endpoint, ctx: RequestContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return write(self.core, ctx, function, tells, *args, **kwargs)

    method.__wrapped__ = function  # type: ignore[attr-defined]
    return method
