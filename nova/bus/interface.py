"""Declaring an interface: typed signatures marked ``@call``, ``@cast`` or ``@fanout``.

The client proxy and the server's endpoint both come from the one declaration; payloads are
encoded by msgspec from the declared types, so a wrong type is refused at the boundary.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import inspect
import typing
import zlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from nova.conf import CONF
from nova.objects.base import COMPILING, compile_once

Kind = Literal["call", "cast", "fanout"]
C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


# The parameter by which a host says who it is, wherever a method has it: it must be its own name.
ASKING = "host"


def by_hosts(function: F) -> F:
    """Compute hosts may ask this, too, and not the control plane alone.

    A host that names a host (the parameter ``host``) can only name itself: the dispatcher looks at that. Whatever else
    a method takes or tells, whoever implements it restricts to what is the host's own (``ctx.asking_host``).
    """
    function.__by_hosts__ = True  # type: ignore[attr-defined]
    return function


def _mark(kind: Kind, timeout: float | None = None) -> Callable[[F], F]:
    def mark(function: F) -> F:
        function.__bus__ = (kind, timeout)  # type: ignore[attr-defined]
        return function

    return mark


def call(function: F) -> F:
    """One request, one answer; the caller waits up to ``rpc_response_timeout``."""
    return _mark("call")(function)


def with_token(function: F) -> F:
    """Of a call: the caller's token goes along, for what outside services are asked in the caller's name."""
    function.__token__ = True  # type: ignore[attr-defined]
    return function


def slow_call(timeout: float) -> Callable[[F], F]:
    """A call whose answer may take up to ``timeout`` seconds."""
    return _mark("call", timeout)


def cast(function: F) -> F:
    """One message to one server of the topic; nobody waits. It may be lost, and is when it is old: rows decide."""
    return _mark("cast")(function)


def brief_cast(seconds: float) -> Callable[[F], F]:
    """A cast that is of no use to anybody after ``seconds``."""
    return _mark("cast", seconds)


def fanout(function: F) -> F:
    """One message to every server of the topic."""
    return _mark("fanout")(function)


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of an interface with its codecs. ``timeout``: for how many seconds it is wanted, if that is declared.

    ``token``: whether the caller's token goes along. ``by_hosts``: whether hosts may ask it.
    """

    name: str
    kind: Kind
    timeout: float | None
    parameters: tuple[str, ...]
    args_type: type[msgspec.Struct]
    result_type: Any
    args: msgspec.msgpack.Decoder[Any]
    result: msgspec.msgpack.Decoder[Any]
    token: bool = False
    by_hosts: bool = False

    def encode(self, value: Any) -> str:
        """What travels for arguments or a result: text, since oslo.messaging wraps it in JSON (twice)."""
        packed = _ENCODER.encode(value)
        if len(packed) < _LONG:
            return base64.b64encode(packed).decode()
        # Many rows of a kind shrink a lot, and every wrapping costs by the byte.
        return _COMPRESSED + base64.b64encode(zlib.compress(packed, 1)).decode()

    def decode_args(self, payload: str, from_host: bool = False) -> Any:
        return self.args.decode(_bytes(payload, from_host))

    def decode_result(self, payload: str, from_host: bool = False) -> Any:
        return self.result.decode(_bytes(payload, from_host))


class Interface:
    """Base of all declarations. ``topic`` says who listens, ``namespace`` tells interfaces apart.

    ``former_topic`` is where the last release asked: who answers now listens there, too.
    """

    topic: ClassVar[str]
    former_topic: ClassVar[str] = ""
    # Whether compute hosts answer, each for itself: then the control plane alone asks.
    on_hosts: ClassVar[bool] = False
    namespace: ClassVar[str]

    @classmethod
    def methods(cls) -> dict[str, Method]:
        """The declared methods; compiled once per class, at first use."""
        compiled: dict[str, Method] | None = cls.__dict__.get("_methods")
        return compiled if compiled is not None else cls._compiled()

    @classmethod
    def _compiled(cls) -> dict[str, Method]:
        with COMPILING:
            compiled: dict[str, Method] | None = cls.__dict__.get("_methods")
            if compiled is None:
                compiled = {name: _compile(cls, name, function) for name, function in vars(cls).items()
                            if hasattr(function, "__bus__")}
                cls._methods = compiled  # type: ignore[attr-defined]
            return compiled


def prepare() -> None:
    """Let msgspec look at every struct and interface that is imported, while there is one thread only.

    Two threads that use one first at the same time crash the process (nova.objects.base). Every process that decodes
    in threads calls this before they start, and again when it has imported more.
    """
    with COMPILING:
        for declared in _below(Interface):
            declared.methods()
        for kind in _below(msgspec.Struct):
            with contextlib.suppress(TypeError, NameError):  # its use will say so
                compile_once(kind)


def packed(value: C) -> C:
    """A part of an answer, encoded now: of a long list not all objects need to exist at the same time.

    It stands for ``value`` in what a method returns, and can be used for nothing else.
    """
    return typing.cast(C, msgspec.Raw(_ENCODER.encode(value)))


def _below(kind: type[C]) -> Iterator[type[C]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


_ENCODER = msgspec.msgpack.Encoder()
# Payloads from this size on (bytes) are compressed; a mark that base64 does not know tells them.
_LONG = 32 * 1024
_COMPRESSED = "z:"
# MiB that a payload has at most, and one from a host, where the configuration does not say.
_LONGEST, _LONGEST_FROM_HOST = 64, 2


def _bytes(payload: str, from_host: bool) -> bytes:
    """Raises DecodeError for what is no payload, or is too long once it is decompressed."""
    option, default = (("max_host_message_size", _LONGEST_FROM_HOST) if from_host else
                       ("max_message_size", _LONGEST))
    limit = (getattr(CONF.rpc, option) if "rpc" in CONF else default) * 1024 * 1024
    try:
        if not payload.startswith(_COMPRESSED):
            packed = base64.b64decode(payload)
        else:
            unpacking = zlib.decompressobj()
            packed = unpacking.decompress(base64.b64decode(payload[len(_COMPRESSED):]), limit + 1)
            if len(packed) <= limit and not unpacking.eof:
                raise msgspec.DecodeError("it is cut short")
    except (ValueError, zlib.error) as error:
        raise msgspec.DecodeError(str(error)) from error
    if len(packed) > limit:
        raise msgspec.DecodeError(f"it is longer than {limit // 1024 // 1024} MiB ([rpc]{option})")
    return packed


def _compile(owner: type[Interface], name: str, function: Callable[..., Any]) -> Method:
    kind, timeout = function.__bus__  # type: ignore[attr-defined]
    hints = typing.get_type_hints(function, include_extras=True)  # with their bounds
    signature = inspect.signature(function)
    fields: list[Any] = []
    # The first two parameters are self and the request context (it travels beside the payload).
    for parameter in list(signature.parameters.values())[2:]:
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, hints[parameter.name]))
        else:
            fields.append((parameter.name, hints[parameter.name], parameter.default))
    args_type = msgspec.defstruct(f"{owner.__name__}_{name}", fields, kw_only=True, omit_defaults=True)
    result_type = hints.get("return", type(None))
    return Method(
        name=name,
        kind=kind,
        timeout=timeout,
        parameters=tuple(field[0] for field in fields),
        args_type=args_type,
        result_type=result_type,
        args=msgspec.msgpack.Decoder(args_type),
        result=msgspec.msgpack.Decoder(result_type),
        token=hasattr(function, "__token__"),
        by_hosts=hasattr(function, "__by_hosts__"),
    )
