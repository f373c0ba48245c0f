"""os-volumes_boot: before 2.103 another name of servers, for those that boot from volumes and for all others alike."""

import dataclasses
from collections.abc import Iterable, Iterator

from nova.api.router import Route

_SERVERS, _BOOT = "/servers", "/os-volumes_boot"
_LAST = 102
_PATHS = frozenset({_SERVERS, f"{_SERVERS}/detail", f"{_SERVERS}/{{server_id}}"})
_ACTION = f"{_SERVERS}/{{server_id}}/action"
_ACTIONS = frozenset({"confirmResize", "revertResize", "reboot", "resize", "rebuild", "createImage", "os-start",
                      "os-stop", "trigger_crash_dump"})


def aliases(routes: Iterable[Route]) -> Iterator[Route]:
    """The lines of the table for it, from those of servers."""
    for route in routes:
        if (route.path in _PATHS or (route.path == _ACTION and route.action in _ACTIONS)) and route.since <= _LAST:
            yield dataclasses.replace(route, path=route.path.replace(_SERVERS, _BOOT, 1), until=min(route.until, _LAST))
