"""A queue of keys for several workers: a key is queued once, and processed by one worker at a time."""

import asyncio


class KeyedQueue:
    """Keys to process. A key that is put while a worker processes it is reported by :meth:`done`."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[str] = asyncio.Queue()
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
        """Return the next key. The worker calls :meth:`done` afterwards."""
        key = await self._queue.get()
        self._queued.discard(key)
        self._active.add(key)
        return key

    def done(self, key: str) -> bool:
        """End the processing of a key. Return True if the key was put meanwhile: the caller decides when it is due."""
        self._active.discard(key)
        again = key in self._again
        self._again.discard(key)
        return again
