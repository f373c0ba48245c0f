"""The interfaces of a network back end: one on hosts, one on conductors. [network]driver selects both.

The conductor allocates the addresses. A VIF contains all data of its network that a host needs."""

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from nova.context import RequestContext
from nova.objects.networks.network import (
    VIF,
    GroupFilter,
    NetworkRequest,
    Peers,
    RuleSet,
    ServedDomain,
)
from nova.objects.servers.external_event import ExternalEvent
from nova.objects.servers.instance import Instance
from nova.operations.framework.contexts import ServiceControl
from nova.operations.framework.resource_contexts import OutsideInterfaces
from nova.rpcapi.by_hosts import NetworkHosts


class HostNetwork(abc.ABC):
    """The network of a host, as used by nova-compute. All methods are idempotent."""

    # True if start() uses its argument ``instances``; False saves the query for all guests of the host.
    needs_guests = True

    def connect(self, host: str, conductor: NetworkHosts) -> None:
        """Set the name of this host and the conductor proxy. Called before all other methods."""

    @abc.abstractmethod
    def start(self, instances: Sequence[Instance]) -> None:
        """Restore the networks of all guests that belong to this host, when the service starts. Other guests keep their
        networks until unplug_guest."""

    @abc.abstractmethod
    def plug(self, instance: Instance, rules: RuleSet) -> None:
        """Set up networks, DHCP reservations and packet filters of all VIFs of a guest. Afterwards the hypervisor may
        attach tap devices named ``vif.devname`` to ``vif.bridge``."""

    @abc.abstractmethod
    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None:
        """Set up an additional VIF of a guest."""

    @abc.abstractmethod
    def unplug(self, instance: Instance) -> None:
        """Remove the VIFs of a guest, and networks that have no more guests on this host."""

    @abc.abstractmethod
    def unplug_vif(self, instance: Instance, vif: VIF) -> None:
        """Remove one VIF of a guest."""

    @abc.abstractmethod
    def unplug_guest(self, uuid: str) -> None:
        """Remove all VIFs of a guest, given only its uuid."""

    @abc.abstractmethod
    def guests(self) -> set[str]:
        """Return the uuids of the guests with VIFs on this host."""

    def refresh_rules(self, uuid: str, rules: RuleSet) -> None:
        """Replace the ingress rules of a guest atomically, unless newer rules were received before."""

    def refresh_groups(self, filters: Sequence[GroupFilter]) -> None:
        """Apply changed rules or members of security groups, unless newer versions were received before."""

    def refresh_peers(self, peers: Peers) -> None:
        """Apply a changed list of the hosts of a network, unless a newer list was received before."""

    def refresh_names(self, domains: Sequence[ServedDomain]) -> None:
        """Apply changed DNS records of floating addresses, unless newer versions were received before."""

    def stop(self) -> None:
        """Stop the threads of the service. Networks and guests continue."""


class NoNetwork(HostNetwork):
    """A back end for hosts of the fake driver: interfaces exist only in the database."""

    needs_guests = False

    def start(self, instances: Sequence[Instance]) -> None: ...
    def plug(self, instance: Instance, rules: RuleSet) -> None: ...
    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None: ...
    def unplug(self, instance: Instance) -> None: ...
    def unplug_vif(self, instance: Instance, vif: VIF) -> None: ...
    def unplug_guest(self, uuid: str) -> None: ...

    def guests(self) -> set[str]:
        return set()


class OutsidePort(NamedTuple):
    """A port of an external service. ``server``: its device_id; ``host``: the host to which it is bound, or ""."""

    id: str
    server: str
    project_id: str
    host: str


class Allocator(Protocol):
    """Checks of requests that concern interfaces, and access to the interfaces of an external service. All methods are
    called outside of transactions, before a request is accepted. ``external``: True if an external service manages the
    interfaces; otherwise interfaces and addresses are rows of this database."""

    external: bool

    def validate(self, ctx: RequestContext, project_id: str, wanted: Sequence[NetworkRequest] | None,
                 auto: bool = False) -> list[NetworkRequest]:
        """Validate the requested interfaces of a server with the rights of the caller, and return the full requests.
        ``wanted``: None for the network of the project. ``auto``: an external service creates this network if there is
        none. Raises NetworkAmbiguous, UnableToAutoAllocateNetwork, NetworkNotFound, PortNotFound,
        PortInUse, PortNotSupported, PortFieldNotSupported, FixedIpInvalid, FixedIpInUse, NetworkRequiresSubnet,
        PortRequiresFixedIp, ExternalNetworkAttachForbidden, and from an external back end NetworkServiceUnavailable,
        Forbidden."""

    # Resources of an external service, with the rights of the caller and methods as in nova.rpcapi.networks.
    networks: Any
    floating_ips: Any
    groups: Any

    # --- only of an external service -----------------------------------------------------------------------
    def of_server(self, ctl: ServiceControl) -> OutsideInterfaces:
        """Return the interfaces of the server of a step."""

    def missed_events(self, ctx: RequestContext, host: str,
                      servers: Callable[[], Iterable[Instance]]) -> list[ExternalEvent]:
        """Compare the interfaces of servers with the ports that are bound to their host, and return an event for each
        difference. ``servers`` reads the servers; it is called after the ports were read."""

    def ports_of_servers(self, ctx: RequestContext, servers: Sequence[str]) -> list[OutsidePort]:
        """Return the ports of all projects whose device_id is the id of one of these servers."""

    def ports_at(self, ctx: RequestContext, host: str) -> list[OutsidePort]:
        """Return the ports of servers that are bound to a host."""

    def servers_in_quota(self, ctx: RequestContext, project_id: str, networks: Sequence[NetworkRequest], least: int,
                         most: int) -> int:
        """Return the number of servers with these interfaces, at most ``most``, whose new ports the quota of the
        project permits. Raises PortLimitExceeded if they are fewer than ``least``."""

    def check_groups(self, ctx: RequestContext, project_id: str, names: Sequence[str]) -> None:
        """Check that security groups exist. Raises SecurityGroupNotFound, NoUniqueMatch."""
