"""Fetches images before a server wants them: one after the other, beside all else."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence

from nova import context, exception
from nova.compute.host import Machine, cached_image
from nova.objects import image_cache as caches
from nova.objects.image import Image
from nova.objects.image_cache import CacheResult
from nova.rpcapi.guests import Guests

LOG = logging.getLogger(__name__)

_MESSAGE = 1000


class Precacher:
    """The images that one host was asked for. What it is asked for twice it does once, and it tells of each."""

    def __init__(self, machine: Machine, guests: Guests) -> None:
        self._machine, self._guests = machine, guests
        self._queue: queue.SimpleQueue[Image] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._stopped = False

    def take(self, images: Sequence[Image]) -> None:
        """Returns at once."""
        with self._lock:
            idle = not self._known
            for image in images:
                if image.id not in self._known and not self._stopped:
                    self._known.add(image.id)
                    self._queue.put(image)
            if idle and self._known:
                threading.Thread(target=self._work, name="precache", daemon=True).start()

    def stop(self) -> None:
        """What is not fetched yet is asked for again; half of an image is nobody's."""
        self._stopped = True

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._stopped or not self._known:
                    self._known.clear()
                    return
            image = self._queue.get()
            result = self._fetch(image)
            try:
                self._guests.images_cached(context.admin(), self._machine.name, [result])
            except exception.NovaException as error:
                LOG.warning("Image %s is %s, and no conductor heard of it: %s", image.id, result.state, error)
            with self._lock:
                self._known.discard(image.id)

    def _fetch(self, image: Image) -> CacheResult:
        if not self._machine.driver.needs_images:
            return CacheResult(image_id=image.id, state=caches.UNSUPPORTED,
                               message="the guests of this host stand on no images")
        try:
            cached_image(self._machine, context.admin(), image, None)
            return CacheResult(image_id=image.id, state=caches.CACHED)
        except exception.NovaException as error:
            LOG.warning("Image %s was not cached: %s", image.id, error)
            return CacheResult(image_id=image.id, message=error.message[:_MESSAGE])
        except Exception:
            LOG.exception("Image %s was not cached", image.id)
            return CacheResult(image_id=image.id, message="unexpected error: the host's log has it")
