"""Property tests of claims and quotas: after any sequence of operations the database matches the model."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from nova import conf, exception
from nova.db import tables
from nova.db.accounts import quotas
from nova.db.hosts import allocations, compute_nodes, services
from nova.objects.base import new_uuid
from nova.objects.hosts.node import ComputeNode, Inventory, Provider
from nova.objects.hosts.scheduling import Selection
from tests.unit.conductor.books import account
from tests.unit.databases import new_database, open_database

NODES = ("n1", "n2", "n3")
PROJECTS = ("p1", "p2")
CLASSES = ("VCPU", "MEMORY_MB", "CUSTOM_GPU")
_AMOUNTS = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 4), max_size=3)
_INVENTORIES = st.fixed_dictionaries({
    name: st.builds(Inventory, total=st.integers(1, 8), reserved=st.integers(0, 1),
                    ratio=st.sampled_from((1.0, 1.5, 4.0)), min_unit=st.sampled_from((1, 1, 2)),
                    max_unit=st.sampled_from((2, 3, 100)), step_size=st.sampled_from((1, 1, 2)))
    for name in CLASSES})


@dataclasses.dataclass
class Claim:
    node: str
    resources: dict[str, int]


_CLAIMS = st.builds(Claim, st.sampled_from(NODES), _AMOUNTS)


class Holder:
    """A server in the model with its claim, and a second claim of its migration during a move."""

    def __init__(self, claim: Claim, project: str) -> None:
        self.claim, self.project = claim, project
        self.migration = ""
        self.second: Claim | None = None

    def claims(self) -> list[Claim]:
        return [claim for claim in (self.claim, self.second) if claim is not None]


class Claims(RuleBasedStateMachine):
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        conf.register()
        self.directory = tempfile.TemporaryDirectory()
        self.db = open_database(new_database(self.directory.name))
        self.uuids = {name: new_uuid() for name in NODES}
        self.gpus = {name: new_uuid() for name in NODES}
        self.inventories: dict[str, dict[str, Inventory]] = {}
        self.holders: dict[str, Holder] = {}
        self.limits = dict.fromkeys(PROJECTS, -1)
        self.io = dict.fromkeys(NODES, 0)

    def teardown(self) -> None:
        self.db.close()
        self.directory.cleanup()

    @initialize(inventories=st.fixed_dictionaries(dict.fromkeys(NODES, _INVENTORIES)))
    def register(self, inventories: dict[str, dict[str, Inventory]]) -> None:
        self.db.write(lambda connection: services.register(connection, "h", "nova-compute", "compute", 1))
        self.inventories = inventories
        self._report()
        for project in PROJECTS:
            self.limit(project, -1)

    def _report(self) -> None:
        """Report nodes as trees: the GPUs are a child provider."""
        def provider(uuid: str, name: str, classes: tuple[str, ...], parent: str | None = None) -> Provider:
            return Provider(uuid=uuid, name=uuid, parent_uuid=parent, inventories={
                each: self.inventories[name][each] for each in classes})

        nodes = [ComputeNode(uuid=self.uuids[name], host="h", hypervisor_hostname=name, hypervisor_type="fake",
                             hypervisor_version=1, provider=provider(self.uuids[name], name, CLASSES[:2]),
                             children=[provider(self.gpus[name], name, CLASSES[2:], self.uuids[name])])
                 for name in NODES]
        self.db.write(lambda connection: compute_nodes.report(connection, "h", nodes))

    # --- model ---------------------------------------------------------------------------------------
    def _claims(self, node: str) -> list[Claim]:
        return [claim for holder in self.holders.values() for claim in holder.claims() if claim.node == node]

    def _used(self, node: str, name: str) -> int:
        return sum(claim.resources.get(name, 0) for claim in self._claims(node))

    def _fits(self, claim: Claim) -> bool:
        return all(self._used(claim.node, name) + amount <= (inventory.total - inventory.reserved) * inventory.ratio
                   and inventory.min_unit <= amount <= inventory.max_unit and amount % inventory.step_size == 0
                   for name, amount in claim.resources.items()
                   for inventory in [self.inventories[claim.node][name]])

    def _selection(self, claim: Claim) -> Selection:
        root, gpu = self.uuids[claim.node], self.gpus[claim.node]
        allocated: dict[str, dict[str, int]] = {root: {}}
        for name, amount in claim.resources.items():
            allocated.setdefault(gpu if name == CLASSES[2] else root, {})[name] = amount
        return Selection(node_uuid=root, host="h", node=claim.node, allocations=allocated)

    def _take(self, connection: sa.Connection, consumer: str, claim: Claim, project: str) -> None:
        allocations.claim(connection, consumer, self._selection(claim), claim.resources, project, "u")

    def _instances(self, project: str) -> int:
        return sum(holder.project == project for holder in self.holders.values())

    # --- rules -----------------------------------------------------------------------------------------
    @rule(target=held, claim=_CLAIMS, project=st.sampled_from(PROJECTS))
    def boot(self, claim: Claim, project: str) -> str:
        """Take quota and claim in a single transaction, so that both succeed or both fail."""
        consumer = new_uuid()

        def transaction(connection: sa.Connection) -> None:
            quotas.take(connection, quotas.room(connection, account(connection, project, "u"), 1, 1, 1, 1))
            self._take(connection, consumer, claim, project)

        expected: Any = None
        if 0 <= self.limits[project] <= self._instances(project):
            expected = exception.OverQuota
        elif not self._fits(claim):
            expected = exception.ClaimLost
        if expected is not None:
            with pytest.raises(expected):
                self.db.write(transaction)
            return ""
        self.db.write(transaction)
        self.holders[consumer] = Holder(claim, project)
        self.io[claim.node] += 1
        return consumer

    @rule(consumer=held, claim=_CLAIMS)
    def move(self, consumer: str, claim: Claim) -> None:
        """Add a claim of a migration, on another node or on the same node."""
        holder = self.holders.get(consumer)
        if holder is None or holder.second is not None:
            return
        migration = new_uuid()

        def transaction(connection: sa.Connection) -> None:
            self._take(connection, migration, claim, holder.project)

        if not self._fits(claim):
            with pytest.raises(exception.ClaimLost):
                self.db.write(transaction)
            return
        self.db.write(transaction)
        holder.migration, holder.second = migration, claim
        self.io[claim.node] += 1

    @rule(consumer=held, confirmed=st.booleans())
    def end_move(self, consumer: str, confirmed: bool) -> None:
        """Confirm or revert: confirm releases the first claim and rekeys the second, revert releases the second."""
        holder = self.holders.get(consumer)
        if holder is None or holder.second is None:
            return

        def transaction(connection: sa.Connection) -> list[str]:
            if not confirmed:
                return allocations.release(connection, holder.migration)
            released = allocations.release(connection, consumer)
            allocations.rekey(connection, holder.migration, consumer)
            return released

        dropped = holder.claim if confirmed else holder.second
        assert self.db.write(transaction) == [self.uuids[dropped.node]]
        if confirmed:
            holder.claim = holder.second
        holder.second = None

    @rule(consumer=held, failed=st.sampled_from((True, False, None)))
    def finish(self, consumer: str, failed: bool | None) -> None:
        holder = self.holders.get(consumer)
        if holder is None:
            return
        node = holder.claim.node
        assert self.db.read(lambda connection: allocations.root_of(connection, consumer)) == self.uuids[node]
        self.db.write(lambda connection: allocations.finish_io(connection, self.uuids[node], failed))
        self.io[node] = max(0, self.io[node] - 1)

    @rule(consumer=consumes(held), twice=st.booleans())
    def delete(self, consumer: str, twice: bool) -> None:
        holder = self.holders.pop(consumer, None)

        def transaction(connection: sa.Connection) -> list[str]:
            if holder is None:
                return allocations.release(connection, consumer)
            quotas.spend(connection, holder.project, "u", -1, -1, -1)
            return allocations.release(connection, consumer) + allocations.release(connection, holder.migration)

        assert self.db.write(transaction) == (
            [self.uuids[claim.node] for claim in holder.claims()] if holder else [])
        if twice:
            assert self.db.write(lambda connection: allocations.release(connection, consumer)) == []

    @rule(node=st.sampled_from(NODES), inventories=_INVENTORIES)
    def change_hardware(self, node: str, inventories: dict[str, Inventory]) -> None:
        """Change the capacity, possibly below the claims. Existing claims stay, and further claims are refused."""
        self.inventories = {**self.inventories, node: inventories}
        self._report()

    @rule(project=st.sampled_from(PROJECTS), instances=st.integers(-1, 5))
    def change_limit(self, project: str, instances: int) -> None:
        self.limit(project, instances)

    def limit(self, project: str, instances: int) -> None:
        everything = {"instances": instances, "cores": -1, "ram": -1}
        self.db.write(lambda connection: quotas.set_limits(connection, project, None, everything))
        self.limits[project] = instances

    # --- invariants --------------------------------------------------------------------------------------
    @invariant()
    def the_books_are_as_the_model(self) -> None:
        if not self.inventories:
            return
        table, nodes, usages = tables.inventories, tables.compute_nodes, tables.quota_usages

        def read(connection: sa.Connection) -> tuple[Any, Any, Any]:
            return (connection.execute(sa.select(table)).all(), connection.execute(sa.select(nodes)).all(),
                    connection.execute(sa.select(usages)).all())

        inventories, found, used = self.db.read(read)
        names = {uuid: name for uuids in (self.uuids, self.gpus) for name, uuid in uuids.items()}
        for row in inventories:
            assert row.used == self._used(names[row.provider_uuid], row.resource_class)
        for row in found:
            name = names[row.uuid]
            assert row.num_instances == len(self._claims(name))
            assert row.num_io_ops == self.io[name]
        for row in used:
            if row.project_id in PROJECTS:
                assert row.instances == row.cores == row.ram == self._instances(row.project_id)


Claims.TestCase.settings = settings(
    max_examples=int(os.environ.get("NOVA_EXAMPLES", "15")), stateful_step_count=40, deadline=None,
    suppress_health_check=list(HealthCheck))
TestClaims = Claims.TestCase
