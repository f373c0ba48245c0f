"""The interface of a network back end on the conductor.

Its counterpart on the hosts is :class:`nova.network.base.HostNetwork`. [network]driver selects both."""

from collections.abc import Sequence
from typing import Protocol

from nova.context import RequestContext
from nova.objects.networks.network import NetworkRequest
from nova.operations.framework.contexts import ServiceControl
from nova.operations.framework.resource_contexts import OutsideInterfaces


class Allocator(Protocol):
    """Checks of requests that concern interfaces, and access to the interfaces of an external service. All methods are
    called outside of transactions, before a request is accepted. ``external``: True if an external service manages the
    interfaces; otherwise interfaces and addresses are rows of this database."""

    external: bool

    def validate(self, ctx: RequestContext, project_id: str,
                 wanted: Sequence[NetworkRequest] | None) -> list[NetworkRequest]:
        """Validate the requested interfaces of a server with the rights of the caller, and return them completed.
        ``wanted``: None for the network of the project. Raises NetworkAmbiguous, NetworkNotFound, PortNotFound,
        PortInUse, PortNotSupported, PortFieldNotSupported, FixedIpInvalid, FixedIpInUse, NetworkRequiresSubnet,
        PortRequiresFixedIp, ExternalNetworkAttachForbidden, and from an external back end NetworkServiceUnavailable,
        Forbidden."""

    # --- only of an external service -----------------------------------------------------------------------
    def of_server(self, ctl: ServiceControl) -> OutsideInterfaces:
        """Return the interfaces of the server of a step."""

    def check_groups(self, ctx: RequestContext, project_id: str, names: Sequence[str]) -> None:
        """Check that security groups exist. Raises SecurityGroupNotFound, NoUniqueMatch."""
