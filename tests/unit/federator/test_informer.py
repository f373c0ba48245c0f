"""Tests of the cache of a collection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nova.federator.kube.client import Api
from nova.federator.kube.config import Kubeconfig
from nova.federator.kube.informer import Informer, wait_synced


def test_late_response_of_a_write_does_not_replace_a_later_state() -> None:
    """A watch may report the next state before the response of the write arrives; then no further event follows."""
    informer: Informer[dict[str, Any]] = Informer(Api(Kubeconfig(server="https://unused")), "/", lambda obj: obj)
    late, later = ({"metadata": {"name": "web", "resourceVersion": version}} for version in ("9", "10"))
    assert informer.put(later)
    assert not informer.put(late)
    assert informer.objects["web"] is later


class Lists(Api):
    """A server that returns these pages, and calls ``between`` after the first one."""

    def __init__(self, *pages: dict[str, int], between: Callable[[], object] = lambda: None) -> None:
        super().__init__(Kubeconfig(server="https://unused"))
        self.lists, self.between = pages, between

    async def list_pages(self, path: str, **query: str) -> AsyncIterator[dict[str, Any]]:
        for number, versions in enumerate(self.lists):
            if number == 1:
                self.between()
            yield {"kind": "PodList", "metadata": {"resourceVersion": "50"}, "items": [
                stored(name, version) for name, version in versions.items()]}


def stored(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def versions(informer: Informer[dict[str, Any]]) -> dict[str, int]:
    return {name: int(obj["metadata"]["resourceVersion"]) for name, obj in informer.objects.items()}


def test_objects_are_stored_page_by_page() -> None:
    """The raw form of a large collection would take far more memory than what is stored of it."""
    api = Lists({"a": 1, "b": 2}, {"c": 3})
    informer: Informer[dict[str, Any]] = Informer(api, "/", lambda obj: obj)
    api.between = lambda: seen.append((versions(informer), informer.synced.is_set()))
    seen: list[tuple[dict[str, int], bool]] = []
    asyncio.run(informer.refresh())
    assert seen == [({"a": 1, "b": 2}, False)]
    assert versions(informer) == {"a": 1, "b": 2, "c": 3}
    assert informer.objects["c"]["kind"] == "Pod"


def test_list_replaces_and_removes_what_it_does_not_contain() -> None:
    """The server may have been restored from a backup: then the listed versions are older."""
    api = Lists({"a": 5, "b": 6}, {"c": 7})
    events: list[tuple[str, bool]] = []
    informer: Informer[dict[str, Any]] = Informer(
        api, "/", lambda obj: obj, lambda key, new, _old: events.append((key, new is not None)))
    asyncio.run(informer.refresh())
    api.lists = ({"a": 3}, {"c": 7, "d": 4})
    events.clear()
    asyncio.run(informer.refresh())
    assert versions(informer) == {"a": 3, "c": 7, "d": 4}
    assert events == [("a", True), ("d", True), ("b", False)]


def test_list_keeps_what_was_written_while_it_arrived() -> None:
    api = Lists({"a": 5, "b": 6}, {"c": 7})
    informer: Informer[dict[str, Any]] = Informer(api, "/", lambda obj: obj)
    asyncio.run(informer.refresh())
    api.between = lambda: [informer.put(stored(name, version)) for name, version in (("c", 60), ("new", 61), ("b", 62))]
    api.lists = ({"a": 5}, {"c": 7})
    asyncio.run(informer.refresh())
    assert versions(informer) == {"a": 5, "b": 62, "c": 60, "new": 61}


def test_long_lists_of_a_slow_server_are_awaited_as_long_as_they_progress() -> None:
    """A scheduler with 100,000 objects that gives up its lists on a busy machine would begin again for ever."""
    async def run() -> None:
        api = Api(Kubeconfig(server="https://unused"))
        informer: Informer[dict[str, Any]] = Informer(api, "/", lambda obj: obj)

        async def receive_pages() -> None:
            for _page in range(10):
                await asyncio.sleep(0.03)
                api.pages += 1
        pages = asyncio.create_task(receive_pages())
        with pytest.raises(TimeoutError, match="no part of these lists arrived within 0 s: objects"):
            await wait_synced({"objects": informer}, 0.1)
        assert pages.done()
        informer.synced.set()
        await wait_synced({"objects": informer}, 0.1)
    asyncio.run(run())
