"""Names of floating addresses. ``project_id`` None sees, and changes, what is anybody's."""

from __future__ import annotations

from nova.bus import Interface, call
from nova.context import RequestContext
from nova.objects.floating_ip_dns import Domain, Entry
from nova.rpcapi import CONDUCTOR


class FloatingIpDns(Interface):
    topic = CONDUCTOR
    namespace = "floating_ip_dns"

    @call
    def index(self, ctx: RequestContext, project_id: str | None = None) -> list[Domain]:
        """The domains that a project may see, by their names."""

    @call
    def put_domain(self, ctx: RequestContext, domain: Domain) -> Domain:
        """Make a domain, or say anew whose it is. Raises InvalidInput, QuotaLimit, Conflict."""

    @call
    def delete_domain(self, ctx: RequestContext, domain: str) -> None:
        """With all its names. Raises DnsDomainNotFound."""

    @call
    def entry(self, ctx: RequestContext, domain: str, name: str, project_id: str | None = None) -> Entry:
        """Raises DnsDomainNotFound, DnsEntryNotFound."""

    @call
    def entries_of(self, ctx: RequestContext, domain: str, address: str,
                   project_id: str | None = None) -> list[Entry]:
        """The names of an address in a domain. Raises DnsDomainNotFound."""

    @call
    def put_entry(self, ctx: RequestContext, entry: Entry, project_id: str | None = None) -> Entry:
        """Make a name, or have it be that of another address. Raises DnsDomainNotFound, InvalidInput, QuotaLimit."""

    @call
    def delete_entry(self, ctx: RequestContext, domain: str, name: str, project_id: str | None = None) -> None:
        """Raises DnsDomainNotFound, DnsEntryNotFound."""
