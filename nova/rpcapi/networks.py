"""RPC interfaces for embedded networks, their addresses and security groups. ``project_id`` None means all projects."""

from nova.context import RequestContext
from nova.objects.networks.network import (
    DefaultRule,
    Domain,
    Entry,
    FloatingIp,
    Network,
    NetworkAddress,
    SecurityGroup,
    SecurityGroupRule,
)
from nova.rpcapi import CONDUCTOR, Interface


class Networks(Interface, topic=CONDUCTOR, namespace="networks", with_tokens=True):
    """Embedded networks; index() and get() also return those of an external network service."""

    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[Network]:
        """Return the networks that a project may use (its own and shared ones), or all networks for None."""

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> Network:
        """Return a network. Raises NetworkNotFound."""

    def create(self, ctx: RequestContext, network: Network) -> Network:
        """Create a network. Raises NetworkDuplicate, InvalidInput."""

    def associate(self, ctx: RequestContext, project_id: str, uuid: str | None = None) -> Network:
        """Assign a network without a project to the project. ``uuid`` None: any network that has no servers of other
        projects. Raises NetworkNotFound, NetworkInUse, NetworkDuplicate, NoMoreNetworks."""

    def disassociate(self, ctx: RequestContext, uuid: str, project: bool, host: bool) -> None:
        """Remove a network from its project, host, or both. Raises NetworkNotFound, NetworkInUse, NetworkDuplicate."""

    def associate_host(self, ctx: RequestContext, uuid: str, host: str) -> None:
        """Bind a network to a host. Raises NetworkNotFound, ComputeHostNotFound."""

    def delete(self, ctx: RequestContext, uuid: str) -> None:
        """Delete a network without servers. Raises NetworkInUse, NetworkNotFound."""


class FixedIps(Interface, topic=CONDUCTOR, namespace="fixed_ips"):
    """Fixed IP addresses, for administrators."""

    def show(self, ctx: RequestContext, address: str) -> NetworkAddress:
        """Return an address with its server. Raises FixedIpNotFoundForAddress."""

    def reserve(self, ctx: RequestContext, address: str, reserved: bool) -> None:
        """Reserve an address, or release it for servers. Raises FixedIpNotFoundForAddress, InvalidInput."""


