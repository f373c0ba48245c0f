"""Every list of a conductor uses an index, or reads a table that only operators fill.

The lists are enumerated from the interfaces of nova.rpcapi: a new list must be added here. test_list_plans.py measures
lists of servers, of migrations and of instance actions.
"""

from __future__ import annotations

import datetime
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from nova import rpcapi
from nova.db.accounts import ec2_ids, flavors, keypairs, usages
from nova.db.hosts import aggregates, compute_nodes, services
from nova.db.networks import floating_ip_dns, floating_ips, networks, security_groups
from nova.db.placement import candidates, consumers, names, providers
from nova.db.servers import consoles, evictions, server_groups, server_migrations
from nova.db.volumes import shares, volumes
from nova.objects.accounts.flavor import FlavorQuery
from nova.objects.hosts.placement import (
    RESOURCE_CLASS,
    TRAIT,
    CandidateRequest,
    ProviderFilter,
    RequestedGroup,
)
from nova.objects.networks.network import Domain
from nova.objects.servers.console import ConsoleSession
from nova.rpcapi import Interface
from tests.unit.conductor.books import Books

MOMENT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
P, U, LIMIT = "project", "user", 10
# Tables that may be read in full, and what bounds the number of their rows.
BOUNDED = {
    "services": "hosts", "compute_nodes": "hosts", "providers": "hosts", "inventories": "hosts",
    "aggregates": "aggregates, at most a few for each host", "flavors": "flavors, made by operators",
    "dns_domains": "1,000 domains", "security_group_default_rules": "rules, made by operators",
    "floating_ips": "floating addresses, made by operators", "networks": "embedded networks",
    "root": "an alias of providers", "scan": "different values of a column, the result of a recursion",
}
# Lists of all projects (for operators only) that read the whole table: security groups have no pages; usages
# skip the servers of other periods in an index over both times.
WHOLE = {"security_groups.index of all projects", "usages.index of all projects"}
# Not lists: the reply to a change or a report is as long as the request, or no growing table is read.
NO_LISTS = {
    "external_events.create", "flavors.set_extra_specs", "flavors.add_access", "flavors.remove_access",
    "guests.report_nodes", "guests.share_nodes", "servers.set_metadata", "servers.set_tags", "network_hosts.present",
    "network_hosts.rules", "network_hosts.names", "guests.described", "guests.whereabouts",
    "volume_snapshots.index",  # Cinder pages it
}
# Measured with rows in test_list_plans.py; guests.on_host and guests.expected read pages of ix_instances_host.
ELSEWHERE = {"servers.index", "servers.page", "hypervisors.servers", "migrations.index", "actions.index",
             "guests.on_host", "guests.expected"}
QUERIES: dict[str, Callable[[sa.Connection], Any]] = {
    "aggregates.index": aggregates.index,
    "zones.index": aggregates.zones,
    "zones.detail": services.index,
    "consoles.over": lambda c: consoles.over(
        c, [ConsoleSession(ident="i", instance_uuid="i", since=0)], ()),
    "ec2_ids.assign": lambda c: [ec2_ids.existing(c, kind, ["uuid"]) for kind in ("i", "vol")],
    "ec2_ids.assign of new objects": lambda c: ec2_ids.assign(c, "vol", ["uuid"]),
    "ec2_ids.resolve": lambda c: [ec2_ids.resolve(c, kind, [1]) for kind in ("i", "vol")],
    "flavors.access": lambda c: flavors._access(c, 1),
    "fleet.page": lambda c: compute_nodes.states(c, "node", LIMIT),
    "floating_ip_dns.index": floating_ip_dns.index,
    "floating_ip_dns.index of a project": lambda c: floating_ip_dns.index(c, P),
    "floating_ip_dns.entries_of": lambda c: floating_ip_dns.entries_of(c, "example.org", "203.0.113.1"),
    "floating_ips.pools": floating_ips.pools,
    "floating_ips.index of all projects": floating_ips.index,
    "floating_ips.index": lambda c: floating_ips.index(c, P),
    "floating_ips.on_host": lambda c: floating_ips.on_host(c, "host"),
    "guests.evictions": lambda c: evictions.of_host(c, "host", LIMIT, None),
    "hypervisors.index": compute_nodes.index,
    "hypervisors.index by name, of a host": lambda c: compute_nodes.index(c, "name", LIMIT, None, "host"),
    "keypairs.index": lambda c: keypairs.index(c, U, LIMIT),
    "migrations.in_progress": lambda c: server_migrations.in_progress(c, "instance"),
    "networks.index": networks.index,
    "networks.index of a project": lambda c: networks.index(c, P),
    "placement.consumers_of": lambda c: consumers.of_provider(c, "provider"),
    "placement.find_candidates": lambda c: candidates.find(c, CandidateRequest(limit=LIMIT, groups=[
        RequestedGroup(resources={"VCPU": 1}, required=[["COMPUTE_NODE"]], member_of=[["aggregate"]])])),
    "placement.index": lambda c: providers.index(c, ProviderFilter()),
    "placement.index by everything": lambda c: providers.index(c, ProviderFilter(
        name="name", in_tree="uuid", resources={"VCPU": 1}, required=[["COMPUTE_NODE"]], member_of=[["aggregate"]])),
    "placement.list_names of classes": lambda c: names.index(c, RESOURCE_CLASS),
    "placement.list_names of traits": lambda c: names.index(c, TRAIT),
    "placement.usages": lambda c: consumers.usages(c, P, U),
    "security_group_default_rules.index": security_groups.default_rules,
    "security_groups.index of all projects": security_groups.index,
    "security_groups.index": lambda c: security_groups.index(c, P),
    "server_groups.index of all projects": lambda c: server_groups.index(c, None, LIMIT, 5),
    "server_groups.index": lambda c: server_groups.index(c, P, LIMIT, 5),
    "services.index": services.index,
    "services.index of a host": lambda c: services.index(c, "host", "nova-compute"),
    "shares.index of all projects": lambda c: shares.index(c, None, LIMIT, 5),
    "shares.index": lambda c: shares.index(c, P, LIMIT, 5),
    "usages.index": lambda c: usages.index(c, MOMENT, MOMENT, LIMIT, P),
    "usages.index of all projects": lambda c: usages.index(c, MOMENT, MOMENT, LIMIT),
    "volumes.index of all projects": lambda c: volumes.index(c, None, LIMIT, 5),
    "volumes.index": lambda c: volumes.index(c, P, LIMIT, 5),
    "usages.audit_page": lambda c: usages.audit_page(c, MOMENT, MOMENT, 5, LIMIT),
    **{f"flavors.index by {key}": lambda c, key=key: flavors.index(  # type: ignore[misc]
        c, FlavorQuery(sort_key=key, sort_dir="asc", project_id=P, is_public=True, name="m1", min_ram=1, min_disk=1))
       for key in sorted(flavors.SORT_KEYS)},
}


