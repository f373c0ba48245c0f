"""Tests of the cache of a collection."""

from __future__ import annotations

import asyncio
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
