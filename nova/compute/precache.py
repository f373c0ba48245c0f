"""Precaching: fetches images into the cache in the background, one at a time, before a server needs them."""

import logging
import queue
import threading
from collections.abc import Sequence

from nova import context, exception
from nova.compute.host import Machine, cached_image
from nova.objects.images import image_cache as caches
from nova.objects.images.image import Image
from nova.objects.images.image_cache import CacheResult
from nova.rpcapi.by_hosts import Guests

LOG = logging.getLogger(__name__)

_MESSAGE = 1000  # maximum number of characters of a reported error message


class Precacher:
    """The images requested for one host. Duplicate requests are merged; the result of each image is reported."""

    def __init__(self, machine: Machine, guests: Guests) -> None:
        self._machine, self._guests = machine, guests
        self._queue: queue.SimpleQueue[Image] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending: set[str] = set()
        self._stopped = False

    def take(self, images: Sequence[Image]) -> None:
        """Queue the images and return immediately."""
        with self._lock:
            idle = not self._pending
            for image in images:
                if image.id not in self._pending and not self._stopped:
                    self._pending.add(image.id)
                    self._queue.put(image)
            if idle and self._pending:
                threading.Thread(target=self._work, name="precache", daemon=True).start()

    def stop(self) -> None:
        """Stop fetching. The conductor requests unfinished images again; partial downloads are discarded."""
        self._stopped = True

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._stopped or not self._pending:
                    self._pending.clear()
                    return
            image = self._queue.get()
            result = self._fetch(image)
            try:
                self._guests.images_cached(context.admin(), self._machine.name, [result])
            except exception.NovaException as error:
                LOG.warning("Cannot report to a conductor that image %s is %s: %s", image.id, result.state, error)
            with self._lock:
                self._pending.discard(image.id)

    def _fetch(self, image: Image) -> CacheResult:
        if not self._machine.driver.needs_images:
            return CacheResult(image_id=image.id, state=caches.UNSUPPORTED,
                               message="the hypervisor driver of this host does not use images")
        try:
            cached_image(self._machine, context.admin(), image, None)
            return CacheResult(image_id=image.id, state=caches.CACHED)
        except exception.NovaException as error:
            LOG.warning("Cannot cache image %s, reporting the failure: %s", image.id, error)
            return CacheResult(image_id=image.id, message=error.message[:_MESSAGE])
        except Exception:
            LOG.exception("Cannot cache image %s, reporting the failure", image.id)
            return CacheResult(image_id=image.id, message="unexpected error, see the log of nova-compute")
