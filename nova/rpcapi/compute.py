"""The RPC interface of nova-compute. Each call is addressed to a single host."""

from nova.bus import cast, slow_call
from nova.context import RequestContext
from nova.objects.images.image import Image
from nova.objects.networks.network import GroupFilter, Peers, RuleSet, ServedDomain
from nova.objects.servers.console import ConsoleAddress
from nova.objects.servers.guest import Diagnostics, GuestStatus
from nova.objects.servers.instance import Instance
from nova.objects.servers.order import StepOrder
from nova.objects.volumes.volume import VolumeRemoval
from nova.rpcapi import COMPUTE, Interface


class Compute(Interface, topic=COMPUTE, namespace="compute", on_hosts=True):
    @cast
    def run(self, ctx: RequestContext, order: StepOrder) -> None:
        """Run a step of an operation, and the following steps on the same host."""

    @cast
    def interrupt(self, ctx: RequestContext, action_uuid: str, what: str) -> None:
        """Pass ``what`` (such as "cancel") to the running step of an action, without waiting for other steps."""

    @slow_call(15)
    def console_output(self, ctx: RequestContext, instance: Instance, lines: int | None = None) -> str:
        """Return the last ``lines`` of the serial console log (None: the whole log)."""

    @slow_call(15)
    def console(self, ctx: RequestContext, uuid: str, console_type: str) -> ConsoleAddress:
        """Return the address of a console of the running guest. Raises ConsoleTypeUnavailable (the host or the guest
        has none), GuestNotRunning, GuestNotFound, NotImplementedHere."""

    @slow_call(15)
    def diagnostics(self, ctx: RequestContext, instance: Instance) -> Diagnostics: ...

    @slow_call(70)
    def quiesce(self, ctx: RequestContext, instance: Instance) -> None:
        """Freeze the file systems of the running guest until unquiesce(). Raises InstanceQuiesceFailed,
        NotImplementedHere, GuestNotFound."""

    @slow_call(35)
    def unquiesce(self, ctx: RequestContext, instance: Instance) -> None:
        """Thaw the file systems of the guest, if they are frozen."""

    def guests(self, ctx: RequestContext) -> list[GuestStatus]:
        """Return the guests of the hypervisor, for the audit."""

    @cast
    def refresh_rules(self, ctx: RequestContext, uuid: str, rules: RuleSet) -> None:
        """Apply changed security group rules of a guest. Older versions are ignored."""

    @cast
    def refresh_groups(self, ctx: RequestContext, filters: list[GroupFilter]) -> None:
        """Apply changed security groups that filters of the host refer to. Older versions are ignored."""

    @cast
    def refresh_peers(self, ctx: RequestContext, peers: Peers) -> None:
        """Apply a changed list of the hosts of a network. Older versions are ignored."""

    @cast
    def refresh_names(self, ctx: RequestContext, domains: list[ServedDomain]) -> None:
        """Apply changed DNS names of networks. Older versions are ignored."""

    @cast
    def remove_volumes(self, ctx: RequestContext, removals: list[VolumeRemoval]) -> None:
        """Remove the data of volumes from the pool of the host, and report their removal (``Volumes.removed``)."""

    @cast
    def cache_images(self, ctx: RequestContext, images: list[Image]) -> None:
        """Download these images to the image cache, and report the results (``Guests.images_cached``)."""

    @cast
    def reap(self, ctx: RequestContext, uuid: str) -> None:
        """Remove a guest immediately if it has an eviction row. Other guests are not removed."""