class FloatingIps(Interface, topic=CONDUCTOR, namespace="floating_ips", with_tokens=True):
    """Floating IP addresses, embedded ones or those of an external network service."""

    def pools(self, ctx: RequestContext) -> list[str]:
        """Return the names of the pools."""

    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[FloatingIp]:
        """Return the addresses of a project, oldest first (None: all addresses, including free ones)."""

    def get(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> FloatingIp:
        """Return a floating IP address. Raises FloatingIpNotFound."""

    def create(self, ctx: RequestContext, pool: str, cidr: str) -> int:
        """Add the host addresses of a network to a pool; return the number. Raises InvalidInput, FloatingIpExists."""

    def delete(self, ctx: RequestContext, cidr: str) -> int:
        """Remove the addresses of a network from pools; return the number. Raises InvalidInput, FloatingIpInUse."""

    def on_host(self, ctx: RequestContext, host: str) -> list[FloatingIp]:
        """Return the addresses that are associated with servers on a host, oldest first."""

    def allocate(self, ctx: RequestContext, project_id: str, pool: str | None = None) -> FloatingIp:
        """Allocate an address of a pool (None: the first pool) to the project. Raises FloatingIpPoolNotFound,
        NoMoreFloatingIps, QuotaLimit."""

    def release(self, ctx: RequestContext, uuid: str, project_id: str | None = None) -> None:
        """Release an address, and disassociate it from its server. Raises FloatingIpNotFound."""

    def give(self, ctx: RequestContext, instance_uuid: str, address: str, fixed_address: str | None = None,
             project_id: str | None = None) -> None:
        """Associate an address of the server's project with the server, instead of another server. Raises
        InstanceNotFound, FloatingIpNotFound, InvalidInput, InstanceIsLocked (either server)."""

    def take(self, ctx: RequestContext, instance_uuid: str, address: str, project_id: str | None = None) -> None:
        """Disassociate an address from the server. Raises InstanceNotFound, FloatingIpNotFound,
        FloatingIpNotAssociated, InstanceIsLocked."""


class FloatingIpDns(Interface, topic=CONDUCTOR, namespace="floating_ip_dns"):
    """DNS names of floating IP addresses."""

    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[Domain]:
        """Return the domains that a project may see, ordered by name."""

    def put_domain(self, ctx: RequestContext, domain: Domain) -> Domain:
        """Create a domain, or change its owner. Raises InvalidInput, QuotaLimit, Conflict."""

    def delete_domain(self, ctx: RequestContext, domain: str) -> None:
        """Delete a domain with all its names. Raises DnsDomainNotFound."""

    def entry(self, ctx: RequestContext, domain: str, name: str, project_id: str | None = None) -> Entry:
        """Return a DNS name with its address. Raises DnsDomainNotFound, DnsEntryNotFound."""

    def entries_of(self, ctx: RequestContext, domain: str, address: str, project_id: str | None = None) -> list[Entry]:
        """Return the names of an address in a domain. Raises DnsDomainNotFound."""

    def put_entry(self, ctx: RequestContext, entry: Entry, project_id: str | None = None) -> Entry:
        """Create a name, or change its address. Raises DnsDomainNotFound, InvalidInput, QuotaLimit."""

    def delete_entry(self, ctx: RequestContext, domain: str, name: str, project_id: str | None = None) -> None:
        """Delete a DNS name. Raises DnsDomainNotFound, DnsEntryNotFound."""


class SecurityGroups(Interface, topic=CONDUCTOR, namespace="security_groups", with_tokens=True):
    """Security groups and their rules. If an external network service has the groups, ``uuid`` replaces the number, and
    the service is called with the caller's token."""

    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[SecurityGroup]:
        """Return security groups, and create the default group of the caller's project if it is missing."""

    def get(self, ctx: RequestContext, group_id: int, project_id: str | None = None,
            uuid: str = "") -> SecurityGroup: ...

    def create(self, ctx: RequestContext, name: str, description: str) -> SecurityGroup:
        """Create a security group. Raises SecurityGroupExists, QuotaLimit."""

    def update(self, ctx: RequestContext, group_id: int, name: str, description: str,
               project_id: str | None = None, uuid: str = "") -> SecurityGroup: ...

    def delete(self, ctx: RequestContext, group_id: int, project_id: str | None = None, uuid: str = "") -> None:
        """Delete a security group. Raises SecurityGroupInUse, InvalidInput (default group)."""

    def add_rule(self, ctx: RequestContext, rule: SecurityGroupRule,
                 project_id: str | None = None) -> SecurityGroupRule:
        """Add a rule, which takes effect immediately. Raises InvalidInput for a duplicate."""

    def delete_rule(self, ctx: RequestContext, rule_id: int, project_id: str | None = None, uuid: str = "") -> None:
        """Delete a rule of a security group. Raises SecurityGroupRuleNotFound."""


class SecurityGroupDefaultRules(Interface, topic=CONDUCTOR, namespace="security_group_default_rules"):
    """Rules of new default security groups. Existing groups are not changed."""

    def index(self, ctx: RequestContext) -> list[DefaultRule]:
        """Return all rules, oldest first."""

    def get(self, ctx: RequestContext, rule_id: int) -> DefaultRule:
        """Return a default rule. Raises SecurityGroupDefaultRuleNotFound."""

    def create(self, ctx: RequestContext, rule: DefaultRule) -> DefaultRule:
        """Create a default rule. Raises InvalidInput, SecurityGroupDefaultRuleExists, QuotaLimit."""

    def delete(self, ctx: RequestContext, rule_id: int) -> None:
        """Delete a default rule. Raises SecurityGroupDefaultRuleNotFound."""
