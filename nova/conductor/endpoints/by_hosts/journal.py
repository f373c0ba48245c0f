"""Step reports of hosts."""

from __future__ import annotations

from collections.abc import Callable

from nova import context
from nova.conductor.saga.engine import Engine
from nova.objects.servers.order import StepOrder, StepReport


class EngineReports:
    """Implements :class:`nova.rpcapi.by_hosts.Engine`."""

    def __init__(self, engine: Engine, check: Callable[[], None]) -> None:
        self.engine = engine
        self._check = check

    def step_done(self, ctx: context.RequestContext, report: StepReport) -> None:
        self.engine.step_done(ctx, report)

    def progress(self, ctx: context.RequestContext, report: StepReport) -> None:
        self.engine.progress(ctx, report)

    def begin(self, ctx: context.RequestContext, action_uuid: str, attempt: int, host: str) -> None:
        self.engine.begin(ctx, action_uuid, attempt, host)

    def resume(self, ctx: context.RequestContext, host: str) -> list[StepOrder]:
        return self.engine.resume(ctx, host)

    def handed_over(self, ctx: context.RequestContext) -> None:
        self._check()
