"""The connections of a compute host whose account of the broker may do nothing but what a host does.

oslo.messaging declares the exchange that all services share, and queues that nobody sends to on a host. For that a host
would need the right to delete the exchange, and with it every queue's way to its messages. So a host takes the exchange
for granted, as conductors make it, and has its own two queues: that of its orders and that of its answers.
"""

from __future__ import annotations

import re
from typing import Any

from oslo_messaging._drivers import impl_rabbit


class _AllDeclared(set):  # type: ignore[type-arg]
    """Whatever is asked, it is there."""

    def __contains__(self, _name: object) -> bool:
        return True


class HostConnection(impl_rabbit.Connection):  # type: ignore[misc]
    """In place of oslo.messaging's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._declared_exchanges = _AllDeclared()

    def declare_topic_consumer(self, exchange_name: str, topic: str, callback: Any = None,
                               queue_name: str | None = None) -> None:
        """Only what is addressed to this host; what is for any host is sent to none."""
        if "." in topic:
            super().declare_topic_consumer(exchange_name, topic, callback, queue_name)

    def declare_fanout_consumer(self, topic: str, callback: Any) -> None:
        """Nothing is said to all hosts at once."""

    def declare_consumer(self, consumer: Any) -> Any:
        consumer.exchange.passive = True
        return super().declare_consumer(consumer)


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
