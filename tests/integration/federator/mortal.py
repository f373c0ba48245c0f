"""A client that stops after a number of writes, as if its process was killed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nova.federator.kube.client import Api, ApiError, Object
from nova.federator.kube.config import Kubeconfig


class Deadline:
    """The number of writes after which a process counts as killed."""

    def __init__(self, writes: int) -> None:
        self.left, self.killed = writes, asyncio.Event()

    def count(self) -> bool:
        self.left -= 1
        return self.left == 0


class MortalApi(Api):
    """A client that executes a write, and then neither returns its result nor sends anything else."""

    def __init__(self, deadline: Deadline, config: Kubeconfig, agent: str = "nova-scheduler", **options: Any) -> None:
        super().__init__(config, agent, **options)
        self.deadline = deadline

    async def _request(self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None,
                       content_type: str = "application/json", timeout: float = 0) -> Object:
        if self.deadline.killed.is_set():
            raise ApiError("killed")
        counted = method != "GET" and "/leases" not in path and "/events" not in path and "/clusters/" not in path
        result = await super()._request(method, path, query, body, content_type, timeout)
        if counted and self.deadline.count():
            self.deadline.killed.set()
            raise ApiError("killed")
        return result


async def run_until_killed(deadline: Deadline, process: Any, seconds: float) -> bool:
    """Run a coroutine until its client is killed. Return False if it wrote less than that."""
    task = asyncio.ensure_future(process)
    try:
        async with asyncio.timeout(seconds):
            await deadline.killed.wait()
    except TimeoutError:
        return False
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return True
