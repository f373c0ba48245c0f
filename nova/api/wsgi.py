"""The API for any WSGI server: ``nova.api.wsgi:application``.

The configuration files are those of OS_NOVA_CONFIG_FILES (paths separated by ``;``), or the defaults. They are read
at the first request, so that importing this module has no effects."""

import os
import threading
from collections.abc import Iterable
from typing import Any

from nova import conf
from nova.api import app
from nova.http.messages import Environ, Wsgi
from nova.telemetry import exporters, tracing

_lock = threading.Lock()
_loaded: Wsgi | None = None


def application(environ: Environ, start_response: Any) -> Iterable[bytes]:
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                files = [name for name in os.environ.get("OS_NOVA_CONFIG_FILES", "").split(";") if name]
                conf.load([], default_files=files or None)
                tracing.check("nova-api")
                exporters.start_metrics("nova-api", worker=None)
                exporters.start_tracing("nova-api")
                _loaded = app.create_app()
    return _loaded(environ, start_response)
