"""The broker account of a compute host: rights to its own two queues and to publish to control services.

A host may not declare the exchange that all services share: that right includes deleting it, and with it the bindings
of every queue. Nova's driver therefore uses the exchange as conductors declare it (Driver.restrict_to_host).
"""

from __future__ import annotations

import re


def permissions(host: str, topic: str, exchange: str) -> dict[str, str]:
    """What the account of a host may do with the broker's objects: patterns of their names."""
    own = rf"{_exactly(topic)}\.{_exactly(host)}|reply_{_exactly(host)}_[0-9a-f]{{32}}"
    return {"configure": f"^({own})$", "write": rf"^({own}|{_exactly(exchange)}|amq\.default)$",
            "read": f"^({own}|{_exactly(exchange)})$"}


def topic_permissions(host: str, topic: str, asked: list[str], exchange: str) -> dict[str, str]:
    """Whom the host may ask by the shared exchange, and what it may have sent to its queue."""
    return {"exchange": exchange, "write": f"^({'|'.join(map(_exactly, asked))})$",
            "read": rf"^{_exactly(topic)}\.{_exactly(host)}$"}


def _exactly(name: str) -> str:
    return re.escape(name).replace(r"\-", "-")
