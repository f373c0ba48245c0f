"""Options of the driver: those of oslo.messaging's group ``[oslo_messaging_rabbit]``."""

from __future__ import annotations

import dataclasses
import functools
import ssl
from typing import Any

from oslo_messaging import opts

from nova import exception

_GROUP = "oslo_messaging_rabbit"
# Options that the driver does not support: only their default is allowed.
_UNSUPPORTED = ("rabbit_stream_fanout", "use_queue_manager", "kombu_compression", "rabbit_ha_queues")


@functools.cache
def of_library() -> list[tuple[str | None, list[Any]]]:
    """Return the options of oslo.messaging by group. The library copies all of them deeply for every caller."""
    return list(opts.list_opts())


def register(conf: Any, name: str = _GROUP) -> Any:
    """Register and return an option group of oslo.messaging."""
    for group, options in of_library():
        if group == name:
            conf.register_opts(options, group=name)
    return conf[name]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that the driver reads. Times are in seconds. ``reconnect_delay``: pause of this process before each
    attempt to reconnect. ``tls``: arguments of py-amqp (without the server's host name), or None without TLS."""

    durable: bool
    auto_delete: bool
    quorum: bool
    transient_quorum: bool
    quorum_arguments: dict[str, Any]
    transient_ttl: int
    cancel_on_failover: bool
    prefetch: int
    heartbeat: int
    login_method: str
    connections: int
    idle_seconds: float
    missing_queue_seconds: float
    reconnect_delay: float
    retry_interval: float
    retry_backoff: float
    retry_longest: float
    shuffle_hosts: bool
    tls: dict[str, Any] | None

    @classmethod
    def of(cls, conf: Any) -> Options:
        """Read the options. Raises InvalidInput for an option that the driver does not support."""
        group = register(conf)
        for name in _UNSUPPORTED:
            if group[name]:
                raise exception.InvalidInput(reason=f"[{_GROUP}]{name} is not supported by Nova's driver: unset it, or "
                                                    "set [rpc]rabbit_driver = oslo")
        limits = {"x-delivery-limit": group.rabbit_quorum_delivery_limit,
                  "x-max-in-memory-length": group.rabbit_quorum_max_memory_length,
                  "x-max-in-memory-bytes": group.rabbit_quorum_max_memory_bytes}
        return cls(durable=group.amqp_durable_queues or group.rabbit_quorum_queue, auto_delete=group.amqp_auto_delete,
                   quorum=group.rabbit_quorum_queue, transient_quorum=group.rabbit_transient_quorum_queue,
                   quorum_arguments={name: limit for name, limit in limits.items() if limit},
                   transient_ttl=group.rabbit_transient_queues_ttl, cancel_on_failover=group.enable_cancel_on_failover,
                   prefetch=group.rabbit_qos_prefetch_count, heartbeat=group.heartbeat_timeout_threshold,
                   login_method=group.rabbit_login_method, connections=group.rpc_conn_pool_size,
                   idle_seconds=group.conn_pool_ttl, missing_queue_seconds=group.kombu_missing_consumer_retry_timeout,
                   reconnect_delay=group.kombu_reconnect_delay, retry_interval=group.rabbit_retry_interval,
                   retry_backoff=group.rabbit_retry_backoff, retry_longest=group.rabbit_interval_max,
                   shuffle_hosts=group.kombu_failover_strategy == "shuffle", tls=_tls(group))

    def queue_arguments(self, temporary: bool = False) -> dict[str, Any]:
        """Return the arguments to declare a queue; a temporary one expires when it has no consumer."""
        arguments: dict[str, Any] = {}
        if self.transient_quorum if temporary else self.quorum:
            arguments.update({"x-queue-type": "quorum", **self.quorum_arguments})
        if temporary and self.transient_ttl:
            arguments["x-expires"] = self.transient_ttl * 1000
        return arguments


def _tls(group: Any) -> dict[str, Any] | None:
    if not group.ssl:
        return None
    versions = {"tlsv1": ssl.PROTOCOL_TLSv1, "sslv23": ssl.PROTOCOL_TLS_CLIENT, "tlsv1_1": ssl.PROTOCOL_TLSv1_1,
                "tlsv1_2": ssl.PROTOCOL_TLSv1_2}
    arguments: dict[str, Any] = {}
    if group.ssl_version:
        if group.ssl_version.lower() not in versions:
            raise exception.InvalidInput(reason=f"[{_GROUP}]ssl_version: unknown version {group.ssl_version!r}")
        arguments["ssl_version"] = versions[group.ssl_version.lower()]
    if group.ssl_key_file:
        arguments["keyfile"] = group.ssl_key_file
    if group.ssl_cert_file:
        arguments["certfile"] = group.ssl_cert_file
    if group.ssl_ca_file:
        arguments.update({"ca_certs": group.ssl_ca_file, "cert_reqs": ssl.CERT_REQUIRED})
    return arguments
