"""DNS names of floating IP addresses. Hosts receive the names, because their guests query them."""

from __future__ import annotations

from nova.conductor.endpoints.derived import Endpoint, reads
from nova.context import RequestContext
from nova.db.networks import floating_ip_dns
from nova.objects.networks.floating_ip_dns import Domain, Entry


class FloatingIpDns(Endpoint):
    """Implements :class:`nova.rpcapi.networks.FloatingIpDns`."""

    index = reads(floating_ip_dns.index)
    entry = reads(floating_ip_dns.entry)
    entries_of = reads(floating_ip_dns.entries_of)

    def put_domain(self, ctx: RequestContext, domain: Domain) -> Domain:
        stored = self.core.db.write(lambda connection: floating_ip_dns.put_domain(connection, domain))
        self.core.names.touch({stored.domain})
        return stored

    def delete_domain(self, ctx: RequestContext, domain: str) -> None:
        self.core.db.write(lambda connection: floating_ip_dns.delete_domain(connection, domain))
        self.core.names.touch({domain.lower()})

    def put_entry(self, ctx: RequestContext, entry: Entry, project_id: str | None = None) -> Entry:
        stored = self.core.db.write(lambda connection: floating_ip_dns.put_entry(connection, entry, project_id))
        self.core.names.touch({stored.domain})
        return stored

    def delete_entry(self, ctx: RequestContext, domain: str, name: str, project_id: str | None = None) -> None:
        self.core.db.write(lambda connection: floating_ip_dns.delete_entry(connection, domain, name, project_id))
        self.core.names.touch({domain.lower()})
