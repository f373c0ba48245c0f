"""What a compute host is asked. Always addressed to one host, except where said."""

from __future__ import annotations

from nova.bus import Interface, call, cast, slow_call
from nova.context import RequestContext
from nova.objects.console import ConsoleAddress
from nova.objects.floating_ip_dns import ServedDomain
from nova.objects.guest import Diagnostics, GuestStatus
from nova.objects.image import Image
from nova.objects.instance import Instance
from nova.objects.network import GroupFilter, Peers, RuleSet
from nova.objects.order import StepOrder
from nova.objects.volume import VolumeRemoval
from nova.rpcapi import COMPUTE


class Compute(Interface):
    topic = COMPUTE
    on_hosts = True
    namespace = "compute"

    @cast
    def run(self, ctx: RequestContext, order: StepOrder) -> None:
        """Run a step of an operation, and the steps after it that belong to the same host."""

    @cast
    def interrupt(self, ctx: RequestContext, action_uuid: str, what: str) -> None:
        """Say ``what`` to the running step of an action; "cancel" asks it to end. It does not wait behind orders."""

    @slow_call(15)
    def console_output(self, ctx: RequestContext, instance: Instance, lines: int | None = None) -> str:
        """The last ``lines`` of the serial console log (None: all that is kept)."""

    @slow_call(15)
    def console(self, ctx: RequestContext, uuid: str, console_type: str) -> ConsoleAddress:
        """Where the running guest's console of this type is. Raises ConsoleTypeUnavailable (the host or the guest has
        none), GuestNotRunning, GuestNotFound, NotImplementedHere."""

    @slow_call(15)
    def diagnostics(self, ctx: RequestContext, instance: Instance) -> Diagnostics: ...

    @slow_call(70)
    def quiesce(self, ctx: RequestContext, instance: Instance) -> None:
        """The file systems of the running guest are at rest, until unquiesce(). Raises InstanceQuiesceFailed,
        NotImplementedHere, GuestNotFound."""

    @slow_call(35)
    def unquiesce(self, ctx: RequestContext, instance: Instance) -> None:
        """They go on, if they were at rest."""

    @call
    def guests(self, ctx: RequestContext) -> list[GuestStatus]:
        """What the hypervisor of this host really runs (audit)."""

    @cast
    def refresh_rules(self, ctx: RequestContext, uuid: str, rules: RuleSet) -> None:
        """What a guest lets in changed. A host that has or had a newer set ignores this one."""

    @cast
    def refresh_groups(self, ctx: RequestContext, filters: list[GroupFilter]) -> None:
        """Security groups changed that guests of the host are in, or let in. What is older than known is ignored."""

    @cast
    def refresh_peers(self, ctx: RequestContext, peers: Peers) -> None:
        """Other hosts have a network than before. What is older than what the host knows is ignored."""

    @cast
    def refresh_names(self, ctx: RequestContext, domains: list[ServedDomain]) -> None:
        """Names that guests may ask for changed. What is older than what the host knows is ignored."""

    @cast
    def remove_volumes(self, ctx: RequestContext, removals: list[VolumeRemoval]) -> None:
        """Remove these data of volumes from the pool of the host, and tell that it is done."""

    @cast
    def cache_images(self, ctx: RequestContext, images: list[Image]) -> None:
        """Fetch these images before a server wants them, and tell of each (``Guests.images_cached``)."""

    @cast
    def reap(self, ctx: RequestContext, uuid: str) -> None:
        """Remove an orphaned guest now (audit --repair); one that no row says that of stays."""
