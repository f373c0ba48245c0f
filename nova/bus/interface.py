"""Declarations of RPC interfaces: classes with typed methods marked ``@call``, ``@cast`` or ``@fanout``.

Client proxies and server endpoints are derived from the same declaration. msgspec encodes and validates payloads by the
declared types."""

import base64
import dataclasses
import functools
import inspect
import typing
import zlib
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from nova.common.structs import COMPILING, compile_imported, subclasses
from nova.conf import CONF

Kind = Literal["call", "cast", "fanout"]
C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])
HOST_PARAMETER = "host"  # name of the parameter in which a host passes its own name


def by_hosts(function: F) -> F:
    """Allow compute hosts to call this method, besides the control plane. The server refuses calls of a host whose
    parameter ``host`` names another host. The implementation must restrict all other arguments and results to objects
    of the calling host (``ctx.calling_host``)."""
    function.__by_hosts__ = True  # type: ignore[attr-defined]
    return function


def _mark(function: F, kind: Kind, timeout: float | None = None) -> F:
    function.__bus__ = (kind, timeout)  # type: ignore[attr-defined]
    return function


def call(function: F) -> F:
    """Declare a call: a request with a reply, for which the caller waits up to ``rpc_response_timeout``."""
    return _mark(function, "call")


def with_token(function: F) -> F:
    """Send the caller's token with a call, for requests to external services in the name of the caller."""
    function.__token__ = True  # type: ignore[attr-defined]
    return function


def slow_call(timeout: float) -> Callable[[F], F]:
    """Declare a call whose reply may take up to ``timeout`` seconds."""
    return functools.partial(_mark, kind="call", timeout=timeout)


def cast(function: F) -> F:
    """Declare a cast: a message without a reply to one server of the topic. A cast may be lost or expire, so the state
    in the database must not depend on it."""
    return _mark(function, "cast")


def brief_cast(seconds: float) -> Callable[[F], F]:
    """Declare a cast that expires after ``seconds``."""
    return functools.partial(_mark, kind="cast", timeout=seconds)


def fanout(function: F) -> F:
    """Declare a fanout: a message without a reply to every server of the topic."""
    return _mark(function, "fanout")


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of an interface with its codecs. ``timeout`` is the declared lifetime in seconds. ``token`` is True if
    the caller's token is sent, ``by_hosts`` if compute hosts may call the method."""

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
        """Return the encoded arguments or result, as text since oslo.messaging wraps it in JSON twice."""
        packed = _ENCODER.encode(value)
        if len(packed) < _LONG:
            return base64.b64encode(packed).decode()
        # Long lists compress well, and each wrapping in JSON has a cost per byte.
        return _COMPRESSED + base64.b64encode(zlib.compress(packed, 1)).decode()

    def decode_args(self, payload: str, from_host: bool = False) -> Any:
        return self.args.decode(_bytes(payload, from_host))

    def decode_result(self, payload: str, from_host: bool = False) -> Any:
        return self.result.decode(_bytes(payload, from_host))


class Interface:
    """The base class of interfaces, with the topic of their servers and a unique namespace. ``former_topic`` is the
    topic that clients of the previous release use; servers listen there, too. Set by keywords of the class."""

    topic: ClassVar[str]
    former_topic: ClassVar[str] = ""
    # True if every compute host has a server of the interface; only the control plane may call it.
    on_hosts: ClassVar[bool] = False
    with_tokens: ClassVar[bool] = False  # True: all methods send the caller's token, as with_token
    namespace: ClassVar[str]
    _methods: ClassVar[dict[str, Method]]

    def __init_subclass__(cls, **declared: Any) -> None:
        super().__init_subclass__()
        for name, value in declared.items():
            setattr(cls, name, value)

    @classmethod
    def methods(cls) -> dict[str, Method]:
        """Return the declared methods, compiled at first use."""
        if "_methods" not in vars(cls):
            with COMPILING:
                if "_methods" not in vars(cls):
                    cls._methods = {name: _compile(cls, name, with_token(function) if cls.with_tokens else function)
                                    for name, function in vars(cls).items() if hasattr(function, "__bus__")}
        return cls._methods


def prepare() -> None:
    """Let msgspec compile all imported structs and interfaces while the process has a single thread. The process
    crashes if two threads use a struct for the first time at the same moment (see nova.common.structs). Every process
    that decodes in threads must call this before they start, and again after further imports."""
    with COMPILING:
        for declared in subclasses(Interface):
            declared.methods()
        compile_imported()


def packed(value: C) -> C:
    """Return ``value`` in encoded form, as a part of the result of a method (it can be used in results only). So the
    objects of a long list need not exist at the same time."""
    return typing.cast(C, msgspec.Raw(_ENCODER.encode(value)))


_ENCODER = msgspec.msgpack.Encoder()
# Minimum size in bytes of compressed payloads, and their prefix, which is not valid base64.
_LONG = 32 * 1024
_COMPRESSED = "z:"
_MAX_SIZE, _MAX_SIZE_FROM_HOST = 64, 2  # default maximum size in MiB of a payload, and of a payload from a host


def _bytes(payload: str, from_host: bool) -> bytes:
    """Return the decoded payload. Raises DecodeError if it is malformed or too long after decompression."""
    option, default = ("max_host_message_size", _MAX_SIZE_FROM_HOST) if from_host else ("max_message_size", _MAX_SIZE)
    limit = (getattr(CONF.rpc, option) if "rpc" in CONF else default) * 1024 * 1024
    try:
        if not payload.startswith(_COMPRESSED):
            packed = base64.b64decode(payload)
        else:
            unpacking = zlib.decompressobj()
            packed = unpacking.decompress(base64.b64decode(payload[len(_COMPRESSED):]), limit + 1)
            if len(packed) <= limit and not unpacking.eof:
                raise msgspec.DecodeError("the payload is truncated")
    except (ValueError, zlib.error) as error:
        raise msgspec.DecodeError(str(error)) from error
    if len(packed) > limit:
        raise msgspec.DecodeError(f"the payload is longer than {limit // 1024 // 1024} MiB ([rpc]{option})")
    return packed


def _compile(owner: type[Interface], name: str, function: Callable[..., Any]) -> Method:
    kind, timeout = function.__bus__  # type: ignore[attr-defined]
    hints = typing.get_type_hints(function, include_extras=True)  # with constraints of msgspec.Meta
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
    return Method(name=name, kind=kind, timeout=timeout, parameters=tuple(field[0] for field in fields),
                  args_type=args_type, result_type=result_type, args=msgspec.msgpack.Decoder(args_type),
                  result=msgspec.msgpack.Decoder(result_type), token=hasattr(function, "__token__"),
                  by_hosts=hasattr(function, "__by_hosts__"))
