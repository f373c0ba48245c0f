"""The RPC interface of DNS names of floating IP addresses. With ``project_id`` None all projects are accessible."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.networks.floating_ip_dns import Domain, Entry
from nova.rpcapi import CONDUCTOR


class FloatingIpDns(Interface):
    topic = CONDUCTOR
    namespace = "floating_ip_dns"

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[Domain]:
        """Return the domains that a project may see, ordered by name."""

    @call
    def put_domain(self, ctx: RequestContext, domain: Domain) -> Domain:
        """Create a domain, or change its owner. Raises InvalidInput, QuotaLimit, Conflict."""

    @call
    def delete_domain(self, ctx: RequestContext, domain: str) -> None:
        """Delete a domain with all its names. Raises DnsDomainNotFound."""

    @call
    def entry(self, ctx: RequestContext, domain: str, name: str, project_id: str | None = None) -> Entry:
        """Raises DnsDomainNotFound, DnsEntryNotFound."""

    @call
    def entries_of(self, ctx: RequestContext, domain: str, address: str,
                   project_id: str | None = None) -> list[Entry]:
        """Return the names of an address in a domain. Raises DnsDomainNotFound."""

    @call
    def put_entry(self, ctx: RequestContext, entry: Entry, project_id: str | None = None) -> Entry:
        """Create a name, or change its address. Raises DnsDomainNotFound, InvalidInput, QuotaLimit."""

    @call
    def delete_entry(self, ctx: RequestContext, domain: str, name: str, project_id: str | None = None) -> None:
        """Raises DnsDomainNotFound, DnsEntryNotFound."""
