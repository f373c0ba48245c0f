"""Security groups in the form for hosts: a host receives each group once, and its members whenever they change. A rule
with a source group does not list the members: the host stores the members of each source group once. So the cost of a
change does not depend on the number of servers in the group or of rules with this source group."""

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa

from nova.db import tables, versions
from nova.db.networks import security_groups
from nova.db.servers import servers
from nova.objects.networks.network import FilterRule, GroupFilter, RuleSet
from nova.objects.servers import migration as migration_states

GROUPS = tables.security_groups
RULES = tables.security_group_rules
MEMBERS = tables.security_group_members
IPS = tables.fixed_ips
INSTANCES = tables.instances
MIGRATIONS = tables.migrations
VERSIONS = tables.versions

_RULES, _MEMBERS = "rules:", "members:"


# --- changes ---------------------------------------------------------------------------------
def rules_of(group_id: int) -> str:
    """Return the string that stands for changed rules of a group, an argument of :func:`changed`."""
    return f"{_RULES}{group_id}"


def members_of(group_id: int) -> str:
    """Return the string that stands for changed addresses in a group, an argument of :func:`changed`."""
    return f"{_MEMBERS}{group_id}"


def moved(connection: sa.Connection, instance_uuid: str) -> set[str]:
    """Increase the versions of those groups of the server that are the source of a rule; return :func:`members_of`
    of each of these groups. Called in the transaction that changes the addresses of the server."""
    named = sa.select(RULES.c.id).where(RULES.c.group_id == MEMBERS.c.group_id).exists()
    groups = connection.execute(
        sa.select(GROUPS.c.id, GROUPS.c.project_id).join(MEMBERS, MEMBERS.c.group_id == GROUPS.c.id)
        .where(MEMBERS.c.instance_uuid == instance_uuid, named).order_by(GROUPS.c.id)).all()
    for project_id in sorted({row.project_id for row in groups}):
        versions.bump(connection, versions.rules(project_id))
    return {members_of(row.id) for row in groups}


def changed(connection: sa.Connection, names: Collection[str]) -> dict[str, list[GroupFilter]]:
    """Return host -> the current state of the groups in ``names``, for hosts that need them. At most six statements.
    ``names``: results of :func:`rules_of` and :func:`members_of`."""
    rules, members = (sorted(int(name.removeprefix(kind)) for name in names if name.startswith(kind))
                      for kind in (_RULES, _MEMBERS))
    namers: dict[int, set[int]] = {}
    if members:
        for row in connection.execute(sa.select(RULES.c.group_id, RULES.c.parent_group_id).distinct().where(
                RULES.c.group_id.in_(members))):
            namers.setdefault(row.group_id, set()).add(row.parent_group_id)
    places = _places(connection, set(rules).union(*namers.values()))
    hosts: dict[str, list[GroupFilter]] = {}
    for group_filter in _filters(connection, rules, members):
        groups = {group_filter.id} if group_filter.rules_version is not None else namers.get(group_filter.id, set())
        for group_id in groups:
            for host in places.get(group_id, ()):
                if group_filter not in hosts.setdefault(host, []):
                    hosts[host].append(group_filter)
    return hosts


def _places(connection: sa.Connection, group_ids: Collection[int]) -> dict[int, set[str]]:
    """Return group -> possible hosts of its servers, by two statements that return a row per host or migration."""
    hosts: dict[int, set[str]] = {}
    if not group_ids:
        return hosts
    for row in connection.execute(
            sa.select(MEMBERS.c.group_id, INSTANCES.c.host).distinct()
            .join(INSTANCES, INSTANCES.c.uuid == MEMBERS.c.instance_uuid)
            .where(MEMBERS.c.group_id.in_(group_ids), INSTANCES.c.deleted == sa.false(), INSTANCES.c.host != "")):
        hosts.setdefault(row.group_id, set()).add(row.host)
    for move in connection.execute(
            sa.select(MEMBERS.c.group_id, MIGRATIONS.c.migration_type, MIGRATIONS.c.source_compute,
                      MIGRATIONS.c.dest_compute).distinct()
            .join(MIGRATIONS, MIGRATIONS.c.instance_uuid == MEMBERS.c.instance_uuid)
            .where(MEMBERS.c.group_id.in_(group_ids), MIGRATIONS.c.open == sa.true())):
        source = None if move.migration_type == migration_states.EVACUATION else move.source_compute
        hosts.setdefault(move.group_id, set()).update(host for host in (source, move.dest_compute) if host)
    return hosts


# --- current state ---------------------------------------------------------------------------
_GROUPS_OF = (
    sa.select(INSTANCES.c.uuid, INSTANCES.c.network_info, MEMBERS.c.group_id, VERSIONS.c.version)
    .outerjoin(MEMBERS, MEMBERS.c.instance_uuid == INSTANCES.c.uuid)
    .outerjoin(VERSIONS, VERSIONS.c.name == versions.rules_of(INSTANCES.c.project_id))
    .where(INSTANCES.c.uuid.in_(sa.bindparam("uuids", expanding=True))).order_by(MEMBERS.c.group_id))


