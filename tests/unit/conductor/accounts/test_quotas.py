"""Quota limits: precedence, validation, and enforcement for concurrent requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from nova import exception
from nova.conductor.endpoints.accounts import Flavors, Quotas
from nova.conductor.endpoints.networks import Networks
from nova.db import tables
from nova.db.accounts import quotas
from nova.db.networks import fixed_ips
from nova.objects.base import new_uuid
from nova.objects.networks.network import Network, NetworkRequest
from nova.objects.servers import states
from tests.unit.conductor.books import Books, account, ctx, flavor, server, set_columns


def _together(work: Callable[[], Any], times: int) -> list[Any]:
    """Return the results or exceptions of ``work`` in several threads at the same moment."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def _reserve(core: Books, least: int, most: int, project: str = "p1", user: str = "u1", cores: int = 1,
             ram: int = 512) -> int:
    return core.db.write(lambda connection: _spend(connection, project, user, cores, ram, least, most))


def _spend(connection: sa.Connection, project: str, user: str, *wanted: Any) -> int:
    found = quotas.room(connection, account(connection, project, user), *wanted)
    quotas.take(connection, found)
    return found.count


def _usage(core: Books, user: str | None = None) -> dict[str, int]:
    used = core.db.read(lambda connection: quotas.usage(connection, "p1", user))
    return {name: used[name] for name in ("instances", "cores", "ram")}


def test_account_is_read_with_a_flavor_that_the_project_may_see(core: Books) -> None:
    Flavors(core).create(ctx(), flavor("private", is_public=False))
    Flavors(core).add_access(ctx(), "private", "p1")
    core.db.write(lambda connection: quotas.set_limits(connection, "p1", "u1", {"cores": 3}))
    _reserve(core, 2, 2)
    core.statements()
    read, seen = core.db.read(lambda connection: quotas.account(connection, "p1", "u1", "private"))
    assert len(core.statements()) == 1
    assert (seen.flavorid, seen.is_public, read.of_user) == ("private", False, {"cores": 3})
    assert read.used[""] == read.used["u1"] == {"instances": 2, "cores": 2, "ram": 1024}
    new, _flavor = core.db.read(lambda connection: quotas.account(connection, "p1", "u9", "private"))
    assert (set(new.used), new.of_user, new.of_project["cores"]) == ({""}, {}, 20)
    for project, name in (("p2", "private"), ("p1", "missing")):
        with pytest.raises(exception.FlavorNotFound, match=name):
            core.db.read(lambda connection, of=project, name=name: quotas.account(connection, of, "u1", name))


# --- limits ----------------------------------------------------------------------------------
def test_most_specific_quota_limit_applies(core: Books) -> None:
    endpoint = Quotas(core)
    assert endpoint.get(ctx(), "p1").limits["cores"] == 20
    endpoint.set_class(ctx(), "default", {"cores": 30, "ram": 1000, "instances": 50})
    endpoint.set(ctx(), "p1", {"cores": 40, "ram": 2000})
    endpoint.set(ctx(), "p1", {"cores": 35}, user_id="u1")
    assert [endpoint.get(ctx(), "p1", "u1").limits[name] for name in ("cores", "ram", "instances")] == [35, 2000, 50]
    assert endpoint.get(ctx(), "p1").limits["cores"] == 40
    assert endpoint.get(ctx(), "p2").limits["cores"] == endpoint.defaults(ctx()).limits["cores"] == 30
    assert endpoint.get_class(ctx(), "other").limits["cores"] == 20


def test_update_of_a_quota_limit_keeps_the_other_limits(core: Books) -> None:
    endpoint = Quotas(core)
    endpoint.set(ctx(), "p1", {"cores": 40})
    assert endpoint.set(ctx(), "p1", {"ram": -1}).limits["cores"] == 40


def test_reset_of_quotas_restores_the_defaults(core: Books) -> None:
    endpoint = Quotas(core)
    endpoint.set(ctx(), "p1", {"cores": 40})
    endpoint.set(ctx(), "p1", {"cores": 5}, user_id="u1")
    endpoint.reset(ctx(), "p1", "u1")
    assert endpoint.get(ctx(), "p1", "u1").limits["cores"] == 40
    endpoint.set(ctx(), "p1", {"cores": 5}, user_id="u1")
    endpoint.reset(ctx(), "p1")
    assert endpoint.get(ctx(), "p1", "u1").limits["cores"] == 20


