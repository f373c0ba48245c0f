"""The core of a conductor on a real database, with the message bus replaced by lists of sent messages."""

from __future__ import annotations

import functools
from typing import Any

import oslo_messaging as messaging
import sqlalchemy as sa

from nova import bus, context, exception
from nova.conductor.core import Core
from nova.conductor.feeds.deltas import FleetAnnouncer
from nova.conductor.feeds.feed import FiltersFeed
from nova.conf import CONF
from nova.db import tables
from nova.db.accounts import quotas
from nova.db.servers import servers
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import new_uuid, utcnow
from nova.objects.hosts.node import ComputeNode, Inventory, Provider
from nova.objects.hosts.scheduling import FleetDelta, Selection
from nova.objects.images.image import Image
from nova.objects.networks.network import FilterRule, GroupFilter, Peers, RuleSet, ServedDomain
from nova.objects.servers.instance import Instance
from nova.objects.volumes.volume import VolumeRemoval
from tests.statement_counter import StatementCounter
from tests.unit.databases import open_database


class Sent:
    """A replacement of the message bus that records messages to schedulers and compute hosts."""

    def __init__(self) -> None:
        self.deltas: list[FleetDelta] = []
        self.rules: list[tuple[str, str, list[FilterRule]]] = []
        self.rule_sets: list[RuleSet] = []
        self.filters: list[tuple[str, list[GroupFilter]]] = []
        self.interrupts: list[tuple[str, str, str]] = []
        self.peers: list[tuple[str, Peers]] = []
        self.names: list[tuple[str, list[ServedDomain]]] = []
        self.volumes: list[tuple[str, list[VolumeRemoval]]] = []
        self.broken = False
        self.images: list[tuple[str, list[str]]] = []

    def delta(self, ctx: context.RequestContext, delta: FleetDelta) -> None:
        if self.broken:
            raise OSError("the broker is away")
        self.deltas.append(delta)

    def take(self) -> list[FleetDelta]:
        taken, self.deltas = self.deltas, []
        return taken


class _Host:
    def __init__(self, sent: Sent, host: str) -> None:
        self.sent, self.host = sent, host

    def refresh_peers(self, ctx: context.RequestContext, peers: Peers) -> None:
        self.sent.peers.append((self.host, peers))

    def refresh_names(self, ctx: context.RequestContext, domains: list[ServedDomain]) -> None:
        self.sent.names.append((self.host, domains))

    def refresh_rules(self, ctx: context.RequestContext, uuid: str, rules: RuleSet) -> None:
        self.sent.rules.append((self.host, uuid, rules.rules))
        self.sent.rule_sets.append(rules)

    def refresh_groups(self, ctx: context.RequestContext, filters: list[GroupFilter]) -> None:
        self.sent.filters.append((self.host, filters))

    def interrupt(self, ctx: context.RequestContext, action_uuid: str, what: str) -> None:
        if self.sent.broken:
            raise exception.ServiceUnavailable()
        self.sent.interrupts.append((self.host, action_uuid, what))

    def cache_images(self, ctx: context.RequestContext, images: list[Image]) -> None:
        if self.sent.broken:
            raise exception.ServiceUnavailable()
        self.sent.images.append((self.host, [image.id for image in images]))

    def remove_volumes(self, ctx: context.RequestContext, removals: list[VolumeRemoval]) -> None:
        self.sent.volumes.append((self.host, removals))


@functools.cache
def _broker() -> messaging.RPCTransport:
    """Return a transport to an in-memory broker without queues."""
    return bus.connect(CONF, url="nova-memory://books")


