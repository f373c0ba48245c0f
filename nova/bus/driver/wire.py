"""The format of messages: oslo.messaging's envelope 2.0, a JSON document inside a JSON document."""

from typing import Any

import msgspec
import oslo_messaging as messaging
from oslo_serialization import jsonutils

_VERSION, _MESSAGE, _CONTEXT = "oslo.version", "oslo.message", "_context_"
# Returns the body of a message without an envelope (notifications of version 1).
encode_plain = msgspec.json.Encoder(enc_hook=jsonutils.to_primitive).encode
_decode = msgspec.json.Decoder().decode


def encode(message: dict[str, Any]) -> bytes:
    """Return the body of a message."""
    return encode_plain({_VERSION: "2.0", _MESSAGE: encode_plain(message).decode()})


def decode(body: bytes | str) -> dict[str, Any]:
    """Return the message of a body, with or without an envelope. Raises DecodeError."""
    message = _decode(body)
    if isinstance(message, dict) and _MESSAGE in message:
        if str(message.get(_VERSION)).partition(".")[0] != "2":
            raise msgspec.DecodeError(f"unknown version of the envelope: {message.get(_VERSION)!r}")
        message = _decode(message[_MESSAGE]) if isinstance(message[_MESSAGE], str) else None
    if not isinstance(message, dict):
        raise msgspec.DecodeError("the message is not an object")
    return message


def with_context(message: dict[str, Any], ctxt: dict[str, Any]) -> dict[str, Any]:
    """Return the message with the entries of a request context."""
    return {**message, **{_CONTEXT + name: value for name, value in ctxt.items()}}


def split_context(message: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the request context of a received message, and the message without it."""
    ctxt, rest = {}, {}
    for name, value in message.items():
        if name.startswith(_CONTEXT):
            ctxt[name.removeprefix(_CONTEXT)] = value
        else:
            rest[name] = value
    return ctxt, rest


def failure(error: BaseException) -> str:
    """Return an exception as the ``failure`` of a reply. Tracebacks stay in the server's log."""
    args = [arg if isinstance(arg, str | int | float | bool | None) else str(arg) for arg in error.args]
    return encode_plain({"class": type(error).__name__, "module": type(error).__module__, "message": str(error),
                         "tb": [], "args": args, "kwargs": {}}).decode()


def remote_error(text: Any) -> messaging.RemoteError:
    """Return the exception for the ``failure`` of a reply."""
    try:
        error = _decode(text)
        return messaging.RemoteError(error.get("class"), error.get("message"), error.get("tb"))
    except (msgspec.MsgspecError, AttributeError, TypeError):
        return messaging.RemoteError("InternalError", "The failure in the reply cannot be decoded.", [])
