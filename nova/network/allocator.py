"""The interface of a network back end on the conductor: allocation of interfaces and addresses.

Its counterpart on the hosts is :class:`nova.network.base.HostNetwork`. [network]driver selects both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from nova.context import RequestContext
from nova.objects.networks.network import VIF, NetworkRequest
from nova.objects.servers.instance import Instance

# A database connection, whose type this package must not import.
Connection = Any


class Allocator(Protocol):
    """Allocates interfaces. All methods are idempotent, since interfaces are identified by their ids.

    ``external``: True if the back end calls an external service, outside of transactions, so that its methods run in
    external steps. Otherwise its methods run in the transaction of the step, on the given ``connection``.
    """

    external: bool

    def validate(self, ctx: RequestContext, project_id: str,
                 wanted: Sequence[NetworkRequest] | None) -> list[NetworkRequest]:
        """Validate the requested interfaces of a server with the rights of the caller, and return them completed.

        Called outside of transactions, before a request is accepted. ``wanted``: None for the network of the project.
        Raises NetworkAmbiguous, NetworkNotFound, PortNotFound, PortInUse, PortNotSupported, PortFieldNotSupported,
        FixedIpInvalid, FixedIpInUse, NetworkRequiresSubnet, PortRequiresFixedIp, ExternalNetworkAttachForbidden, and
        from an external back end NetworkServiceUnavailable, Forbidden.
        """

    def check_groups(self, ctx: RequestContext, project_id: str, names: Sequence[str]) -> None:
        """Check that security groups of an external service exist.

        Raises SecurityGroupNotFound, NoUniqueMatch.
        """

    def allocate(self, ctx: RequestContext, instance: Instance, wanted: Sequence[NetworkRequest],
                 connection: Connection = None) -> list[VIF]:
        """Create interfaces with addresses, or return those that an earlier attempt created.

        Raises NoMoreFixedIps, FixedIpInUse, NetworkNotFound, PortInUse, QuotaLimit.
        """

    def check_more(self, connection: Connection, instance: Instance) -> None:
        """Raise QuotaLimit if the instance may not have another interface."""

    def bind(self, ctx: RequestContext, instance: Instance, vifs: Sequence[VIF], host: str,
             connection: Connection = None) -> list[VIF]:
        """Bind interfaces to a host and return them as the host has to plug them.

        During a move each of the two hosts has a binding.

        Raises PortBindingFailed, PortNotFound.
        """

    def unbind(self, ctx: RequestContext, instance: Instance) -> None:
        """Remove the bindings of the instance's interfaces, but not the interfaces. Only for external back ends."""

    def release(self, ctx: RequestContext, instance: Instance, vifs: Sequence[VIF] | None = None,
                connection: Connection = None) -> None:
        """Release interfaces with their addresses (None: all of the instance). Ports of users are only unbound."""

    def unrecorded(self, ctx: RequestContext, instance: Instance) -> list[VIF]:
        """Return interfaces of the instance that its database row lacks, left by an interrupted operation."""

    def refreshed(self, ctx: RequestContext, instance: Instance) -> list[VIF]:
        """Return the interfaces of the instance with current data of the back end."""
