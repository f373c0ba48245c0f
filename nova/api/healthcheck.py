"""The health check that load balancers poll: GET, HEAD or OPTIONS /healthcheck, without a token."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from nova import exception
from nova.conf import CONF

PATH = "/healthcheck"
# Methods accepted for documents that are served without a token.
ALLOWED = "GET, HEAD, OPTIONS"
# Timeout of a probe in seconds, and seconds for which its result is cached.
PROBE_TIMEOUT = 2.0
_FRESH = 2.0
_HEALTHY = "OK"


class Healthcheck:
    """Answers health checks with the status codes and texts of oslo.middleware. A plain check reports this process
    alone: if the broker fails, a load balancer must not take every server out of service, since documents and cached
    data are still served. With ``?detailed`` the check also calls ``probe``, which raises ServiceUnavailable if no
    conductor responds. Regardless of the number of clients, at most one probe starts in two seconds."""

    def __init__(self, probe: Callable[[], object]) -> None:
        self._probe = probe
        self._lock = threading.Lock()
        self._checked_at = -_FRESH
        self._reason = _HEALTHY

    def answer(self, environ: dict[str, Any]) -> tuple[int, str, bytes]:
        """Return status (200 or 503), media type and body for a request to PATH."""
        path: str | None = CONF.healthcheck.disable_by_file_path
        if path and os.path.exists(path):
            return 503, "text/plain; charset=UTF-8", b"DISABLED BY FILE"
        detailed = "detailed" in environ.get("QUERY_STRING", "").replace("=", "&").split("&")
        reason = self._conductor_state() if detailed else _HEALTHY
        status = 200 if reason == _HEALTHY else 503
        if not detailed and "json" not in environ.get("HTTP_ACCEPT", ""):
            return status, "text/plain; charset=UTF-8", reason.encode()
        reasons = [{"class": "conductor", "details": "", "reason": reason}] if detailed else []
        return status, "application/json", msgspec.json.encode({"detailed": detailed, "reasons": reasons})

    def _conductor_state(self) -> str:
        """Return "OK", or the reason why no conductor can be reached. During a probe, return the previous result."""
        if self._lock.acquire(blocking=False):
            try:
                if time.monotonic() - self._checked_at >= _FRESH:
                    self._probe()
                    self._reason, self._checked_at = _HEALTHY, time.monotonic()
            except exception.ServiceUnavailable as error:
                self._reason, self._checked_at = str(error), time.monotonic()
            finally:
                self._lock.release()
        return self._reason
