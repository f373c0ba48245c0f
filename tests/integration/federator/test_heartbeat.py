"""The heartbeat of an agent, through API servers that lose some requests."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from nova.federator.clusters.lease import Heartbeat
from nova.federator.kube.client import Api, Object
from tests.integration.federator.clusters import Cluster


class LossyApi(Api):
    """A client for which only every third request gets a response, as with a frozen member of etcd. The others are
    lost, or if ``executes`` executed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.numbers = itertools.count(1)
        self.lossy = self.executes = False

    async def _request(self, method: str, *arguments: Any, **options: Any) -> Object:
        answered = not self.lossy or next(self.numbers) % 3 == 0
        result = await super()._request(method, *arguments, **options) if answered or self.executes else {}
        if not answered:
            await asyncio.Event().wait()
        return result


@pytest.mark.parametrize("executes", [False, True])
def test_renewals_continue_while_two_of_three_requests_get_no_response(
        control_plane: Cluster, executes: bool) -> None:
    """A write that is executed without a response conflicts with its repetition: no other agent has taken over."""
    namespace = f"nova-cluster-lossy-{executes}".lower()
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    async def longest_silence() -> float:
        longest = 0.0
        async with LossyApi(control_plane.config) as api:
            heartbeat = Heartbeat(api, namespace.removeprefix("nova-cluster-"), "agent")
            await heartbeat.acquire()
            heartbeat.interval, api.lossy, api.executes = 1.0, True, executes
            renewals = asyncio.create_task(heartbeat.run())
            for _tenth in range(100):
                await asyncio.sleep(0.1)
                assert not renewals.done(), renewals
                longest = max(longest, heartbeat.silence())
            renewals.cancel()
            assert heartbeat.epoch == 1
        return longest

    assert asyncio.run(longest_silence()) < 6  # two lost requests delay a renewal by 2 s, not by 8
