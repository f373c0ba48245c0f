"""Endpoints: implementations of RPC interfaces, and methods derived from functions of nova.db.

An endpoint is a subclass of the interface that it implements. mypy compares the types of their methods; the bus passes
arguments by name, so parameters have the names of the interface (tests/functional/api/test_endpoints.py compares them).
``reads`` and ``writes`` derive a method from a function of nova.db that runs in a transaction of its own. The function
takes the connection, then the parameters of the interface's method under the same names."""

import operator
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import sqlalchemy as sa

from nova.bus import Interface
from nova.conductor.core import Core
from nova.context import RequestContext
from nova.objects.accounts.notification import Notification

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Query = Callable[Concatenate[sa.Connection, P], R]
# Runs a change (its third argument) and returns the notifications of it. The further arguments are those of the change.
Notify = Callable[..., Sequence[Notification]]


class Method(Protocol[P, R_co]):
    """A method of an interface, bound to its endpoint."""

    def __call__(self, ctx: RequestContext, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Endpoint(Interface):
    """The implementation of an RPC interface that needs only the shared state of the conductor."""

    def __init__(self, core: Core) -> None:
        self.core = core


def endpoints_of(*modules: ModuleType) -> list[type[Endpoint]]:
    """Return the subclasses of Endpoint in the modules."""
    return [kind for module in modules for kind in vars(module).values()
            if isinstance(kind, type) and issubclass(kind, Endpoint) and kind is not Endpoint]


def interface_of(endpoint: Interface) -> type[Interface]:
    """Return the RPC interface that the endpoint implements."""
    return next(kind for kind in type(endpoint).__mro__ if "namespace" in vars(kind))


def notifying(core: Core, ctx: RequestContext, function: Query[P, R], notify: Notify | None) -> Query[P, R]:
    """Return ``function``, extended to send the notifications of its change, if notifications are enabled."""
    if notify is None or not core.outbox.on:
        return function

    def change_and_notify(connection: sa.Connection, /, *args: P.args, **kwargs: P.kwargs) -> R:
        results: list[R] = []

        def do() -> R:
            results.append(function(connection, *args, **kwargs))
            return results[-1]

        core.outbox.notify(connection, ctx, lambda builder: notify(builder, connection, do, *args, **kwargs))
        return results[-1]

    return change_and_notify


def write(core: Core, ctx: RequestContext, function: Query[P, R], notify: Notify | None, /,
          *args: P.args, **kwargs: P.kwargs) -> R:
    """Run ``function`` and send its notifications in one transaction; return its result."""
    change = notifying(core, ctx, function, notify)
    return core.db.write(lambda connection: change(connection, *args, **kwargs))


def reads(function: Query[P, R]) -> Method[P, R]:
    """Return a method that returns the result of ``function``, as a lookup (nova.db.sql.engine)."""
    def method(self: Endpoint, ctx: RequestContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.core.db.lookup(lambda connection: function(connection, *args, **kwargs))

    return cast(Method[P, R], method)


def writes(function: Query[P, R], notify: Notify | None = None) -> Method[P, R]:
    """Return a method that runs ``function`` in a write transaction and returns its result."""
    def method(self: Endpoint, ctx: RequestContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return write(self.core, ctx, function, notify, *args, **kwargs)

    return cast(Method[P, R], method)


def or_outside(path: str, method: F) -> F:
    """Return ``method``, or while an external network service is used, the method of the allocator with this path (such
    as groups.get), which has the same parameters."""
    def chosen(self: Endpoint, ctx: RequestContext, *args: Any, **kwargs: Any) -> Any:
        allocator = self.core.allocator
        return (operator.attrgetter(path)(allocator)(ctx, *args, **kwargs) if allocator.external
                else method(self, ctx, *args, **kwargs))

    return cast(F, chosen)
