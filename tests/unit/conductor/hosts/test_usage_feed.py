"""Usage of nodes is published to schedulers despite an outage of the database."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from nova import exception
from nova.conductor.announcer import report_nodes
from nova.conductor.endpoints.by_hosts import Heartbeat
from nova.conductor.feeds import feed as feed_module
from nova.conductor.feeds.feed import UsageFeed
from nova.db.hosts import compute_nodes
from tests.unit.conductor.books import Books, ctx, node

SECONDS = 20


def wait_for_usage(core: Books) -> set[str]:
    until, seen = time.monotonic() + SECONDS, set[str]()
    while not seen:
        assert time.monotonic() < until
        seen = {each.node_uuid for delta in core.sent.take() for each in delta.usage}
        time.sleep(0.01)
    return seen


@pytest.fixture
def nodes(core: Books) -> list[str]:
    for host in ("h1", "h2"):
        Heartbeat(core).register(ctx(), host, "nova-compute", "compute", 1)
    made = [each.uuid for host in ("h1", "h2") for each in report_nodes(core, host, [node(host)])]
    core.sent.take()
    return made


def fail_reads(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[int]:
    """Let the next ``count`` reads of usage fail. Return an iterator over those that have not happened."""
    read, failures = compute_nodes.usage, iter(range(count))

    def away(connection, node_uuids):
        if next(failures, None) is not None:
            raise exception.ServiceUnavailable("The database is not available.")
        return read(connection, node_uuids)

    monkeypatch.setattr(compute_nodes, "usage", away)
    return failures


def test_usage_is_published_after_a_database_outage(
        core: Books, nodes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No further change is needed to trigger the publication."""
    failures = fail_reads(monkeypatch, 3)
    monkeypatch.setattr(UsageFeed, "interval", 0.01)
    feed = UsageFeed(core.db, core.fleet)
    feed.start()
    feed.touch(nodes)
    assert wait_for_usage(core) == set(nodes)
    assert not list(failures)
    feed.stop()


def test_usage_is_published_after_an_outage_of_hours(core: Books, nodes: list[str],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause between two attempts is computed however many attempts have failed."""
    fail_reads(monkeypatch, 1100)
    monkeypatch.setattr(feed_module, "_LONGEST", 0.0)
    feed = UsageFeed(core.db, core.fleet)
    feed.start()
    feed.touch(nodes)
    assert wait_for_usage(core) == set(nodes)
    feed.stop()


def test_pending_usage_is_published_before_the_feed_stops(core: Books, nodes: list[str]) -> None:
    feed = UsageFeed(core.db, core.fleet)
    feed.start()
    feed.touch(nodes[:1])
    feed.stop()
    assert wait_for_usage(core) == {nodes[0]}
