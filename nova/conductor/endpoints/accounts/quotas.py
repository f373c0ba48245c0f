"""Quota limits and usage."""

from __future__ import annotations

from typing import Any

from nova import exception
from nova.conductor.core import Core
from nova.context import RequestContext
from nova.db.accounts import quotas
from nova.objects.accounts.quota import Quotas as QuotaSet


class Quotas:
    """Implements :class:`nova.rpcapi.accounts.Quotas`."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def get(self, ctx: RequestContext, project_id: str, user_id: str | None = None, usage: bool = False) -> QuotaSet:
        return self.core.db.read(lambda connection: QuotaSet(
            limits=quotas.limits(connection, project_id, user_id),
            in_use=quotas.usage(connection, project_id, user_id) if usage else {}))

    def defaults(self, ctx: RequestContext) -> QuotaSet:
        return self.core.db.read(lambda connection: QuotaSet(limits=quotas.defaults(connection)))

    def set(self, ctx: RequestContext, project_id: str, limits: dict[str, int], user_id: str | None = None,
            force: bool = False) -> QuotaSet:
        if project_id.startswith("class:"):
            raise exception.InvalidInput(reason=f"{project_id} is not a project")

        def transaction(connection: Any) -> QuotaSet:
            _check(connection, project_id, user_id, limits, force)
            quotas.set_limits(connection, project_id, user_id, limits)
            return QuotaSet(limits=quotas.limits(connection, project_id, user_id))

        return self.core.db.write(transaction)

    def reset(self, ctx: RequestContext, project_id: str, user_id: str | None = None) -> None:
        if not project_id.startswith("class:"):
            self.core.db.write(lambda connection: quotas.reset(connection, project_id, user_id))

    def get_class(self, ctx: RequestContext, name: str) -> QuotaSet:
        return self.core.db.read(lambda connection: QuotaSet(limits=quotas.class_limits(connection, name)))

    def set_class(self, ctx: RequestContext, name: str, limits: dict[str, int]) -> QuotaSet:
        return self.core.db.write(
            lambda connection: QuotaSet(limits=quotas.set_class_limits(connection, name, limits)))


def _check(connection: Any, project_id: str, user_id: str | None, limits: dict[str, int], force: bool) -> None:
    """Check new limits against the usage and the limits of the project. Raises QuotaBelowUsage, QuotaAboveProject."""
    used = {} if force else quotas.usage(connection, project_id, user_id)
    of_project = quotas.limits(connection, project_id) if user_id else {}
    for name, limit in limits.items():
        if 0 <= limit < used.get(name, 0):
            raise exception.QuotaBelowUsage(limit=limit, key=name, minimum=used[name])
        most = of_project.get(name, -1)
        if most >= 0 and (limit < 0 or limit > most):
            raise exception.QuotaAboveProject(limit=limit, key=name, maximum=most)