def rules_for(connection: sa.Connection, instance_uuids: Sequence[str]) -> dict[str, RuleSet]:
    """Return the rules of each server, by at most three statements for any number of servers. Versions are read first,
    so the other data are as new as their version, or newer."""
    rule_sets = {uuid: RuleSet() for uuid in instance_uuids}
    for row in connection.execute(_GROUPS_OF, {"uuids": list(instance_uuids)}) if rule_sets else ():
        rule_sets[row.uuid].version = row.version or 0
        rule_sets[row.uuid].floating = {vif.id: vif.floating for vif in row.network_info if vif.floating}
        if row.group_id is not None:
            rule_sets[row.uuid].groups.append(row.group_id)
    # A project has one version for its groups and servers.
    versions = {group_id: rule_set.version for rule_set in rule_sets.values() for group_id in rule_set.groups}
    filters = {group_filter.id: group_filter for group_filter in _rules(connection, versions)}
    named = {other: versions[group_filter.id] for group_filter in filters.values() for other in group_filter.named()}
    for members in _members(connection, named):
        filters[members.id] = filters.get(members.id, members).joined(members)
    unsent = dict(filters)
    for rule_set in rule_sets.values():
        needs = dict.fromkeys(rule_set.groups)
        for group_id in rule_set.groups:
            needs |= dict.fromkeys(sorted(filters[group_id].named()))
        rule_set.filters = [unsent.pop(group_id) for group_id in needs if group_id in unsent]
    return rule_sets


def _filters(connection: sa.Connection, rules: Sequence[int], members: Sequence[int]) -> list[GroupFilter]:
    """Return the rules of some groups and the members of others, if they exist, by at most three statements."""
    stored_versions = {row.id: row.version or 0 for row in connection.execute(
        sa.select(GROUPS.c.id, VERSIONS.c.version)
        .outerjoin(VERSIONS, VERSIONS.c.name == versions.rules_of(GROUPS.c.project_id))
        .where(GROUPS.c.id.in_({*rules, *members})))} if rules or members else {}
    return [*_rules(connection, {ident: stored_versions[ident] for ident in rules if ident in stored_versions}),
            *_members(connection, {ident: stored_versions[ident] for ident in members if ident in stored_versions})]


def _rules(connection: sa.Connection, held: Mapping[int, int]) -> list[GroupFilter]:
    filters = {group_id: GroupFilter(id=group_id, rules_version=version) for group_id, version in held.items()}
    for row in connection.execute(sa.select(RULES).where(RULES.c.parent_group_id.in_(list(held)))
                                  .order_by(RULES.c.id)) if held else ():
        source = security_groups.source_of(row)
        sources = [] if source is None else [source]
        filters[row.parent_group_id].rules.append(FilterRule(
            protocol=row.protocol, from_port=row.from_port, to_port=row.to_port, sources=sources, group=row.group_id))
    return list(filters.values())


def _members(connection: sa.Connection, held: Mapping[int, int]) -> list[GroupFilter]:
    """Return the members of groups. The MAC address of an interface is in the row of its IPv4 address."""
    filters = {group_id: GroupFilter(id=group_id, members_version=version) for group_id, version in held.items()}
    with_mac = IPS.alias()
    for group_id, address, mac in connection.execute(
            sa.select(MEMBERS.c.group_id, IPS.c.address, with_mac.c.mac)
            .join(IPS, IPS.c.instance_uuid == MEMBERS.c.instance_uuid)
            .join(with_mac, sa.and_(with_mac.c.instance_uuid == IPS.c.instance_uuid, with_mac.c.mac.is_not(None),
                                    sa.or_(with_mac.c.id == IPS.c.id, with_mac.c.vif_id == IPS.c.vif_id)))
            .where(MEMBERS.c.group_id.in_(list(held))).order_by(IPS.c.id)) if held else ():
        filters[group_id].members.append(address)
        filters[group_id].macs.append(mac)
    return list(filters.values())


def newer(connection: sa.Connection, held: Mapping[str, int], host: str = "") -> dict[str, RuleSet]:
    """Return the rules of servers if the version of the rules is newer than in ``held`` (server -> version); one
    statement if no version is newer. ``host``: only servers that may exist on this host."""
    if not held:
        return {}
    there = servers.placed_on(host) if host else INSTANCES.c.deleted == sa.false()
    rows = connection.execute(
        sa.select(INSTANCES.c.uuid, VERSIONS.c.version)
        .join(VERSIONS, VERSIONS.c.name == versions.rules_of(INSTANCES.c.project_id))
        .where(INSTANCES.c.uuid.in_(list(held)), there)).all()
    return rules_for(connection, [row.uuid for row in rows if row.version > held[row.uuid]])
