"""Jumps of the wall clock of a process or of the database: leases and heartbeats do not depend on it.

Leases are 4 s here and a host counts as down after 10 s; the builds take longer than a lease, so that leases are
renewed under the wrong clock, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from nova.db import tables
from tests.crash import invariants
from tests.crash.faults import clockwork
from tests.integration.cluster import Cluster
from tests.integration.databases import Server
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

_BUILD = 6.0
_DESTROY = 1.5
_SERVERS = 6
# Seconds after which a resize is confirmed, a rescue ended and a shelved server offloaded, and of a wrong clock.
_WINDOW, _WRONG = 3600, 7200
# accepted, place, order; each further attempt is a repeated order.
_ATTEMPTS = 3
_CASES = [(name, seconds) for name in ("conductor-1", "compute-1", "scheduler-1") for seconds in (300, -300)]


@pytest.fixture(scope="module")
def cluster(rabbitmq: Rabbit, postgresql: Server, tmp_path_factory: pytest.TempPathFactory,
            ) -> Iterator[Cluster]:
    windows = dict.fromkeys(("resize_confirm_window", "rescue_timeout", "shelved_offload_time"), _WINDOW)
    options = {"fake": {"latency": f"spawn:{_BUILD},destroy:{_DESTROY}"},
               "DEFAULT": {"rpc_response_timeout": 5, "shelved_poll_interval": 1, **windows}}
    database_url = postgresql.new_database()
    give_own_clock(database_url)
    with Cluster(rabbitmq.new_vhost(), database_url, computes=2, options=options,
                 forked=False, launcher=clockwork.launcher(tmp_path_factory.mktemp("clock"))) as made:
        yield made


@pytest.fixture
def nova(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    for name in cluster.processes:
        clockwork.jump(cluster, name, 0)
    jump_of_database(cluster, 0)
    cluster.restore(60.0)
    cluster.audit()


def attempts(nova: Cluster) -> int:
    """Return the maximum of attempts of an action of an existing server."""
    engine = sa.create_engine(nova.database_url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        return int(connection.scalar(sa.select(sa.func.max(tables.actions.c.attempt)).where(
            tables.actions.c.instance_uuid == tables.instances.c.uuid,
            tables.instances.c.deleted == sa.false())) or 0)


def down(nova: Cluster) -> set[str]:
    return {service["host"] for service in nova.api.get("/os-services")["services"] if service["state"] != "up"}


def give_own_clock(database_url: str) -> None:
    """Replace PostgreSQL's clock function in this database by a function with an offset."""
    run(database_url, "CREATE TABLE jump AS SELECT 0 AS seconds",
        "CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT "
        "pg_catalog.clock_timestamp() + (SELECT seconds FROM public.jump) * interval '1 second' $$",
        f"ALTER DATABASE {sa.make_url(database_url).database} SET search_path = public, pg_catalog")


def jump_of_database(nova: Cluster, seconds: int) -> None:
    """Set the clock of the database ahead by ``seconds``."""
    run(nova.database_url, "UPDATE jump SET seconds = :seconds", seconds=seconds)


def run(database_url: str, *statements: str, **values: int) -> None:
    engine = sa.create_engine(database_url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement), values)


def full(cases: list[tuple[str, int]]) -> list[object]:
    """Mark all cases except the first as excluded by --quick."""
    return [pytest.param(*case, id=f"{case[0]}{case[1]:+d}", marks=[pytest.mark.full] if case != cases[0] else [])
            for case in cases]


@pytest.mark.parametrize(("name", "seconds"), full(_CASES))
def test_builds_succeed_after_a_clock_jump_of_a_process(nova: Cluster, name: str, seconds: int) -> None:
    accepted = nova.boot_many(_SERVERS, "before")
    time.sleep(1)
    clockwork.jump(nova, name, seconds)
    accepted += nova.boot_many(_SERVERS, "after")
    until, seen = time.monotonic() + 2 * _BUILD, set()
    while time.monotonic() < until:
        seen |= down(nova)
        time.sleep(0.5)
    assert not seen, "running services counted as down"
    nova.all_active(accepted, 30)
    invariants.check(nova, accepted)
    assert {count for uuid, count in invariants.times_built(nova).items() if uuid in accepted} == {1}
    assert attempts(nova) <= _ATTEMPTS, "leases of running steps expired"


@pytest.mark.full
@pytest.mark.parametrize("seconds", [300, -300])
def test_operations_of_a_dead_conductor_with_a_wrong_clock_are_resumed(nova: Cluster, seconds: int) -> None:
    """Kill a conductor that wrote leases with a wrong clock."""
    clockwork.jump(nova, "conductor-1", seconds)
    time.sleep(2)
    accepted = nova.boot_many(_SERVERS, "held")
    nova.kill("conductor-1")
    nova.kill("compute-1")
    nova.start("compute-1")
    nova.all_active(accepted, 60)
    nova.start("conductor-1")
    nova.wait_ready()
    invariants.check(nova, accepted)


