"""The broker account of a compute host: rights to its own two queues and to publish to control services.

A host may not declare the exchange that all services share: that right includes deleting it, and with it the bindings
of every queue. Nova's driver therefore uses the exchange as conductors declare it (Driver.restrict_to_host).
"""

from __future__ import annotations

import re


def permissions(host: str, topic: str, exchange: str) -> dict[str, str]:
    """Return RabbitMQ's permissions for the account of a host, as patterns of the names of queues and exchanges."""
    own = rf"{_exactly(topic)}\.{_exactly(host)}|reply_{_exactly(host)}_[0-9a-f]{{32}}"
    return {"configure": f"^({own})$", "write": rf"^({own}|{_exactly(exchange)}|amq\.default)$",
            "read": f"^({own}|{_exactly(exchange)})$"}


def topic_permissions(host: str, topic: str, topics: list[str], exchange: str) -> dict[str, str]:
    """Return RabbitMQ's topic permissions of a host: it may send to ``topics`` and receive from its own queue."""
    return {"exchange": exchange, "write": f"^({'|'.join(map(_exactly, topics))})$",
            "read": rf"^{_exactly(topic)}\.{_exactly(host)}$"}


def _exactly(name: str) -> str:
    return re.escape(name).replace(r"\-", "-")
