"""Queues for several workers of an event loop."""

import asyncio
import time
from typing import TypeVar

T = TypeVar("T")
_SLICE = 0.02  # seconds after which the workers of a queue yield


class YieldingQueue(asyncio.Queue[T]):
    """A queue whose workers yield to other tasks every 20 ms. Otherwise, workers that never wait would block the event
    loop until the queue is empty, and no Lease would be renewed."""

    _yielded = 0.0  # monotonic time

    async def get(self) -> T:
        if time.monotonic() - self._yielded > _SLICE:
            await asyncio.sleep(0)
            self._yielded = time.monotonic()
        return await super().get()


class KeyedQueue:
    """Keys to process. A key is queued once, and processed by one worker at a time. A key that is put while a worker
    processes it is reported by :meth:`done`."""

    def __init__(self) -> None:
        self._queue: YieldingQueue[str] = YieldingQueue()
        self._queued: set[str] = set()
        self._active: set[str] = set()
        self._again: set[str] = set()

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker."""
        return len(self._queued)

    def put(self, key: str) -> None:
        if key in self._active:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    async def get(self) -> str:
        """Return the next key. The worker calls :meth:`done` when it has processed the key."""
        key = await self._queue.get()
        self._queued.discard(key)
        self._active.add(key)
        return key

    def done(self, key: str) -> bool:
        """End the processing of a key. Return True if the key was put meanwhile: the caller must put it again."""
        self._active.discard(key)
        again = key in self._again
        self._again.discard(key)
        return again
