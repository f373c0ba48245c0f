"""What a compute host is asked. Always addressed to one host, except where said."""

from __future__ import annotations

from nova.bus import Interface, call, cast, slow_call
from nova.context import RequestContext
from nova.objects.compute import Diagnostics, GuestStatus
from nova.objects.instance import Instance, StepOrder
from nova.objects.network import FilterRule
from nova.rpcapi import COMPUTE


class Compute(Interface):
    topic = COMPUTE
    namespace = "compute"

    @cast
    def run(self, ctx: RequestContext, order: StepOrder) -> None:
        """Run a step of an operation, and the steps after it that belong to the same host."""

    @slow_call(15)
    def console_output(self, ctx: RequestContext, instance: Instance, lines: int | None = None) -> str:
        """The last ``lines`` of the serial console log (None: all that is kept)."""

    @slow_call(15)
    def diagnostics(self, ctx: RequestContext, instance: Instance) -> Diagnostics: ...

    @call
    def guests(self, ctx: RequestContext) -> list[GuestStatus]:
        """What the hypervisor of this host really runs (audit)."""

    @cast
    def refresh_rules(self, ctx: RequestContext, instance: Instance, rules: list[FilterRule]) -> None:
        """The security group rules of a guest changed."""

    @cast
    def reap(self, ctx: RequestContext, uuid: str) -> None:
        """Remove what a guest that does not belong here left behind (audit --repair)."""
