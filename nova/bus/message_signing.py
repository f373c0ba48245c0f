"""Signatures of messages (HMAC-SHA256) that only the sender and the receiver can compute.

The control plane has a master key. The key of a host is derived from the master key, the name of the host and a
generation, so no list of keys is stored. Messages from and to a host are signed with the key of the host: a host cannot
impersonate another sender, and only the control plane can send orders to it. Messages within the control plane are
signed with a key that no host has.

RabbitMQ's validated user_id is not used: authorization would depend on the configuration of one broker, and the id is
lost by shovels, federation and other brokers.

A signature lists the context fields that it covers: all context fields of the sender's release. So releases with
different fields work together. Fields that the receiver evaluates must be covered."""

from __future__ import annotations

import dataclasses
import functools
import hmac
import os
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from oslo_config import cfg

from nova import exception
from nova.bus import deadlines
from nova.context import RequestContext

if TYPE_CHECKING:  # at run time nova.bus.oslo must import it first, since it selects the threading back end
    import oslo_messaging as messaging

# Name of the context field with the signature. oslo.messaging adds further fields, which are not covered.
FIELD = "seal"
_SHA = "sha256"
_MASTER, _HOST = "master", "host"
# Maximum number of cached host keys. Unverified names are cached, too, since the key is needed for verification.
_MAX_KEYS = 20_000
_MAX_QUOTED = 200  # maximum number of characters of unverified names in an error message
_encode = msgspec.msgpack.Encoder().encode  # an unambiguous encoding: different messages have different encodings


@dataclasses.dataclass(frozen=True)
class Address:
    """The destination of a message: ``namespace.method``, and the receiving host ("": the control plane)."""

    method: str
    host: str = ""


class Keys:
    """The key of this process: the master key, or the key of ``host``. Without a key messages are not signed."""

    def __init__(self, key: bytes = b"", host: str = "", generation: int = 1, *, required: bool = False,
                 generations: Mapping[str, int] | None = None, age: float = 0.0) -> None:
        self.host, self._key, self._generation, self._required = host, key, generation, required
        self._generations = dict(generations or {})
        self._age = age
        self._key_of = functools.lru_cache(_MAX_KEYS)(
            lambda owner, generation: key if host else host_key(key, owner, generation))
        # Fields that the receiver evaluates.
        self._evaluated = frozenset((*RequestContext.FIELDS, *RequestContext.TOKEN, *deadlines.FIELDS))

    def of_host(self, host: str) -> Keys:
        """Return the keys of a host derived from the master key, or self if this is not the master key."""
        if not self._key or self.host:
            return self
        generation = self._generations.get(host, 1)
        return Keys(host_key(self._key, host, generation), host, generation, required=self._required, age=self._age)

    # --- signatures ------------------------------------------------------------------------------
    def sign(self, address: Address, wire: Mapping[str, Any], payload: str) -> dict[str, Any] | None:
        """Return the signature of a message, or None if this process has no key."""
        if not self._key:
            return None
        owner, generation = self._owner(address.host)
        covers = list(wire)
        return {"by": self.host, "generation": generation, "covers": covers,
                "mac": self._mac(owner, generation, self.host, address, payload, covers, wire)}

    def verified_sender(self, address: Address, wire: Mapping[str, Any], payload: str) -> str:
        """Return the host that sent a message ("": the control plane, or a sender that needs no signature). Raises
        CallerRefused if the signature is wrong, or required and missing."""
        value = wire.get(FIELD)
        if value is None or not self._key:
            if self._required:
                raise exception.CallerRefused(f"{address.method} is refused: the message has no signature.")
            return ""
        try:
            signature = msgspec.convert(value, Signature)
        except msgspec.ValidationError as error:
            raise exception.CallerRefused(f"{address.method} is refused: the signature is malformed.") from error
        self._verify(signature, address, wire, payload)
        return signature.by

    def _verify(self, signature: Signature, address: Address, wire: Mapping[str, Any], payload: str) -> None:
        sender = f"host {_quoted([signature.by])}" if signature.by else "the control plane"
        owner, generation = self._owner(signature.by or address.host)
        if signature.generation != generation:
            raise exception.CallerRefused(f"{address.method} is refused: the key of {sender} has a wrong generation.")
        self._check_covered_fields(signature.covers, address, wire)
        try:
            mac = self._mac(owner, generation, signature.by, address, payload, signature.covers, wire)
            same = hmac.compare_digest(signature.mac.encode(), mac.encode())
        except (ValueError, OverflowError):  # values that no sender encodes: lone surrogates, infinite numbers
            same = False
        if not same:
            raise exception.CallerRefused(f"{address.method} is refused: the message is not from {sender}.")
        sent = wire[deadlines.SENT_AT]
        if self._age and not (isinstance(sent, int | float) and abs(time.time() - sent) <= self._age):
            raise exception.CallerRefused(f"{address.method} of {sender} is refused: the message is older than "
                                          "seal_age, or the clocks of the machines differ.")

    def _owner(self, host: str) -> tuple[str, int]:
        """Return the owner of the key for messages from or to ``host`` ("": none), and the generation of that key."""
        # A host has only its own key, so it refuses signatures by other hosts like forged ones.
        return (self.host, self._generation) if self.host else (host, self._generations.get(host, 1))

    def _check_covered_fields(self, covers: list[str], address: Address, wire: Mapping[str, Any]) -> None:
        """Raise CallerRefused unless all covered fields exist, and all fields that are evaluated are covered."""
        names = frozenset(covers)
        if len(names) < len(covers):
            raise exception.CallerRefused(f"{address.method} is refused: the signature covers a field twice.")
        if not names <= wire.keys():
            raise exception.CallerRefused(
                f"{address.method} is refused: the message lacks {_quoted(names - wire.keys())}.")
        uncovered = self._evaluated - names
        if not uncovered.isdisjoint(wire) or deadlines.SENT_AT in uncovered:
            fields = uncovered & {*wire, deadlines.SENT_AT}
            raise exception.CallerRefused(
                f"{address.method} is refused: the signature does not cover {_quoted(fields)}.")

    def _mac(self, owner: str, generation: int, by: str, address: Address, payload: str, covers: Iterable[str],
             wire: Mapping[str, Any]) -> str:
        text = _encode((by, address.host, address.method, payload, [(name, wire[name]) for name in covers]))
        return hmac.digest(self._key_of(owner, generation), text, _SHA).hex()


