"""DNS names of floating addresses: domains, which administrators create, and the names of projects in these domains.
Hosts serve the names to their guests: those of a public domain to all guests, those of a private domain to guests in
its availability zone (without a zone: to all guests)."""

import ipaddress
import re
from collections.abc import Collection, Mapping

import msgspec
import sqlalchemy as sa

from nova import exception
from nova.conf import CONF
from nova.db import tables, versions
from nova.db.accounts import quotas
from nova.db.hosts import aggregates
from nova.db.sql import rows
from nova.objects.networks.network import Domain, Entry, ServedDomain

DOMAINS = tables.dns_domains
ENTRIES = tables.dns_entries
SERVICES = tables.services
VERSIONS = tables.versions

PUBLIC, PRIVATE = "public", "private"

_MOST = 1000  # maximum number of domains, and of names in a domain
_OF_PROJECT = 100  # maximum number of names of a project in all domains
SERVED_AT_ONCE = 20  # maximum number of domains per message to a host; each may have a thousand names
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?")


# --- domains -------------------------------------------------------------------------------------
def index(connection: sa.Connection, project_id: str | None = None) -> list[Domain]:
    """Return the domains that a project may see (None: all domains), sorted by name."""
    return rows.to_objects(Domain, connection.execute(
        sa.select(DOMAINS).where(*rows.equal_or_null(DOMAINS.c.project_id, project_id)).order_by(DOMAINS.c.domain)))


def put_domain(connection: sa.Connection, domain: Domain) -> Domain:
    """Create a domain, or change its owner. Raises InvalidInput, QuotaLimit, Conflict (existing names)."""
    wanted = msgspec.structs.replace(domain, domain=_name("domain", domain.domain))
    quotas.serialize(connection, "dns_domains")
    values = rows.values_of(DOMAINS, wanted)
    versions.bump(connection, versions.dns(wanted.domain))
    if not connection.execute(sa.update(DOMAINS).where(DOMAINS.c.domain == wanted.domain).values(values)).rowcount:
        if rows.count(connection, DOMAINS) >= _MOST:
            raise exception.QuotaLimit("Quota exceeded, too many DNS domains.")
        _check_free(connection, wanted.domain)
        connection.execute(sa.insert(DOMAINS).values(values))
    return wanted


def _check_free(connection: sa.Connection, domain: str) -> None:
    """Raise Conflict if a project has an entry in a parent domain whose full name lies in the new domain."""
    labels = domain.split(".")
    above = {".".join(labels[count:]): ".".join(labels[:count]) for count in range(1, len(labels))}
    # Lock the parent domains, so that no such name is created before the commit.
    for parent in connection.scalars(sa.select(DOMAINS.c.domain).where(
            DOMAINS.c.domain.in_(above)).order_by(DOMAINS.c.domain).with_for_update()).all():
        name = connection.scalar(sa.select(ENTRIES.c.name).where(
            ENTRIES.c.domain == parent, ENTRIES.c.project_id.is_not(None), sa.or_(
                ENTRIES.c.name == above[parent],
                ENTRIES.c.name.endswith(f".{above[parent]}", autoescape=True))).order_by(ENTRIES.c.name))
        if name is not None:
            raise exception.Conflict(f"A project has the name {name} in {parent}, inside the new domain.")


def delete_domain(connection: sa.Connection, domain: str) -> None:
    """Delete a domain with all its names. Raises DnsDomainNotFound."""
    stored = _lock(connection, domain, None)
    versions.bump(connection, versions.dns(stored.domain))
    connection.execute(sa.delete(ENTRIES).where(ENTRIES.c.domain == stored.domain))
    connection.execute(sa.delete(DOMAINS).where(DOMAINS.c.domain == stored.domain))


def _lock(connection: sa.Connection, domain: str, project_id: str | None) -> Domain:
    """Lock a domain until the commit. All changes of names in the domain lock it first."""
    stored = _domain(connection, sa.select(DOMAINS).with_for_update(), domain, project_id)
    if project_id is not None and stored.scope == PRIVATE:
        raise exception.Forbidden(f"Only administrators may change names in {stored.domain}, a private domain.")
    return stored


