"""What a refused create request may have made all the same is taken back.

Nova tells a client that its request was refused when the answer of the conductor got lost, and a conductor may stop
between its commit and its answer. Only this process knows what it told the client, so it deletes such servers as soon
as a conductor can be asked. What is to be taken back is forgotten when the process ends.
"""

from __future__ import annotations

import collections
import logging
import random
import threading
import time
from collections.abc import Callable

from nova import context, exception
from nova.objects.server_request import ServerCreate
from nova.operations.delete import Delete
from nova.rpcapi.servers import Servers

LOG = logging.getLogger(__name__)

# Requests that are remembered; of a minute without conductors more will not have been sent.
_MOST = 10_000
# The most seconds between two questions while nobody answers.
_PAUSE = 1.0


class Withdrawals:
    """Of one process, by a thread that lives while there is something to do."""

    def __init__(self, servers: Callable[[], Servers]) -> None:
        self._servers = servers
        self._lock = threading.Lock()
        self._waiting: collections.deque[tuple[float, context.RequestContext, ServerCreate]] = collections.deque()
        self._working = False

    def add(self, ctx: context.RequestContext, request: ServerCreate, until: float) -> None:
        """The client was told that this request was refused, which may be carried out up to ``until``.

        That is a moment of the monotonic clock.
        """
        with self._lock:
            if len(self._waiting) >= _MOST:
                LOG.error("A refused create request may have made server %s; too many are being looked after",
                          request.first_uuid)
                return
            self._waiting.append((until, ctx, request))
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name="withdrawals", daemon=True).start()

    def waiting(self) -> int:
        """How many requests are to be looked after."""
        return len(self._waiting)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._working = False
                    return
                until, ctx, request = self._waiting[0]
            time.sleep(max(0.0, until - time.monotonic()))
            try:
                self._withdraw(ctx, request)
            except exception.ServiceUnavailable:
                time.sleep(random.uniform(_PAUSE / 2, _PAUSE))  # noqa: S311
                continue
            except Exception:
                LOG.exception("Whether a refused create request made server %s is not known", request.first_uuid)
            self._waiting.popleft()

    def _withdraw(self, ctx: context.RequestContext, request: ServerCreate) -> None:
        created = self._servers().made(ctx, request)
        for uuid in created.uuids if created else ():
            LOG.warning("Server %s was made by a create request that was refused since its answer got lost; it is "
                        "deleted", uuid)
            try:
                self._servers().operate(ctx, uuid, Delete.name)
            except exception.InstanceNotFound:
                LOG.info("Server %s is deleted already", uuid)