def lists() -> set[str]:
    """Return the methods of conductors that return a list, a map or a page."""
    found = set()
    for module in pkgutil.walk_packages(rpcapi.__path__, "nova.rpcapi."):
        for interface in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(interface) and issubclass(interface, Interface) and interface is not Interface \
                    and interface.topic == rpcapi.CONDUCTOR:
                for name in interface.methods():
                    answer = inspect.formatannotation(inspect.signature(getattr(interface, name)).return_annotation)
                    if answer.startswith(("list", "dict")) or answer.endswith("Page"):
                        found.add(f"{interface.namespace}.{name}")
    return found


def scans(connection: sa.Connection, query: Callable[[sa.Connection], Any]) -> list[str]:
    """Return the steps of SQLite's plans that read a table from its beginning to its end."""
    noted: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        noted.append((statement, parameters))

    sa.event.listen(connection, "before_cursor_execute", note)
    query(connection)
    sa.event.remove(connection, "before_cursor_execute", note)
    assert noted, "the list executed no statement"
    found = []
    for statement, parameters in noted:
        plan = [str(row[3]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        # A page in the order of an index ends after its limit and offset.
        page = "LIMIT" in statement and "WHERE" not in statement and not any("TEMP B-TREE" in step for step in plan)
        # (An empty IN, and the result of a subquery, whose tables have their own steps.)
        found += [f"{step} ({statement})" for step in plan if step.startswith("SCAN ") and not page
                  and step.split()[1] not in {*BOUNDED, "CONSTANT", "anon_1"} and "(subquery-" not in step]
    return found


def test_every_list_method_of_the_rpc_interfaces_is_covered() -> None:
    covered = {name.split(" ")[0] for name in QUERIES} | ELSEWHERE | NO_LISTS
    covered -= {"usages.audit_page", "placement.find_candidates"}  # read by a background task; not only a list
    print(f"{len(lists())} methods return lists: the plans of {len(QUERIES)} statements are examined, of which "
          f"{sorted(WHOLE)} read a table; measured with rows: {sorted(ELSEWHERE)}; no lists: {sorted(NO_LISTS)}")
    assert lists() == covered


@pytest.mark.parametrize("name", QUERIES)
def test_list_scans_no_growing_table(core: Books, name: str) -> None:
    core.db.write(lambda connection: floating_ip_dns.put_domain(connection, Domain(
        domain="example.org", scope="public")))
    found = core.db.read(lambda connection: scans(connection, QUERIES[name]))
    assert bool(found) == (name in WHOLE), "\n".join(found)


def test_table_scan_is_detected(core: Books) -> None:
    """The statements filter and sort by a column without an index."""
    for statement in ("SELECT * FROM volumes WHERE name = 'x' LIMIT 5", "SELECT * FROM volumes ORDER BY name LIMIT 5"):
        assert core.db.read(lambda connection, statement=statement: scans(  # type: ignore[misc]
            connection, lambda c: c.exec_driver_sql(statement).all()))
