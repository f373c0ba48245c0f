"""A storm: parallel clients request all kinds of operations during all kinds of faults.

``pytest tests/crash/test_storm.py --seed 7 --seeds 1`` repeats the plan of seed 7. Without ``--database`` the seeds use
SQLite, PostgreSQL and MariaDB in turn.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
import sqlalchemy as sa

from nova.db import tables
from tests.crash import invariants
from tests.crash.faults import clockwork
from tests.crash.faults.chaos import Chaos
from tests.crash.storm import COMPUTES, ENOUGH, Plan, Storm, make_plan
from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

# Driver methods have latencies, so that faults hit them, and fail sometimes.
_OPTIONS = {
    "fake": {"latency": "spawn:0.4,destroy:0.1,live_migrate:0.5,*:0.15",
             "failure": "spawn:0.04,power_off:0.04,pause:0.04,finish_move:0.06,live_migrate:0.06,attach_volume:0.04,"
                        "rescue:0.06,unrescue:0.06,rebuild:0.06,attach_interface:0.06,detach_interface:0.06",
             "shared_storage": True},
    # Shared volumes let servers with volumes move; removals of volumes are retried soon.
    "volume": {"shared": True, "quota_volumes": -1, "removal_interval": 1, "allow_swap": True},
    "share": {"shared": True},
    # A short timeout, since clients send no requests while they wait for lost messages. Soft-deleted servers can be
    # restored for a moment, and stale access to shares is removed soon.
    "DEFAULT": {"rpc_response_timeout": 5, "stale_share_access_reconcile_interval": 3,
                "reclaim_instance_interval": 6, "allow_resize_to_same_host": True}}


def explicit(config: pytest.Config) -> str | None:
    """Return the database given on the command line, or None."""
    given = [argument for argument in config.invocation_params.args if str(argument).startswith("--database")]
    return str(config.getoption("--database")) if given else None


@pytest.fixture
def plan(request: pytest.FixtureRequest, seed: int) -> Plan:
    return make_plan(seed, explicit(request.config))


@pytest.fixture
def server(request: pytest.FixtureRequest, plan: Plan) -> Server | None:
    """Return the database server of the plan, which is shared by all seeds, or None for SQLite."""
    if plan.database == "sqlite":
        return None
    found: Server = request.getfixturevalue(plan.database)
    return found


@pytest.fixture
def transport_url(rabbitmq: Rabbit) -> str:
    return rabbitmq.new_vhost()


@pytest.fixture
def nova(transport_url: str, server: Server | None, tmp_path: pathlib.Path) -> Iterator[Cluster]:
    with Cluster(transport_url, server.new_database() if server else None, computes=len(COMPUTES),
                 options=_OPTIONS, forked=False, launcher=clockwork.launcher(tmp_path)) as made:
        made.flavor("huge", ram=10**7, disk=1)
        made.flavor("larger", ram=128, disk=1)
        yield made


@pytest.fixture
def image(nova: Cluster) -> str:
    """Create a second image besides that of the servers; the fake hypervisor does not read it."""
    file = nova.directory / "other-image"
    file.write_bytes(b"1" * 512)
    return nova.import_image(file, "other", "raw")


def test_storm_of_faults_leaves_no_pending_operations_or_leftovers(nova: Cluster, plan: Plan, rabbitmq: Rabbit,
                                                                   transport_url: str, server: Server | None,
                                                                   image: str) -> None:
    storm = Storm(nova, plan, image)
    try:
        rage(storm, Chaos(nova, rabbitmq, transport_url, server, storm.note, storm.evacuate))
        nova.restore()
        accepted, deleted = storm.settle()
        took = invariants.check(nova, accepted, deleted=deleted)
        storm.note(f"all holds after {took:.1f} s")
        assert not storm.violations, "\n".join(storm.violations)
        nova.delete_all(invariants.BOUND, at_once=True)
        storm.note(f"all holds after {invariants.check(nova, accepted, deleted=accepted):.1f} s")
        try:
            eventually(lambda: not left_over(nova, storm.volumes), invariants.SLACK, "hosts have deleted volumes")
        finally:
            storm.note(f"what is left over: {left_over(nova, storm.volumes)}")
        assert left_over(nova, storm.volumes) == {}
    except BaseException as error:  # includes pytest.fail
        (nova.directory / "storm.log").write_text(storm.story())
        error.add_note(storm.story())
        raise
    assert sum(storm.answers.values()) >= 100
    assert len(accepted) >= ENOUGH, storm.story()
    print(f"seed {plan.seed} on {plan.database}: {dict(storm.answers)}, all held after {took:.1f} s")


def rage(storm: Storm, chaos: Chaos) -> None:
    """Run clients and faults in parallel to their ends; re-raise the first error."""
    errors: list[BaseException] = []

    def run(what: Callable[[], None]) -> None:
        try:
            what()
        except BaseException as error:  # includes pytest.fail
            errors.append(error)

    threads = [threading.Thread(target=run, args=(what,)) for what in (storm.run, lambda: chaos.run(storm.plan))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def left_over(nova: Cluster, volumes: Sequence[str]) -> dict[str, int]:
    """Return leftovers of servers by table, empty after all servers are deleted.

    ``volumes`` were created separately and are ignored.
    """
    held = {
        "allocations": sa.select(sa.func.count()).select_from(tables.allocations),
        "inventories": sa.select(sa.func.coalesce(sa.func.sum(tables.inventories.c.used), 0)),
        "nodes": sa.select(sa.func.coalesce(sa.func.sum(
            tables.compute_nodes.c.num_instances + tables.compute_nodes.c.num_io_ops), 0)),
        "quotas": sa.select(sa.func.coalesce(sa.func.sum(
            tables.quota_usages.c.instances + tables.quota_usages.c.cores + tables.quota_usages.c.ram), 0)),
        "addresses": sa.select(sa.func.count()).where(
            sa.or_(tables.fixed_ips.c.instance_uuid.is_not(None), tables.fixed_ips.c.vif_id.is_not(None))),
        "migrations": sa.select(sa.func.count()).where(tables.migrations.c.open == sa.true()),
        "volumes": sa.select(sa.func.count()).where(tables.volumes.c.instance_uuid.is_not(None)),
        "boot volumes": sa.select(sa.func.count()).where(tables.volumes.c.uuid.not_in(volumes)),
        "removals": sa.select(sa.func.count()).select_from(tables.volume_removals),
        "members": sa.select(sa.func.count()).select_from(tables.security_group_members),
        "evictions": sa.select(sa.func.count()).select_from(tables.evictions),
        "actions": sa.select(sa.func.count()).where(tables.actions.c.outcome.is_(None)),
    }
    engine = sa.create_engine(nova.database_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        found = {name: int(connection.scalar(statement) or 0) for name, statement in held.items()}
    found["disks"] = len(invariants.disks_of(nova))
    found["files of snapshots"] = len(list(nova.directory.glob("fake-snapshots/*")))
    return {name: count for name, count in found.items() if count}
