"""Deletion of servers that a conductor created although the client received an error.

The API refuses a create request when the reply of the conductor is lost, and a conductor may stop between its commit
and its reply. Only this process knows the response that the client received, so it deletes such servers as soon as a
conductor answers. The queue is in memory: pending deletions are lost when the process ends."""

import collections
import logging
import random
import threading
import time
from collections.abc import Callable

from nova import context, exception
from nova.objects.servers.server_request import ServerCreate
from nova.operations.delete import Delete
from nova.rpcapi.servers import Servers

LOG = logging.getLogger(__name__)

# Maximum number of queued requests: more than arrive in a minute without conductors. Further ones are logged only.
_MOST = 10_000
# Maximum seconds between two attempts while no conductor answers.
_PAUSE = 1.0


class OrphanedCreates:
    """A queue of refused create requests, processed by a thread that runs while the queue is not empty."""

    def __init__(self, servers: Callable[[], Servers]) -> None:
        self._servers = servers
        self._lock = threading.Lock()
        self._queue: collections.deque[tuple[float, context.RequestContext, ServerCreate]] = collections.deque()
        self._working = False

    def add(self, ctx: context.RequestContext, request: ServerCreate, until: float) -> None:
        """Queue the deletion of the servers of a create request that failed for the client but may still be executed.
        ``until``: the time of the monotonic clock after which no conductor executes the request."""
        with self._lock:
            if len(self._queue) >= _MOST:
                LOG.error("Cannot delete server %s of a refused create request (queue full): delete it if it exists",
                          request.first_uuid)
                return
            self._queue.append((until, ctx, request))
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name="orphaned-creates", daemon=True).start()

    def pending(self) -> int:
        """Return the number of queued requests."""
        return len(self._queue)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._working = False
                    return
                until, ctx, request = self._queue[0]
            time.sleep(max(0.0, until - time.monotonic()))
            try:
                created = self._servers().made(ctx, request)
                for uuid in created.uuids if created else ():
                    LOG.warning("Deleting server %s: its create request was refused as the conductor's reply was lost",
                                uuid)
                    try:
                        self._servers().operate(ctx, uuid, Delete.name)
                    except exception.InstanceNotFound:
                        LOG.info("Server %s of a refused create request is already deleted", uuid)
            except exception.ServiceUnavailable:
                time.sleep(random.uniform(_PAUSE / 2, _PAUSE))  # noqa: S311
                continue
            except Exception:
                LOG.exception("Cannot delete server %s of a refused create request (error): delete it if it exists",
                              request.first_uuid)
            self._queue.popleft()
