"""Typed RPC over oslo.messaging: interfaces are declared once, see :mod:`nova.bus.interface`."""

from nova.bus.transport import SENT, connect  # isort: skip (chooses the threading back end)
from nova.bus.client import at, client, patiently
from nova.bus.interface import Interface, call, cast, fanout, packed, prepare, slow_call
from nova.bus.server import serve, stop_taking

__all__ = ["SENT", "Interface", "at", "call", "cast", "client", "connect", "fanout", "packed", "patiently", "prepare",
           "serve", "slow_call", "stop_taking"]
