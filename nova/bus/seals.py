"""Who sends a message: a seal that only its sender and its receiver can make.

The control plane has one master key. A host has a key of its own, derived from the master key, the host's name and a
generation, so that nobody keeps a list of them. What a host sends, and what is sent to it, is sealed with its key: it
can pass itself off as nobody else, and nobody but the control plane gives it orders. Within the control plane messages
are sealed with a key that no host has.

The broker's own word for who sends (RabbitMQ's validated user_id) is not used: it would make who may do what depend on
one broker's configuration, and does not survive shovels, federations and other brokers.

A seal names the fields of the context that it covers, which are all that its sender has said: so services of two
releases, of which one knows more fields, understand each other. No field that a receiver acts on may be beside them.
"""

from __future__ import annotations

import dataclasses
import hmac
import logging
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

if TYPE_CHECKING:  # it must be loaded by nova.bus.transport, which chooses its threads
    import oslo_messaging as messaging

LOG = logging.getLogger(__name__)

# The entry of a message's context that holds the seal. Others may be beside those that it covers: oslo.messaging adds
# some.
SEAL = "seal"
_SHA = "sha256"
_MASTER, _HOST = "master", "host"
# Hosts whose keys are remembered: names are known to be true only once their keys are made.
_REMEMBERED = 20_000
# The most characters of names of fields in a log line.
_LISTED = 200
# Each message has one form in it only: what differs, however little, is told apart.
_encode = msgspec.msgpack.Encoder().encode


@dataclasses.dataclass(frozen=True)
class Address:
    """A message's way: what it asks (``namespace.method``), and the host that is asked ("": the control plane)."""

    method: str
    host: str = ""


class Keys:
    """The key of this process: the master key, or that of ``host``. Without a key nothing is sealed."""

    def __init__(self, key: bytes = b"", host: str = "", generation: int = 1, *, required: bool = False,
                 generations: Mapping[str, int] | None = None, age: float = 0.0) -> None:
        self.host = host
        self._key = key
        self._generation = generation
        self._required = required
        self._generations = dict(generations or {})
        self._age = age
        self._derived: dict[tuple[str, int], bytes] = {}
        # What is acted on here.
        self._known = frozenset((*RequestContext.FIELDS, *RequestContext.TOKEN, *deadlines.FIELDS))

    def of_host(self, host: str) -> Keys:
        """What a host has where this is the master key (without one: the same)."""
        if not self._key or self.host:
            return self
        generation = self._generations.get(host, 1)
        return Keys(host_key(self._key, host, generation), host, generation, required=self._required, age=self._age)

    # --- sealing ---------------------------------------------------------------------------------
    def seal(self, address: Address, wire: Mapping[str, Any], payload: str) -> dict[str, Any] | None:
        """What goes along with a message; None if this process has no key."""
        if not self._key:
            return None
        whose, generation = self.host or address.host, self._generation
        if not self.host:
            generation = self._generations.get(whose, 1)
        covers = list(wire)
        return {"by": self.host, "generation": generation, "covers": covers,
                "mac": self._mac(whose, generation, self.host, address, payload, covers, wire)}

    def sender(self, address: Address, wire: Mapping[str, Any], payload: str) -> str:
        """The host that has sent a message ("": the control plane, or one that need not prove it).

        Raises CallerRefused.
        """
        seal = wire.get(SEAL)
        if seal is None or not self._key:
            if self._required:
                raise exception.CallerRefused(f"{address.method} is refused: its message has no seal.")
            return ""
        try:
            known = msgspec.convert(seal, Seal)
        except msgspec.ValidationError as error:
            raise exception.CallerRefused(f"{address.method} is refused: its seal cannot be read.") from error
        self._check(known, address, wire, payload)
        return known.by

    def _check(self, seal: Seal, address: Address, wire: Mapping[str, Any], payload: str) -> None:
        who = f"host {_listed([seal.by])}" if seal.by else "the control plane"
        if self.host:
            # Only our own key: what another host has sealed looks to us like any forgery.
            whose, wanted = self.host, self._generation
        else:
            whose = seal.by or address.host
            wanted = self._generations.get(whose, 1)
        if seal.generation != wanted:
            raise exception.CallerRefused(f"{address.method} is refused: the key of {who} is of another generation.")
        self._compare_fields(seal.covers, address, wire)
        try:
            mac = self._mac(whose, wanted, seal.by, address, payload, seal.covers, wire)
            same = hmac.compare_digest(seal.mac.encode(), mac.encode())
        except (ValueError, OverflowError):  # what no sender says: half a character, a number without end
            same = False
        if not same:
            raise exception.CallerRefused(f"{address.method} is refused: it is not from {who}.")
        sent = wire[deadlines.SENT_AT]
        if self._age and not (isinstance(sent, int | float) and abs(time.time() - sent) <= self._age):
            raise exception.CallerRefused(f"{address.method} of {who} is refused: it was sent long ago, or our "
                                          "clocks differ.")

    def _compare_fields(self, covers: list[str], address: Address, wire: Mapping[str, Any]) -> None:
        """All that is covered is there, once, and nothing is beside it that somebody may have added."""
        names = frozenset(covers)
        if len(names) < len(covers):
            raise exception.CallerRefused(f"{address.method} is refused: its seal covers a field twice.")
        if not names <= wire.keys():
            raise exception.CallerRefused(f"{address.method} is refused: it lacks {_listed(names - wire.keys())}.")
        uncovered = self._known - names
        if not uncovered.isdisjoint(wire) or deadlines.SENT_AT in uncovered:
            found = uncovered & {*wire, deadlines.SENT_AT}
            raise exception.CallerRefused(f"{address.method} is refused: its seal does not cover {_listed(found)}.")

    def _mac(self, whose: str, generation: int, by: str, address: Address, payload: str, covers: Iterable[str],
             wire: Mapping[str, Any]) -> str:
        text = _encode((by, address.host, address.method, payload, [(name, wire[name]) for name in covers]))
        return hmac.digest(self._key_of(whose, generation), text, _SHA).hex()

    def _key_of(self, host: str, generation: int) -> bytes:
        if self.host:
            return self._key
        key = self._derived.get((host, generation))
        if key is None:
            if len(self._derived) >= _REMEMBERED:
                self._derived.clear()
            key = self._derived[host, generation] = host_key(self._key, host, generation)
        return key


