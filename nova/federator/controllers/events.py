"""Events on users' objects, written in the background and limited per object."""

import asyncio
import hashlib
import logging
import time
from typing import Literal

from nova.federator.api import times
from nova.federator.api.names import SCHEDULER
from nova.federator.api.types import Ref
from nova.federator.kube.client import Api, ApiError

LOG = logging.getLogger(__name__)
_QUEUE = 10_000  # events that wait to be written; further ones are dropped, because nothing depends on events
_REPEAT = 300.0  # seconds in which the same event of an object is not written again
_MEMORY = 50_000  # events that are remembered to avoid such repetitions


class Recorder:
    """Writes events. ``source``: the component that users see. The names of Event objects depend on content and time,
    so that a repeated event replaces nothing."""

    def __init__(self, api: Api, source: str = SCHEDULER) -> None:
        self.api, self.source = api, source
        self.dropped = 0
        self._queue: asyncio.Queue[tuple[str, dict[str, object]]] = asyncio.Queue(_QUEUE)
        self._recent: dict[str, float] = {}

    def emit(self, ref: Ref, uid: str, reason: str, message: str,
             kind: Literal["Normal", "Warning"] = "Normal") -> None:
        """Queue an event, unless the same event was queued within _REPEAT seconds."""
        now = time.monotonic()
        digest = hashlib.sha256(f"{ref.key}\0{uid}\0{reason}\0{message}".encode()).hexdigest()[:16]
        if now - self._recent.get(digest, -_REPEAT) < _REPEAT:
            return
        if len(self._recent) >= _MEMORY:
            self._recent = {key: at for key, at in self._recent.items() if now - at < _REPEAT}
            self._recent = self._recent if len(self._recent) < _MEMORY else {}
        self._recent[digest] = now
        namespace = ref.namespace or "default"
        stamp = times.now()
        name = f"{ref.name[:200].rstrip('.-')}.{digest}{int(now) & 0xFFFFFF:06x}"
        body: dict[str, object] = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {"apiVersion": ref.api_version,
                               "kind": ref.kind, "namespace": ref.namespace, "name": ref.name, "uid": uid},
            "reason": reason, "message": message[:1024], "type": kind, "count": 1, "firstTimestamp": stamp,
            "lastTimestamp": stamp, "source": {"component": self.source}}
        try:
            self._queue.put_nowait((f"/api/v1/namespaces/{namespace}/events", body))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            path, body = await self._queue.get()
            try:
                await self.api.create(path, body)
            except ApiError as error:  # the namespace may be deleted
                LOG.debug("Dropped a Kubernetes event: %s", error)
