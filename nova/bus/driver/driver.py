"""The drivers for oslo.messaging, which send messages, wait for replies and create listeners."""

import time
import uuid
from typing import Any

import oslo_messaging as messaging

from nova.bus import oslo
from nova.bus.driver import memory, rabbit, wire
from nova.bus.driver.broker import Broker, Exchange, Outgoing, Queue
from nova.bus.driver.calls import Calls
from nova.bus.driver.options import Options
from nova.bus.driver.requests import Listener

# The broker must confirm a message within this share of the message's timeout, and within this number of seconds.
_SHARE, _LONGEST = 0.25, 5.0
_SECONDS = 20.0  # timeout in seconds of a message for which the sender sets none


class Delivery(messaging.TransportOptions):  # type: ignore[misc]
    """Options of one message, for RPCClient.prepare(transport_options=...). ``expires``: seconds after which the broker
    drops the message if no server has taken it. ``seconds``: timeout of the message, including the broker's
    confirmation. Other drivers ignore both options."""

    def __init__(self, expires: float | None = None, seconds: float | None = None, mandatory: bool = True) -> None:
        super().__init__(at_least_once=mandatory)
        self.expires, self.seconds = expires, seconds


class Server(messaging.Target):  # type: ignore[misc]
    """The target of a server, with the number of its threads (None: [DEFAULT]executor_thread_pool_size)."""

    def __init__(self, topic: str, server: str, threads: int | None = None) -> None:
        super().__init__(topic=topic, server=server)
        self.threads = threads


class Driver(oslo.BaseDriver):  # type: ignore[misc]
    """The base class of the drivers for RabbitMQ and for one process."""

    def __init__(self, conf: Any, url: Any, default_exchange: str | None = None,
                 allowed_remote_exmods: Any = None) -> None:
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        self.options = Options.of(conf)
        self.broker: Broker = self.make_broker()
        self._host = ""
        self.calls = self._make_calls()

    def make_broker(self) -> Broker:
        raise NotImplementedError

    def restrict_to_host(self, host: str) -> None:
        """Use no more rights than a compute host's account has: declare no exchange, consume only from own queues."""
        self._host = host
        self.calls = self._make_calls()

    # --- sending -------------------------------------------------------------------------------------
    def send(self, target: Any, ctxt: dict[str, Any], message: dict[str, Any], wait_for_reply: bool | None = None,
             timeout: float | None = None, call_monitor_timeout: float | None = None, retry: int | None = None,
             transport_options: Any = None) -> Any:
        """Publish a request; return the result of a call. Raises NotPublished, BrokerBlocked, MessageUndeliverable,
        MessagingTimeout, RemoteError."""
        started = time.monotonic()
        total = getattr(transport_options, "seconds", None) or timeout or _SECONDS
        until = started + min(_LONGEST, total * _SHARE)
        expires = getattr(transport_options, "expires", None) or timeout
        self.broker.check()
        call = self.calls.begin(until) if wait_for_reply else None
        try:
            body = wire.with_context({**message, "_unique_id": uuid.uuid4().hex}, ctxt)
            if call is not None:
                body.update({"_msg_id": call.id, "_reply_q": call.reply_queue, "_timeout": None})
            if target.fanout:
                exchange, key = self._fanout(target.topic), ""
            else:
                exchange = self._topics(target.exchange)
                key = f"{target.topic}.{target.server}" if target.server else target.topic
            self.broker.publish(Outgoing(
                exchange, key, wire.encode(body), until, None if expires is None else started + expires,
                bool(transport_options and transport_options.at_least_once), retry))
            if call is not None:
                return call.result(started + (timeout or _SECONDS) - time.monotonic())
        finally:
            if call is not None:
                self.calls.end(call)
        return None

    def send_notification(self, target: Any, ctxt: dict[str, Any], message: dict[str, Any], version: float,
                          retry: int | None = None) -> None:
        """Publish a notification to a queue that keeps it until a consumer comes. Raises NotPublished."""
        exchange = self._topics(target.exchange)
        body = wire.with_context({**message, "_unique_id": uuid.uuid4().hex}, ctxt)
        queue = Queue(target.topic, exchange, target.topic, exchange.durable, exchange.auto_delete,
                      self.options.queue_arguments())
        self.broker.publish(Outgoing(
            exchange, target.topic, (wire.encode if version == 2.0 else wire.encode_plain)(body),
            time.monotonic() + _LONGEST, retries=retry, queue=queue))

    def _make_calls(self) -> Calls:
        prefix = f"reply_{self._host}_" if self._host else "reply_"
        return Calls(self.broker, Queue(prefix + uuid.uuid4().hex, durable=self.options.transient_quorum,
                                        arguments=self.options.queue_arguments(temporary=True)))

    # --- receiving -----------------------------------------------------------------------------------
    def listen(self, target: Any, batch_size: int, batch_timeout: float | None) -> Listener:
        """Return a listener for the queues of this server: its own and, except on compute hosts, those of the topic."""
        exchange, options = self._topics(target.exchange), self.options
        own = f"{target.topic}.{target.server}"
        queues = [Queue(name, exchange, name, exchange.durable, exchange.auto_delete, options.queue_arguments())
                  for name in ([own] if self._host else [target.topic, own])]
        if not self._host:
            queues.append(Queue(
                f"{target.topic}_fanout_{uuid.uuid4().hex}", self._fanout(target.topic), target.topic,
                options.transient_quorum, arguments=options.queue_arguments(temporary=True), temporary=True))
        threads = getattr(target, "threads", None) or self.conf.executor_thread_pool_size
        return Listener(self.broker, queues, threads, options.missing_queue_seconds)

    def listen_for_notifications(self, *_args: Any, **_kwargs: Any) -> Any:
        """Raise NotImplementedError: Nova only sends notifications."""
        raise NotImplementedError("This driver does not receive notifications: use a transport URL rabbit://.")

    def cleanup(self) -> None:
        self.calls.close()
        self.broker.close()

    # --- names ---------------------------------------------------------------------------------------
    def _topics(self, name: str | None) -> Exchange:
        options = self.options
        return Exchange(name or self._default_exchange or "", "topic", options.durable, options.auto_delete,
                        declare=not self._host)

    def _fanout(self, topic: str) -> Exchange:
        return Exchange(f"{topic}_fanout", "fanout", self.options.transient_quorum, auto_delete=True,
                        declare=not self._host)


class RabbitDriver(Driver):
    """The driver for transport URLs ``nova-rabbit://``."""

    def make_broker(self) -> Broker:
        return rabbit.RabbitBroker(self._url, self.options)


class MemoryDriver(Driver):
    """The driver for transport URLs ``nova-memory://``."""

    def make_broker(self) -> Broker:
        return memory.broker(str(self._url))