def _listed(names: Iterable[str]) -> str:
    """For a log: somebody may have chosen them."""
    return ", ".join(ascii(name)[1:-1] for name in sorted(names))[:_LISTED]


class Seal(msgspec.Struct):
    # Its key is remembered before it is known to be right: no more than a name has room for.
    by: Annotated[str, msgspec.Meta(max_length=255)]
    generation: int
    mac: str
    covers: list[str]


def host_key(master: bytes, host: str, generation: int) -> bytes:
    """The key of a host; with the name "" that of the control plane."""
    return hmac.digest(master, f"{_HOST if host else 'control'}\0{host}\0{generation}".encode(), _SHA)


# --- files -----------------------------------------------------------------------------------------
def text_of(key: bytes, host: str = "", generation: int = 1) -> str:
    """A key as it stands in a file."""
    return f"{_HOST} {host} {generation} {key.hex()}\n" if host else f"{_MASTER} {key.hex()}\n"


def read(path: str) -> tuple[bytes, str, int]:
    """The key of a file, whose it is ("": the master key), and its generation. Raises InvalidInput."""
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o007:
                raise ValueError("everybody may read or write it")
            words = file.read().split()
        if len(words) == 2 and words[0] == _MASTER:
            words = [_MASTER, "", "1", words[1]]
        elif len(words) != 4 or words[0] != _HOST:
            raise ValueError("it holds no key")
        key = bytes.fromhex(words[3])
        if len(key) < 32:
            raise ValueError("its key is too short")
        return key, words[1], int(words[2])
    except (OSError, ValueError) as error:
        raise exception.InvalidInput(reason=f"[rpc]key_file {path} cannot be used: {error}") from error


def configured(conf: cfg.ConfigOpts) -> Keys:
    """The key of the configuration. Raises InvalidInput for a file that cannot be used."""
    if "rpc" not in conf:  # a transport of somebody who has none of our options
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


def use(bus: messaging.RPCTransport, keys: Keys) -> None:
    """All that is sent and received by this transport from now on is sealed with, and checked by, these."""
    _KEYS[bus] = keys


def keys_of(bus: messaging.RPCTransport) -> Keys:
    return _KEYS.get(bus, _NONE)