def test_quota_limit_below_usage_requires_force(core: Books) -> None:
    endpoint = Quotas(core)
    _reserve(core, 3, 3)
    with pytest.raises(exception.QuotaBelowUsage, match="Quota limit 2 for instances must be greater than or equal "
                                                        "to already used and reserved 3"):
        endpoint.set(ctx(), "p1", {"instances": 2})
    assert endpoint.set(ctx(), "p1", {"instances": 2}, force=True).limits["instances"] == 2
    assert endpoint.set(ctx(), "p1", {"instances": -1}).limits["instances"] == -1


@pytest.mark.parametrize("limit", [21, -1])
def test_user_quota_above_project_quota_is_refused(core: Books, limit: int) -> None:
    with pytest.raises(exception.QuotaAboveProject, match="must be less than or equal to 20"):
        Quotas(core).set(ctx(), "p1", {"cores": limit}, user_id="u1")


@pytest.mark.parametrize(("project", "limits"), [("p1", {"nonsense": 1}), ("p1", {"cores": -2}),
                                                 ("p1", {"cores": 2**31}), ("class:default", {"cores": 1})])
def test_invalid_quota_limits_are_refused(core: Books, project: str, limits: dict[str, int]) -> None:
    with pytest.raises(exception.InvalidInput):
        Quotas(core).set(ctx(), project, limits)


# --- spending ----------------------------------------------------------------------------------
def test_reservation_is_reduced_to_the_remaining_quota(core: Books) -> None:
    assert _reserve(core, 1, 4, cores=6) == 3
    assert _usage(core) == {"instances": 3, "cores": 18, "ram": 1536} == _usage(core, "u1")


def test_over_quota_error_lists_resources_and_reserves_nothing(core: Books) -> None:
    _reserve(core, 8, 8, cores=2)
    with pytest.raises(exception.OverQuota) as refused:
        _reserve(core, 3, 5, cores=2)
    assert str(refused.value) == ("Quota exceeded for cores, instances: Requested 6, 3, but already used 16, 8 of "
                                  "20, 10 cores, instances")
    assert _usage(core)["instances"] == 8


def test_user_quota_applies_within_the_project_quota(core: Books) -> None:
    Quotas(core).set(ctx(), "p1", {"instances": 2}, user_id="u1")
    assert _reserve(core, 1, 5) == 2
    with pytest.raises(exception.OverQuota, match="instances: Requested 1, but already used 2 of 2 instances"):
        _reserve(core, 1, 1)
    assert _reserve(core, 1, 20, user="u2") == 8


def test_unlimited_quota_allows_any_reservation(core: Books) -> None:
    Quotas(core).set(ctx(), "p1", {"instances": -1, "cores": -1, "ram": -1})
    assert _reserve(core, 1000, 1000, ram=10**6) == 1000


def test_release_of_quota_never_makes_usage_negative(core: Books) -> None:
    _reserve(core, 2, 2)
    core.db.write(lambda connection: quotas.spend(connection, "p1", "u1", -1, -1, -512))
    assert _usage(core) == {"instances": 1, "cores": 1, "ram": 512} == _usage(core, "u1")
    core.db.write(lambda connection: quotas.spend(connection, "p1", "u1", -5, -5, -5000))
    assert _usage(core) == {"instances": 0, "cores": 0, "ram": 0}


def test_concurrent_reservations_never_exceed_the_quota(core: Books) -> None:
    """The first requests of a project have no usage row to lock."""
    results = _together(lambda: _reserve(core, 1, 3), 8)
    granted = [result for result in results if isinstance(result, int)]
    assert len(results) == 8
    assert sum(granted) == 10 == _usage(core)["instances"]
    assert {type(result) for result in results if not isinstance(result, int)} <= {exception.OverQuota}


def test_reservation_is_retried_if_usage_grows_during_the_transaction(core: Books) -> None:
    """The transaction is retried, and gets or is refused the remaining quota."""
    _reserve(core, 8, 8)
    overtaken = [True]

    def transaction(connection: sa.Connection) -> int:
        found = quotas.room(connection, account(connection, "p1", "u1"), 1, 512, 1, 2)
        if overtaken.pop():
            quotas.spend(connection, "p1", "u1", instances=1, cores=1, ram=512)
            overtaken.append(False)
        quotas.take(connection, found)
        return found.count

    assert core.db.write(transaction) == 2
    assert overtaken == []
    assert _usage(core)["instances"] == 10
    with pytest.raises(exception.OverQuota, match="instances: Requested 1, but already used 10 of 10 instances"):
        _reserve(core, 1, 2)


