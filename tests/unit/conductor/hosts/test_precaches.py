"""Image precaching on the hosts of an aggregate: order, concurrency, retries and status."""

from __future__ import annotations

from typing import Any

import pytest

from nova import context
from nova.conductor.background import precaches as keeper
from nova.conductor.endpoints.by_hosts import Guests
from nova.conductor.endpoints.hosts import Aggregates
from nova.db import tables
from nova.db.hosts import precaches, services
from nova.objects.hosts.aggregate import Aggregate
from nova.objects.images import image_cache as caches
from nova.objects.images.image import Image
from nova.objects.images.image_cache import CacheResult
from tests.unit.conductor.books import Books, ctx, set_columns

HOSTS = ["a", "b", "c"]


@pytest.fixture
def rack(core: Books) -> Aggregate:
    """Return an aggregate of three hosts that are up."""
    made = Aggregates(core).create(ctx(), "rack")
    for host in HOSTS:
        core.db.write(lambda connection, host=host: services.register(
            connection, host, "nova-compute", "compute", 1))
        made = Aggregates(core).add_host(ctx(), made.id, host)
    return made


def ask(core: Books, rack: Aggregate, *idents: str) -> None:
    Aggregates(core).cache_images(ctx(), rack.id, [Image(id=ident, disk_format="raw") for ident in idents])


def tell(core: Books, host: str, ident: str, state: str = caches.CACHED, message: str = "") -> None:
    Guests(core, None).images_cached(context.admin(), host, [  # type: ignore[arg-type]
        CacheResult(image_id=ident, state=state, message=message)])


def asked(core: Books) -> list[tuple[str, list[str]]]:
    """Return the requests of a check, by host."""
    keeper.run_periodic(core)
    told, core.sent.images = core.sent.images, []
    return told


def known(core: Books) -> dict[tuple[str, str], str]:
    return {(each.host, each.image_id): each.state for each in core.db.read(precaches.index)}


def test_precache_requests_are_sent_to_hosts_sequentially(core: Books, rack: Aggregate) -> None:
    ask(core, rack, "i", "j")
    assert asked(core) == [("a", ["i", "j"])]
    assert asked(core) == []
    tell(core, "a", "i")
    assert asked(core) == []
    tell(core, "a", "j")
    assert asked(core) == [("b", ["i", "j"])]


def test_precache_concurrency_limits_parallel_hosts(core: Books, rack: Aggregate, settings: Any) -> None:
    settings("precache_concurrency", 2, "image_cache")
    ask(core, rack, "i")
    assert [host for host, _images in asked(core)] == ["a", "b"]


def test_precache_status_is_recorded_per_host_and_image(core: Books, rack: Aggregate) -> None:
    ask(core, rack, "i")
    asked(core)
    tell(core, "a", "i", caches.FAILED, "x" * 5000)
    asked(core)
    assert known(core) == {("a", "i"): caches.FAILED, ("b", "i"): caches.CACHING, ("c", "i"): caches.WAITING}


def test_precache_request_is_retried_and_finally_fails(core: Books, rack: Aggregate) -> None:
    ask(core, rack, "i")
    table = tables.precached_images
    for _number in range(6):
        assert [host for host, _images in asked(core)] == ["a"]
        past = core.db.read(lambda connection: services.index(connection))[0].created_at
        set_columns(core, table, table.c.host == "a", ask_again_at=past)
    assert [host for host, _images in asked(core)] == ["b"]
    assert known(core)["a", "i"] == caches.FAILED


def test_precache_of_a_down_host_fails_without_delaying_other_hosts(core: Books, rack: Aggregate) -> None:
    ask(core, rack, "i")
    set_columns(core, tables.services, tables.services.c.host == "a", up=False)
    assert [host for host, _images in asked(core)] == ["b"]
    assert known(core)["a", "i"] == caches.FAILED


def test_lost_precache_request_is_not_retried_at_once(core: Books, rack: Aggregate) -> None:
    ask(core, rack, "i")
    core.sent.broken = True
    assert asked(core) == []
    assert known(core)["a", "i"] == caches.CACHING


def test_new_precache_request_replaces_the_previous_status(core: Books, rack: Aggregate) -> None:
    ask(core, rack, "i")
    asked(core)
    tell(core, "a", "i")
    ask(core, rack, "j")
    assert ("a", "i") not in known(core)
    assert known(core)["b", "i"] == caches.WAITING
    assert known(core)["a", "j"] == caches.WAITING


def test_precache_skips_hosts_removed_from_the_aggregate(core: Books, rack: Aggregate) -> None:
    ask(core, rack, "i")
    Aggregates(core).remove_host(ctx(), rack.id, "a")
    assert {host for host, _image in known(core)} == {"b", "c"}
    assert [host for host, _images in asked(core)] == ["b"]


def test_precache_check_without_requests_takes_a_single_statement(core: Books, rack: Aggregate) -> None:
    core.statements()
    assert keeper.run_periodic(core) is None
    assert len(core.statements()) == 1


def test_precache_check_takes_a_constant_number_of_statements(core: Books, rack: Aggregate) -> None:
    costs = []
    for number in (1, 40):
        ask(core, rack, *(f"i{each}" for each in range(number)))
        core.statements()
        asked(core)
        costs.append(len(core.statements()))
        for each in range(number):
            tell(core, "a", f"i{each}")
    assert costs[0] == costs[1]
