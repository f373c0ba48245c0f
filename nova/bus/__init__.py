"""Typed RPC over oslo.messaging: interfaces are declared once, see :mod:`nova.bus.interface`."""

from nova.bus import oslo  # isort: skip (chooses native threads before anything imports oslo.messaging)
from nova.bus.broker import forget
from nova.bus.client import ask_again, at, client, retry_until_available, within
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
from nova.bus.publisher import Publisher
from nova.bus.publisher import drivers as notification_drivers
from nova.bus.seals import Keys, configured, keys_of
from nova.bus.server import serve, stop_taking
from nova.bus.transport import SENT, connect, patience

__all__ = ["SENT", "Interface", "Keys", "Publisher", "ask_again", "at", "brief_cast", "by_hosts", "call", "cast",
           "client", "configured", "connect", "fanout", "forget", "keys_of", "notification_drivers", "oslo",
           "packed", "patience", "prepare", "retry_until_available", "serve", "slow_call", "stop_taking",
           "with_token", "within"]
