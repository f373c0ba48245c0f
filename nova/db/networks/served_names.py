"""DNS names that hosts serve to their guests.

A public domain is for all guests; a private one for guests in its availability zone, or in all zones if it has none.
"""

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from nova.conf import CONF
from nova.db import tables, versions
from nova.db.hosts import aggregates
from nova.db.networks.floating_ip_dns import PRIVATE
from nova.objects.networks.floating_ip_dns import ServedDomain

DOMAINS = tables.dns_domains
ENTRIES = tables.dns_entries
SERVICES = tables.services
VERSIONS = tables.versions

# Maximum number of domains per message; each may have a thousand names.
MOST = 20


def changed(connection: sa.Connection, domains: Collection[str]) -> dict[str, list[ServedDomain]]:
    """Return the messages about the current state of these domains, by five statements for any number of hosts."""
    stored_versions = dict(connection.execute(sa.select(VERSIONS.c.name, VERSIONS.c.version).where(
        VERSIONS.c.name.in_([versions.dns(domain) for domain in domains]))).all())
    stored_domains = {row.domain: row for row in connection.execute(
        sa.select(DOMAINS).where(DOMAINS.c.domain.in_(domains)))}
    names = _names(connection, stored_domains)
    hosts = connection.scalars(sa.select(SERVICES.c.host).where(SERVICES.c.binary == "nova-compute")).all()
    by_host = aggregates.host_zones(aggregates.index(connection))
    changed_domains: dict[str, list[ServedDomain]] = {}
    for host in sorted(set(hosts)):
        zone = by_host.get(host, str(CONF.default_availability_zone))
        changed_domains[host] = [
            ServedDomain(domain=domain, version=stored_versions.get(versions.dns(domain), 0), names=names[domain])
            if domain in stored_domains and _is_for(stored_domains[domain], zone) else
            ServedDomain(domain=domain, version=stored_versions.get(versions.dns(domain), 0), removed=True)
            for domain in sorted(domains)]
    return changed_domains


def newer(connection: sa.Connection, host: str, held: Mapping[str, int]) -> list[ServedDomain]:
    """Return the domains of a host whose known version is old or absent, at most :data:`MOST`, and the known ones
    that the host no longer has."""
    rows = connection.execute(sa.select(DOMAINS, VERSIONS.c.version).outerjoin(
        VERSIONS, VERSIONS.c.name == sa.literal(versions.dns("")) + DOMAINS.c.domain).order_by(DOMAINS.c.domain)).all()
    if not rows and not held:
        return []
    zone = aggregates.zone_of(connection, host) if any(row.scope == PRIVATE for row in rows) else ""
    ours = {row.domain: row.version or 0 for row in rows if _is_for(row, zone)}
    removed = [ServedDomain(domain=domain, version=version, removed=True) for domain, version in sorted(held.items())
               if domain not in ours]
    # A domain created before versions existed is sent once, too.
    stale = [domain for domain, version in ours.items() if version > held.get(domain, -1)][:MOST]
    names = _names(connection, stale)
    return removed + [ServedDomain(domain=domain, version=ours[domain], names=names[domain]) for domain in stale]


def _is_for(domain: sa.Row[tuple[object, ...]], zone: str) -> bool:
    return domain.scope != PRIVATE or domain.availability_zone in (None, zone)


def _names(connection: sa.Connection, domains: Collection[str]) -> dict[str, dict[str, str]]:
    """Return domain -> name -> address."""
    names: dict[str, dict[str, str]] = {domain: {} for domain in domains}
    if domains:
        for row in connection.execute(sa.select(ENTRIES.c.domain, ENTRIES.c.name, ENTRIES.c.address).where(
                ENTRIES.c.domain.in_(domains)).order_by(ENTRIES.c.domain, ENTRIES.c.name)):
            names[row.domain][row.name] = row.address
    return names
