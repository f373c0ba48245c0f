"""os-getConsoleOutput: the end of a server's serial console log."""

from __future__ import annotations

import re
from typing import Any

from nova.api.compute.servers import servers
from nova.api.request import Request
from nova.api.router import accepts
from nova.api.validation.fields import Object, Plain, only
from nova.api.validation.types import STRING

# Control characters except tab and line feed would upset terminals and parsers.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_LENGTH = Plain(type=["integer", "string", "null"], pattern="^-?[0-9]+$", minimum=-1)
# Maximum number of lines of a log.
_MOST = 2**31 - 1


@accepts(body=only("os-getConsoleOutput", Object({"length": _LENGTH})), answer=Object({"output": STRING}),
         errors=(409, 501))
def get(req: Request) -> dict[str, Any]:
    """Read the console log: the last ``length`` lines, or all that is kept."""
    server = servers.authorized_get(req, "os_compute_api:os-console-output")
    lines = _lines(req.body["os-getConsoleOutput"].get("length"))
    compute = servers.compute_of(req, server)
    output = compute.console_output(req.ctx, server, lines) if lines != 0 else ""
    return {"output": _CONTROLS.sub("", output)}


def _lines(length: Any) -> int | None:
    """Parse the number of lines; None: all lines."""
    if length is None:
        return None
    number = int(length) if not isinstance(length, str) or len(length) < 12 else _MOST + 1
    return None if number < 0 or number > _MOST else number
