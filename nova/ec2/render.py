"""XML responses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from nova.ec2.errors import Ec2Error

TYPE = "text/xml; charset=utf-8"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
# Characters that XML 1.0 cannot contain, even as references. Names and metadata of users may have them.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT = "\ufffd"


def text_of(value: Any) -> str:
    """Return the text of a scalar value, not escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def timestamp(text: str | None) -> str | None:
    """Return a time of the REST API (ISO 8601, in UTC) in the format of EC2, or None for an unset time."""
    if not text:
        return None
    return f"{text[:19]}.000Z"


def _element(name: str, value: Any, parts: list[str]) -> None:
    """Append an element. Lists consist of elements "item"; None is omitted. Names come from declarations, never from
    requests."""
    if value is None:
        return
    if isinstance(value, Mapping | list | tuple):
        parts.append(f"<{name}>")
        for key, inner in value.items() if isinstance(value, Mapping) else (("item", item) for item in value):
            _element(key, inner, parts)
        parts.append(f"</{name}>")
    else:
        parts.append(f"<{name}>{escape(_FORBIDDEN.sub(_REPLACEMENT, text_of(value)))}</{name}>")


def answer(action: str, version: str, request_id: str, values: Mapping[str, Any]) -> bytes:
    """Return the document of a successful request."""
    parts = [_HEAD, f'<{action}Response xmlns="http://ec2.amazonaws.com/doc/{version}/">']
    for name, value in {"requestId": request_id, **values}.items():
        _element(name, value, parts)
    parts.append(f"</{action}Response>")
    return "".join(parts).encode()


def failure(error: Ec2Error, request_id: str) -> bytes:
    """Return the document of an error."""
    parts = [_HEAD]
    _element("Response", {"Errors": {"Error": {"Code": error.code, "Message": error.message}},
                          "RequestID": request_id}, parts)
    return "".join(parts).encode()
