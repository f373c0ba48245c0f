"""Typed RPC over oslo.messaging. :mod:`nova.bus.interface` describes how interfaces are declared."""

from nova.bus import oslo  # isort: skip (chooses native threads before anything imports oslo.messaging)
from nova.bus.broker import forget
from nova.bus.client import at, client, retry_once, retry_until_available, within
from nova.bus.interface import (
    Interface,
    brief_cast,
    by_hosts,
    call,
    cast,
    fanout,
    packed,
    prepare,
    slow_call,
    with_token,
)
from nova.bus.message_signing import Keys, configured, keys_of
from nova.bus.publisher import Publisher
from nova.bus.publisher import drivers as notification_drivers
from nova.bus.server import serve, stop_taking
from nova.bus.transport import SENT, call_timeout, connect

__all__ = ["SENT", "Interface", "Keys", "Publisher", "at", "brief_cast", "by_hosts", "call", "call_timeout", "cast",
           "client", "configured", "connect", "fanout", "forget", "keys_of", "notification_drivers", "oslo", "packed",
           "prepare", "retry_once", "retry_until_available", "serve", "slow_call", "stop_taking", "with_token",
           "within"]