class Books(Core):
    """A Core for tests; ``sent`` records the sent messages, ``counter`` the executed statements."""

    def __init__(self, url: str) -> None:
        self.sent = Sent()
        db = open_database(url)
        super().__init__(name="conductor@test", db=db, transport=_broker(), scheduler=self.sent,  # type: ignore[arg-type]
                         compute=None, fleet=FleetAnnouncer(self.sent, "conductor@test"),  # type: ignore[arg-type]
                         usage=None)  # type: ignore[arg-type]
        self.counter = StatementCounter(db)

    def compute_at(self, host: str) -> Any:
        return _Host(self.sent, host)

    def told(self) -> dict[str, list[GroupFilter]]:
        """Return the security group updates sent since the last call, by host."""
        self.filters.flush(everything=True)
        told, self.sent.filters = self.sent.filters, []
        assert len(dict(told)) == len(told), "a host received two messages"
        return dict(told)

    def statements(self) -> list[str]:
        """Return the statements since the last call, without BEGIN."""
        return self.counter.take()

    def reset(self) -> None:
        """Delete all rows, recorded messages and counts."""
        def transaction(connection: sa.Connection) -> None:
            for table in tables.metadata.tables.values():
                if table is not tables.deployment:
                    connection.execute(sa.delete(table))

        self.db.write(transaction)
        self.sent = self.scheduler = Sent()  # type: ignore[assignment]
        self.fleet = FleetAnnouncer(self.sent, self.name)  # type: ignore[arg-type]
        self.filters = FiltersFeed(self.db, self.compute_at)
        self.counter.take()


def ctx(project: str = "p1", user: str = "u1") -> context.RequestContext:
    return context.RequestContext(project_id=project, user_id=user, overwrite=False)


def node(host: str, name: str | None = None, vcpus: int = 8, memory_mb: int = 16384, ratio: float = 4.0,
         **changes: Any) -> ComputeNode:
    """Return a node as reported by a driver, without a uuid."""
    return ComputeNode(
        host=host, hypervisor_hostname=name or host, hypervisor_type="fake", hypervisor_version=1000,
        host_ip="192.0.2.1", cpu_info={"arch": "x86_64", "features": ["sse"]},
        supported_instances=[("x86_64", "kvm", "hvm")], **changes,
        provider=Provider(uuid="", name=name or host, traits=["COMPUTE_NODE", "HW_ARCH_X86_64"], inventories={
            "VCPU": Inventory(total=vcpus, ratio=ratio, max_unit=vcpus),
            "MEMORY_MB": Inventory(total=memory_mb, reserved=512, max_unit=memory_mb),
            "DISK_GB": Inventory(total=100, max_unit=100)}))


def at(node_uuid: str, **changes: Any) -> Selection:
    """Return the selection of a node by a scheduler."""
    return Selection(node_uuid=node_uuid, host="h", node="n", **changes)


def flavor(name: str = "m1.tiny", **changes: Any) -> Flavor:
    return Flavor(**{"flavorid": name, "name": name, "memory_mb": 512, "vcpus": 1, "root_gb": 1, **changes})


def account(connection: sa.Connection, project_id: str, user_id: str) -> quotas.Account:
    """Return the limits and the usage of a project and a user in it, read without a flavor."""
    project, user = quotas.explicit(connection, project_id, user_id)
    usages = tables.quota_usages
    stored = connection.execute(sa.select(usages).where(
        usages.c.project_id == project_id, usages.c.user_id.in_(["", user_id])))
    used = {row.user_id: {name: getattr(row, name) for name in quotas.COUNTED} for row in stored}
    return quotas.Account(project_id, user_id, project, user, used)


def server(core: Core, host: str | None = None, project: str = "p1", **changes: Any) -> Instance:
    """Insert the row of a server built on ``host`` and return it."""
    instance = Instance(uuid=new_uuid(), project_id=project, user_id="u1", display_name="vm", hostname="vm", host=host,
                        flavor=flavor(), created_at=utcnow(), **changes)
    core.db.write(lambda connection: servers.insert(connection, [instance]))
    return instance


def set_columns(core: Core, table: sa.Table, where: sa.ColumnElement[bool], **values: Any) -> None:
    core.db.write(lambda connection: connection.execute(sa.update(table).where(where).values(values)))
