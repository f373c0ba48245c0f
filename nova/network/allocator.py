"""The conductor's half of a network back end: who gets which interfaces and addresses, and what they let in.

The other half, on the hosts, is :class:`nova.network.base.HostNetwork`. Both come from [network]driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from nova.context import RequestContext
from nova.objects.instance import Instance
from nova.objects.network import VIF, NetworkRequest

# A database's; this side of the house knows nothing of it.
Connection = Any


class Allocator(Protocol):
    """Interfaces are found again by their ids: every verb may run a second time after half a run.

    ``external`` says how: such a back end talks to a service of its own, never inside of a transaction, and its verbs
    are external steps. Others do everything in the transaction of the step, on the ``connection`` they are given.
    """

    external: bool

    def validate(self, ctx: RequestContext, project_id: str,
                 wanted: Sequence[NetworkRequest] | None) -> list[NetworkRequest]:
        """What the interfaces of a new server (or the new one of a server) shall be, as the caller may have it.

        Outside of any transaction, before the request is accepted. ``wanted`` None: as the project has it.
        Raises NetworkAmbiguous, NetworkNotFound, PortNotFound, PortInUse, PortNotSupported, PortFieldNotSupported,
        FixedIpInvalid, FixedIpInUse, NetworkRequiresSubnet, PortRequiresFixedIp, ExternalNetworkAttachForbidden, and
        where it is external NetworkServiceUnavailable, Forbidden.
        """

    def check_groups(self, ctx: RequestContext, project_id: str, names: Sequence[str]) -> None:
        """Whether a new server may have these security groups, where they are not ours.

        Raises SecurityGroupNotFound, NoUniqueMatch.
        """

    def allocate(self, ctx: RequestContext, instance: Instance, wanted: Sequence[NetworkRequest],
                 connection: Connection = None) -> list[VIF]:
        """New interfaces with their addresses, or what an earlier try made of the same.

        Raises NoMoreFixedIps, FixedIpInUse, NetworkNotFound, PortInUse, QuotaLimit.
        """

    def check_more(self, connection: Connection, instance: Instance) -> None:
        """Whether the instance may have one interface more, where its number is ours to limit. Raises QuotaLimit."""

    def bind(self, ctx: RequestContext, instance: Instance, vifs: Sequence[VIF], host: str,
             connection: Connection = None) -> list[VIF]:
        """The interfaces as this host has to plug them; a second host of a move gets a binding of its own.

        Raises PortBindingFailed, PortNotFound.
        """

    def unbind(self, ctx: RequestContext, instance: Instance) -> None:
        """No host has the interfaces of the instance, which keeps them. Only asked where it is external."""

    def release(self, ctx: RequestContext, instance: Instance, vifs: Sequence[VIF] | None = None,
                connection: Connection = None) -> None:
        """Give back interfaces with their addresses (None: all of the instance); ports of users are let go of."""

    def unknown(self, ctx: RequestContext, instance: Instance) -> list[VIF]:
        """Interfaces that are the instance's, and that its row does not know: what is left of half a run."""

    def renewed(self, ctx: RequestContext, instance: Instance) -> list[VIF]:
        """The interfaces of the instance with what the back end says of them now."""
