"""The heartbeat of an agent, through API servers that lose some requests."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from nova.federator.clusters.lease import Heartbeat
from nova.federator.kube.client import Api, Object
from tests.integration.federator.clusters import Cluster


class LossyApi(Api):
    """A client for which only every third request gets a response, as with a frozen member of etcd."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.numbers = itertools.count(1)
        self.lossy = False

    async def _request(self, method: str, *arguments: Any, **options: Any) -> Object:
        if self.lossy and next(self.numbers) % 3:
            await asyncio.Event().wait()
        return await super()._request(method, *arguments, **options)


def test_renewals_continue_while_two_of_three_requests_are_lost(control_plane: Cluster) -> None:
    namespace = "nova-cluster-lossy"
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    async def longest_silence() -> float:
        longest = 0.0
        async with LossyApi(control_plane.config) as api:
            heartbeat = Heartbeat(api, "lossy", "agent")
            await heartbeat.acquire()
            heartbeat.interval, api.lossy = 1.0, True
            renewals = asyncio.create_task(heartbeat.run())
            for _tenth in range(200):
                await asyncio.sleep(0.1)
                assert not renewals.done(), renewals
                longest = max(longest, heartbeat.silence())
            renewals.cancel()
            assert heartbeat.epoch == 1
        return longest

    assert asyncio.run(longest_silence()) < 6  # two lost requests delay a renewal by 2 s, not by 8
