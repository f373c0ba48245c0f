"""Claims and quotas against a model: whatever comes in whatever order, the books say what a list of holders says."""

from __future__ import annotations

import os
import pathlib
import tempfile
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from nova import conf, exception
from nova.db import allocations, compute_nodes, migrate, models, quotas, services
from nova.db.engine import Database
from nova.objects.base import new_uuid
from nova.objects.compute import ComputeNode, Inventory, Provider

NODES = ("n1", "n2", "n3")
PROJECTS = ("p1", "p2")
CLASSES = ("VCPU", "MEMORY_MB", "CUSTOM_GPU")
_AMOUNTS = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 4), max_size=3)
_INVENTORIES = st.fixed_dictionaries({
    name: st.builds(Inventory, total=st.integers(1, 8), reserved=st.integers(0, 1),
                    ratio=st.sampled_from((1.0, 1.5, 4.0)))
    for name in CLASSES})


class Holder:
    """One server in the model: what it holds, and where."""

    def __init__(self, consumer: str, node: str, resources: dict[str, int], project: str) -> None:
        self.consumer, self.node, self.resources, self.project = consumer, node, resources, project
        self.io = 1


class Claims(RuleBasedStateMachine):
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        conf.register()
        self.directory = tempfile.TemporaryDirectory()
        url = f"sqlite:///{pathlib.Path(self.directory.name)}/nova.sqlite"
        migrate.sync(url)
        self.db = Database(url)
        self.uuids = {name: new_uuid() for name in NODES}
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
        nodes = [ComputeNode(uuid=self.uuids[name], host="h", hypervisor_hostname=name, hypervisor_type="fake",
                             hypervisor_version=1, provider=Provider(
                                 uuid=self.uuids[name], name=name, inventories=self.inventories[name]))
                 for name in NODES]
        self.db.write(lambda connection: compute_nodes.report(connection, "h", nodes))

    # --- what the model says -------------------------------------------------------------------------
    def _used(self, node: str, name: str) -> int:
        return sum(holder.resources.get(name, 0) for holder in self.holders.values() if holder.node == node)

    def _fits(self, node: str, resources: dict[str, int]) -> bool:
        return all(self._used(node, name) + amount <= int((inventory.total - inventory.reserved) * inventory.ratio)
                   for name, amount in resources.items() for inventory in [self.inventories[node][name]])

    def _instances(self, project: str) -> int:
        return sum(holder.project == project for holder in self.holders.values())

    # --- what happens ----------------------------------------------------------------------------------
    @rule(target=held, node=st.sampled_from(NODES), resources=_AMOUNTS, project=st.sampled_from(PROJECTS))
    def boot(self, node: str, resources: dict[str, int], project: str) -> str:
        """Quota and claim in one transaction: both, or neither."""
        consumer = new_uuid()

        def transaction(connection: sa.Connection) -> None:
            quotas.reserve(connection, project, "u", 1, 1, 1, 1)
            allocations.claim(connection, consumer, self.uuids[node], resources, project, "u")

        expected: Any = None
        if 0 <= self.limits[project] <= self._instances(project):
            expected = exception.OverQuota
        elif not self._fits(node, resources):
            expected = exception.ClaimLost
        if expected is not None:
            with pytest.raises(expected):
                self.db.write(transaction)
            return ""
        self.db.write(transaction)
        self.holders[consumer] = Holder(consumer, node, resources, project)
        self.io[node] += 1
        return consumer

    @rule(consumer=held, failed=st.sampled_from((True, False, None)))
    def finish(self, consumer: str, failed: bool | None) -> None:
        holder = self.holders.get(consumer)
        if holder is None:
            return
        self.db.write(lambda connection: allocations.finish_io(connection, self.uuids[holder.node], failed))
        self.io[holder.node] = max(0, self.io[holder.node] - 1)

    @rule(consumer=consumes(held), twice=st.booleans())
    def delete(self, consumer: str, twice: bool) -> None:
        holder = self.holders.pop(consumer, None)

        def transaction(connection: sa.Connection) -> list[str]:
            if holder is not None:
                quotas.release(connection, holder.project, "u", 1, 1, 1)
            return allocations.release(connection, consumer)

        assert self.db.write(transaction) == ([self.uuids[holder.node]] if holder else [])
        if twice:
            assert self.db.write(lambda connection: allocations.release(connection, consumer)) == []

    @rule(node=st.sampled_from(NODES), inventories=_INVENTORIES)
    def change_hardware(self, node: str, inventories: dict[str, Inventory]) -> None:
        """It may shrink below what is claimed: nothing is taken away, and nothing more is given."""
        self.inventories = {**self.inventories, node: inventories}
        self._report()

    @rule(project=st.sampled_from(PROJECTS), instances=st.integers(-1, 5))
    def change_limit(self, project: str, instances: int) -> None:
        self.limit(project, instances)

    def limit(self, project: str, instances: int) -> None:
        everything = {"instances": instances, "cores": -1, "ram": -1}
        self.db.write(lambda connection: quotas.set_limits(connection, project, None, everything))
        self.limits[project] = instances

    # --- what must hold ----------------------------------------------------------------------------------
    @invariant()
    def the_books_are_as_the_model(self) -> None:
        if not self.inventories:
            return
        table, nodes, usages = models.inventories, models.compute_nodes, models.quota_usages

        def read(connection: sa.Connection) -> tuple[Any, Any, Any]:
            return (connection.execute(sa.select(table)).all(), connection.execute(sa.select(nodes)).all(),
                    connection.execute(sa.select(usages)).all())

        inventories, found, used = self.db.read(read)
        names = {uuid: name for name, uuid in self.uuids.items()}
        for row in inventories:
            assert row.used == self._used(names[row.provider_uuid], row.resource_class)
        for row in found:
            name = names[row.uuid]
            assert row.num_instances == sum(holder.node == name for holder in self.holders.values())
            assert row.num_io_ops == self.io[name]
        for row in used:
            if row.project_id in PROJECTS:
                assert row.instances == row.cores == row.ram == self._instances(row.project_id)


Claims.TestCase.settings = settings(
    max_examples=int(os.environ.get("NOVA_EXAMPLES", "15")), stateful_step_count=40, deadline=None,
    suppress_health_check=list(HealthCheck))
TestClaims = Claims.TestCase