def test_reservation_takes_two_statements(core: Books) -> None:
    Flavors(core).create(ctx(), flavor())
    _reserve(core, 1, 1)

    def reserve(connection: sa.Connection) -> None:
        read, _flavor = quotas.account(connection, "p1", "u1", "m1.tiny")
        quotas.take(connection, quotas.room(connection, read, 1, 512, 1, 3))

    core.statements()
    core.db.write(reserve)
    assert len(core.statements()) == 2


def test_fixed_ip_quota_counts_interfaces_only_if_limited(core: Books) -> None:
    network = Networks(core).create(ctx(), Network(uuid="", label="lan", cidr="10.0.0.0/24", gateway="", bridge="",
                                                   cidr_v6="fd00::/64"))
    one = server(core, None)
    for _number in range(3):
        core.db.write(lambda connection: fixed_ips.take(connection, network, one.uuid, new_uuid()))
    project = one.project_id

    def reserve(count: int, interfaces: int) -> int:
        return core.db.write(lambda connection: _spend(connection, project, "u1", 1, 1, count, count, interfaces))

    assert reserve(1, 16) == 1
    Quotas(core).set(ctx(), project, {"fixed_ips": 7}, force=True)
    assert Quotas(core).get(ctx(), project, usage=True).in_use["fixed_ips"] == 3
    assert reserve(2, 2) == 2
    with pytest.raises(exception.QuotaLimit, match="Maximum number of fixed IPs exceeded"):
        reserve(1, 5)


def test_fixed_ip_quota_counts_requested_interfaces_of_building_servers(core: Books) -> None:
    """Addresses are allocated with the host: simultaneous requests must not all succeed."""
    Quotas(core).set(ctx(), "p1", {"fixed_ips": 4}, force=True)
    wanted = [NetworkRequest(network_id="n"), NetworkRequest(network_id="n")]

    def reserve() -> int:
        return core.db.write(lambda connection: _spend(connection, "p1", "u1", 1, 1, 1, 1, len(wanted)))

    assert reserve() == 1
    first, second = (server(core, None, requested_networks=wanted) for _number in range(2))
    assert Quotas(core).get(ctx(), "p1", usage=True).in_use["fixed_ips"] == 4
    with pytest.raises(exception.QuotaLimit):
        reserve()
    # A failed server needs no addresses, and a server that has its addresses is counted once.
    set_columns(core, tables.instances, tables.instances.c.uuid == first.uuid, vm_state=states.ERROR)
    network = Networks(core).create(ctx(), Network(uuid="", label="lan", cidr="10.0.0.0/24", gateway="", bridge=""))
    core.db.write(lambda connection: fixed_ips.take(connection, network, second.uuid, new_uuid()))
    core.db.write(lambda connection: fixed_ips.take(connection, network, second.uuid, new_uuid()))
    assert Quotas(core).get(ctx(), "p1", usage=True).in_use["fixed_ips"] == 2
    assert reserve() == 1


def test_quota_usage_includes_server_groups(core: Books) -> None:
    from nova.conductor.endpoints.servers import ServerGroups
    from nova.objects.servers.server_group import ServerGroup

    ServerGroups(core).create(ctx(), ServerGroup(uuid="", name="g", project_id="p1", user_id="u1", policy="affinity"))
    assert Quotas(core).get(ctx(), "p1", usage=True).in_use["server_groups"] == 1
    assert Quotas(core).get(ctx(), "p2", usage=True).in_use["server_groups"] == 0
    assert Quotas(core).get(ctx(), "p1").in_use == {}


def test_serialized_transactions_do_not_overlap(core: Books) -> None:
    def count(connection: sa.Connection) -> int:
        quotas.serialize(connection, "test")
        before = quotas.class_limits(connection, "counter")["cores"]
        quotas.set_limits(connection, "class:counter", None, {"cores": before + 1})
        return before

    assert sorted(_together(lambda: core.db.write(count), 6)) == list(range(20, 26))


def test_concurrent_soft_deletes_respect_the_limit_of_waiting_servers(core: Books) -> None:
    Quotas(core).set(ctx(), "p1", {"instances": 2})
    left = [server(core, "h1") for _number in range(6)]

    def soft_delete() -> None:
        one = left.pop()

        def transaction(connection: sa.Connection) -> None:
            quotas.check_waiting(connection, one)
            connection.execute(sa.update(tables.instances).where(tables.instances.c.uuid == one.uuid).values(
                task_state=states.SOFT_DELETING))

        core.db.write(transaction)

    refused = [result for result in _together(soft_delete, 6) if result is not None]
    assert [type(error) for error in refused] == [exception.TooManyWait] * 4