def _quoted(names: Iterable[str]) -> str:
    """Return unverified names in a form that is safe in a log line."""
    return ", ".join(ascii(name)[1:-1] for name in sorted(names))[:_MAX_QUOTED]


class Signature(msgspec.Struct):
    """The signature of a message as it is sent."""

    # Limited, since the key of the named host is cached before the signature is verified.
    by: Annotated[str, msgspec.Meta(max_length=255)]
    generation: int
    mac: str
    covers: list[str]


def claimed_sender(wire: Mapping[str, Any]) -> str:
    """Return the host that a message names as its sender ("": none), before its signature is verified."""
    signature = wire.get(FIELD)
    return str(signature.get("by") or "") if isinstance(signature, dict) else ""


def host_key(master: bytes, host: str, generation: int) -> bytes:
    """Return the key of a host, or with the name "" the key for messages within the control plane."""
    return hmac.digest(master, f"{_HOST if host else 'control'}\0{host}\0{generation}".encode(), _SHA)


# --- files -----------------------------------------------------------------------------------------
def text_of(key: bytes, host: str = "", generation: int = 1) -> str:
    """Return the content of a key file."""
    return f"{_HOST} {host} {generation} {key.hex()}\n" if host else f"{_MASTER} {key.hex()}\n"


def read(path: str) -> tuple[bytes, str, int]:
    """Return the key in a file, its host ("": the master key) and its generation. Raises InvalidInput."""
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise ValueError("all users may read or write it")
            words = file.read().split()
        if len(words) == 2 and words[0] == _MASTER:
            words = [_MASTER, "", "1", words[1]]
        elif len(words) != 4 or words[0] != _HOST:
            raise ValueError("the file contains no key")
        key = bytes.fromhex(words[3])
        if len(key) < 32:
            raise ValueError("the key is too short")
        return key, words[1], int(words[2])
    except (OSError, ValueError) as error:
        raise exception.InvalidInput(reason=f"[rpc]key_file {path} cannot be used: {error}") from error


def configured(conf: cfg.ConfigOpts) -> Keys:
    """Return the configured key. Raises InvalidInput if the key file cannot be used."""
    if "rpc" not in conf:  # a transport of another program, without the options of Nova
        return Keys()
    options = conf.rpc
    if not options.key_file:
        if options.require_seals:
            raise exception.InvalidInput(reason="[rpc]require_seals needs a [rpc]key_file")
        return Keys()
    key, host, generation = read(options.key_file)
    try:
        generations = {name: int(number) for name, number in options.key_generations.items()}
    except ValueError as error:
        raise exception.InvalidInput(reason=f"[rpc]key_generations: {error}") from error
    return Keys(key, host, generation, required=options.require_seals, generations=generations, age=options.seal_age)


_KEYS: weakref.WeakKeyDictionary[messaging.RPCTransport, Keys] = weakref.WeakKeyDictionary()
_NONE = Keys()


def set_keys(bus: messaging.RPCTransport, keys: Keys) -> None:
    """Sign and verify all messages of this transport with ``keys`` from now on."""
    _KEYS[bus] = keys


def keys_of(bus: messaging.RPCTransport) -> Keys:
    return _KEYS.get(bus, _NONE)