def _domain(connection: sa.Connection, statement: sa.Select[tuple[object, ...]], domain: str,
            project_id: str | None) -> Domain:
    return rows.first(connection, Domain, statement.where(
        DOMAINS.c.domain == domain.lower(), *rows.equal_or_null(DOMAINS.c.project_id, project_id)),
        exception.DnsDomainNotFound(domain=domain))


# --- names ---------------------------------------------------------------------------------------
def entry(connection: sa.Connection, domain: str, name: str, project_id: str | None = None) -> Entry:
    """Return a name. Raises DnsDomainNotFound, DnsEntryNotFound."""
    stored = _domain(connection, sa.select(DOMAINS), domain, project_id)
    return rows.first(
        connection, Entry, sa.select(ENTRIES).where(ENTRIES.c.domain == stored.domain, ENTRIES.c.name == name.lower()),
        exception.DnsEntryNotFound(domain=domain, name=name))


def entries_of(connection: sa.Connection, domain: str, address: str, project_id: str | None = None) -> list[Entry]:
    """Return the names of an address in a domain. Raises DnsDomainNotFound."""
    stored = _domain(connection, sa.select(DOMAINS), domain, project_id)
    return rows.to_objects(Entry, connection.execute(sa.select(ENTRIES).where(
        ENTRIES.c.domain == stored.domain, ENTRIES.c.address == address).order_by(ENTRIES.c.name)))


def put_entry(connection: sa.Connection, entry: Entry, project_id: str | None = None) -> Entry:
    """Create a name or assign it to another address. Raises DnsDomainNotFound, InvalidInput, QuotaLimit, Forbidden (for
    a project: the domain is private, or the name belongs to another project or to a subdomain)."""
    stored = _lock(connection, entry.domain, project_id)
    try:
        address = str(ipaddress.IPv4Address(entry.address))
    except ValueError as error:
        raise exception.InvalidInput(reason=f"ip '{entry.address}' is not an IPv4 address") from error
    name = _name("name", entry.name)
    if len(f"{name}.{stored.domain}") > 253:
        raise exception.InvalidInput(reason=f"name '{name}' is too long for the domain {stored.domain}")
    if project_id is not None:
        _check_inside(connection, name, stored.domain)
    wanted = Entry(domain=stored.domain, name=name, address=address, type=entry.type.upper(), project_id=project_id)
    versions.bump(connection, versions.dns(stored.domain))
    mine = sa.and_(ENTRIES.c.domain == wanted.domain, ENTRIES.c.name == wanted.name)
    if _is_there(connection, wanted.domain, wanted.name, project_id):
        connection.execute(sa.update(ENTRIES).where(mine).values(address=wanted.address, type=wanted.type))
        return wanted
    if rows.count(connection, ENTRIES, ENTRIES.c.domain == wanted.domain) >= _MOST:
        raise exception.QuotaLimit(f"Quota exceeded, too many names in {wanted.domain}.")
    if project_id is not None:
        quotas.lock(connection, project_id)
        if rows.count(connection, ENTRIES, ENTRIES.c.project_id == project_id) >= _OF_PROJECT:
            raise exception.QuotaLimit("Quota exceeded, the project has too many names.")
    connection.execute(sa.insert(ENTRIES).values(rows.values_of(ENTRIES, wanted)))
    return wanted


def _check_inside(connection: sa.Connection, name: str, domain: str) -> None:
    """Check that a name does not lie in a subdomain, which may belong to another project. Raises Forbidden."""
    labels = name.split(".")
    longer = [".".join([*labels[count:], domain]) for count in range(len(labels))]
    inside = connection.scalar(sa.select(DOMAINS.c.domain).where(
        DOMAINS.c.domain.in_(longer)).order_by(DOMAINS.c.domain))
    if inside is not None:
        raise exception.Forbidden(f"The name {name} in {domain} belongs to the domain {inside}.")