@pytest.mark.full
@pytest.mark.parametrize("seconds", [300, -300])
def test_dead_host_is_detected_with_wrong_conductor_clocks(nova: Cluster, seconds: int) -> None:
    """Kill a host while the clocks of all conductors are wrong; its servers can be deleted meanwhile."""
    accepted = nova.boot_many(_SERVERS, "lost")
    nova.all_active(accepted, 60)
    for number in (1, 2):
        clockwork.jump(nova, f"conductor-{number}", seconds)
    nova.kill("compute-1")
    begin = time.monotonic()
    while "compute-1" not in down(nova):
        assert time.monotonic() - begin < 30, "the dead host was not detected"
        time.sleep(0.5)
    assert time.monotonic() - begin > 5, "the host counted as down too soon"
    for uuid in accepted:
        nova.api.delete(f"/servers/{uuid}")
    nova.api.wait_gone(accepted, 30)
    nova.start("compute-1")
    nova.wait_ready()
    invariants.check(nova, accepted, deleted=accepted)


@pytest.mark.parametrize("seconds", [300, pytest.param(-300, marks=pytest.mark.full)])
def test_clock_jump_of_the_database_marks_no_host_down(nova: Cluster, seconds: int) -> None:
    """Delete and build servers after the jump, then kill a host, which must be detected."""
    accepted = nova.boot_many(_SERVERS, "there")
    nova.all_active(accepted, 60)
    building = nova.boot_many(_SERVERS, "building")
    jump_of_database(nova, seconds)
    for uuid in accepted:
        nova.api.delete(f"/servers/{uuid}")
    waiting = set(accepted)
    until, seen = time.monotonic() + 30, set()
    while waiting:
        assert time.monotonic() < until, f"not deleted: {waiting}"
        gone = waiting - nova.api.servers().keys()
        there = {uuid for guests in invariants.guests_of(nova).values() for uuid in guests}
        assert not gone & there, "deleted without its running host"
        waiting -= gone
        seen |= down(nova)
    assert not seen, "running services counted as down"
    nova.all_active(building, 60)
    invariants.check(nova, building, deleted=accepted)
    assert attempts(nova) <= _ATTEMPTS, "leases of running steps expired"
    nova.kill("compute-1")
    begin = time.monotonic()
    while "compute-1" not in down(nova):
        assert time.monotonic() - begin < 40, "the dead host was not detected"
        time.sleep(0.5)


@pytest.mark.full
def test_timed_actions_are_not_early_after_a_database_clock_jump(nova: Cluster) -> None:
    """Wait until the conductors use the database's clock again after its jump."""
    servers = nova.boot_many(3, "waiting")
    nova.all_active(servers, 60)
    expected = let_wait(nova, *servers)
    jump_of_database(nova, _WRONG)
    time.sleep(20)
    assert {uuid: nova.api.show(uuid)["status"] for uuid in expected} == expected
    assert not [uuid for uuid in expected if nova.api.show(uuid)["OS-EXT-STS:task_state"]]


def let_wait(nova: Cluster, resized: str, rescued: str, shelved: str) -> dict[str, str]:
    """Bring servers into states that conductors end after ``_WINDOW``; return the status of each."""
    if not any(flavor["id"] == "larger" for flavor in nova.api.get("/flavors")["flavors"]):
        nova.flavor("larger", ram=128, disk=1)
    nova.api.action(resized, "resize", {"flavorRef": "larger"})
    nova.api.action(rescued, "rescue")
    nova.api.action(shelved, "shelve")
    expected = {resized: "VERIFY_RESIZE", rescued: "RESCUE", shelved: "SHELVED"}
    for uuid, status in expected.items():
        nova.api.wait(uuid, status, 60)
    return expected


@pytest.mark.parametrize("seconds", [_WRONG, pytest.param(-_WRONG, marks=pytest.mark.full)])
def test_timed_actions_are_not_early_with_a_wrong_conductor_clock(nova: Cluster, seconds: int) -> None:
    """Let a conductor with a clock ahead check times of the other conductor, or a conductor behind write them."""
    wrong, right = "conductor-1", "conductor-2"
    resized, rescued, shelved = nova.boot_many(3, "waiting")
    nova.all_active([resized, rescued, shelved], 60)
    nova.kill(right if seconds < 0 else wrong)
    clockwork.jump(nova, wrong, seconds)
    expected = let_wait(nova, resized, rescued, shelved)
    # A conductor checks for overdue actions as soon as it has started.
    process = nova.processes[right if seconds < 0 else wrong]
    before = process.log.read_text().count("is ready")
    nova.start(process.name)
    eventually(lambda: process.log.read_text().count("is ready") > before, 90, "the process is ready")
    time.sleep(5)
    assert {uuid: nova.api.show(uuid)["status"] for uuid in expected} == expected
    assert not [uuid for uuid in expected if nova.api.show(uuid)["OS-EXT-STS:task_state"]]