def delete_entry(connection: sa.Connection, domain: str, name: str, project_id: str | None = None) -> None:
    """Delete a name. Raises DnsDomainNotFound, DnsEntryNotFound, Forbidden (for a project: the domain is
    private, or the name belongs to another project)."""
    stored = _lock(connection, domain, project_id)
    if not _is_there(connection, stored.domain, name.lower(), project_id):
        raise exception.DnsEntryNotFound(domain=domain, name=name)
    versions.bump(connection, versions.dns(stored.domain))
    connection.execute(sa.delete(ENTRIES).where(ENTRIES.c.domain == stored.domain, ENTRIES.c.name == name.lower()))


def _is_there(connection: sa.Connection, domain: str, name: str, project_id: str | None) -> bool:
    """Return True if the name exists. Raises Forbidden for a name that the project (None: any) may not change."""
    row = connection.execute(sa.select(ENTRIES.c.project_id).where(
        ENTRIES.c.domain == domain, ENTRIES.c.name == name)).first()
    if row is not None and project_id not in (None, row.project_id):
        raise exception.Forbidden(f"The name {name} in {domain} belongs to another project.")
    return row is not None


def _name(field: str, value: str) -> str:
    """Normalize a name. Raises InvalidInput for an invalid DNS name."""
    name = value.lower()
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise exception.InvalidInput(reason=f"{field} '{value[:255]}' is not a valid DNS name")
    return name


# --- messages to hosts -----------------------------------------------------------------------------------
def served_changes(connection: sa.Connection, domains: Collection[str]) -> dict[str, list[ServedDomain]]:
    """Return host -> messages with the current state of these domains. Five statements for any number of hosts."""
    stored_versions = dict(connection.execute(sa.select(VERSIONS.c.name, VERSIONS.c.version).where(
        VERSIONS.c.name.in_([versions.dns(domain) for domain in domains]))).all())
    stored_domains = {row.domain: row for row in connection.execute(
        sa.select(DOMAINS).where(DOMAINS.c.domain.in_(domains)))}
    names = _addresses(connection, stored_domains)
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


def newer_served(connection: sa.Connection, host: str, held: Mapping[str, int]) -> list[ServedDomain]:
    """Return the domains of a host whose versions are newer than in ``held`` (domain -> version on the host), at most
    :data:`SERVED_AT_ONCE`, and removals of the domains in ``held`` that the host must no longer serve."""
    stored = connection.execute(sa.select(DOMAINS, VERSIONS.c.version).outerjoin(
        VERSIONS, VERSIONS.c.name == sa.literal(versions.dns("")) + DOMAINS.c.domain).order_by(DOMAINS.c.domain)).all()
    if not stored and not held:
        return []
    zone = aggregates.zone_of(connection, host) if any(row.scope == PRIVATE for row in stored) else ""
    ours = {row.domain: row.version or 0 for row in stored if _is_for(row, zone)}
    removed = [ServedDomain(domain=domain, version=version, removed=True) for domain, version in sorted(held.items())
               if domain not in ours]
    # A domain from a release without versions has version 0: -1 ensures that it is sent, too.
    stale = [domain for domain, version in ours.items() if version > held.get(domain, -1)][:SERVED_AT_ONCE]
    names = _addresses(connection, stale)
    return removed + [ServedDomain(domain=domain, version=ours[domain], names=names[domain]) for domain in stale]


def _is_for(domain: sa.Row[tuple[object, ...]], zone: str) -> bool:
    return domain.scope != PRIVATE or domain.availability_zone in (None, zone)


def _addresses(connection: sa.Connection, domains: Collection[str]) -> dict[str, dict[str, str]]:
    """Return domain -> name -> address."""
    names: dict[str, dict[str, str]] = {domain: {} for domain in domains}
    if domains:
        for row in connection.execute(sa.select(ENTRIES.c.domain, ENTRIES.c.name, ENTRIES.c.address).where(
                ENTRIES.c.domain.in_(domains)).order_by(ENTRIES.c.domain, ENTRIES.c.name)):
            names[row.domain][row.name] = row.address
    return names
