"""Options that most services read ([DEFAULT]), also for message signing and limits on the message bus ([rpc]), metrics
([prometheus]) and traces ([tracing])."""

import socket

from oslo_config import cfg

SERVICES = ("api", "conductor", "scheduler", "compute", "metadata", "novncproxy", "spicehtml5proxy", "serialproxy")

OPTIONS = {
    None: [
        cfg.StrOpt("host", default=socket.gethostname(), sample_default="<hostname>",
                   help="Name of this host: the key of its services and of its servers in the database. Read by all "
                        "services. Never change it while the host has servers."),
        cfg.StrOpt("my_ip", default="127.0.0.1",
                   help="IP address at which other hosts reach this host. It is the default of several other "
                        "addresses. Read by nova-compute. Set it on every host of a deployment with several hosts."),
        cfg.StrOpt("state_path", default="/var/lib/nova", help="Directory for the persistent files of Nova; other "
                   "options refer to it as $state_path. Read by all services."),
        cfg.StrOpt("instances_path", default="$state_path/instances",
                   help="Directory for the disks of guests. Read by nova-compute. Set it to a shared file system to "
                        "evacuate and migrate servers without copying disks."),
        cfg.StrOpt("instance_name_template", default="instance-%08x",
                   help="Template of the names of guests on the hypervisor, filled with the number of the server, or "
                        "with its id as %(uuid)s. Read by nova-api, nova-conductor and nova-compute; all need the same "
                        "value. Change it only where several deployments share a hypervisor."),
        cfg.IntOpt("report_interval", default=10, min=1, help="Seconds between two heartbeats of a service. Read by "
                   "all services. Keep it well below service_down_time."),
        cfg.IntOpt("service_down_time", default=60, min=1, help="Seconds without a heartbeat after which a service "
                   "counts as down. Read by nova-conductor, nova-scheduler and nova-compute."),
        cfg.IntOpt("graceful_shutdown_timeout", default=60, min=1,
                   help="Seconds that a stopping service may spend on finishing its work. Then other services take "
                        "over the unfinished work; 10 seconds later the processes of the stopping service are killed. "
                        "Read by all services. Set TimeoutStopSec of systemd at least 15 seconds longer."),
        cfg.StrOpt("default_availability_zone", default="nova", help="Availability zone of hosts that no aggregate "
                   "assigns to a zone. Read by nova-api, nova-conductor and nova-scheduler."),
        cfg.StrOpt("internal_service_availability_zone", default="internal",
                   help="Availability zone shown for services other than nova-compute. Read by nova-conductor."),
        cfg.IntOpt("max_local_block_devices", default=3, min=-1,
                   help="Maximum number of local disks of a new server: its root disk, ephemeral disks and swap. 0: "
                        "servers must boot from volumes; -1: no limit. Read by nova-conductor."),
        cfg.IntOpt("reclaim_instance_interval", default=0, min=0,
                   help="Seconds for which a deleted server is only powered off, so that its user can restore it. 0: "
                        "the server is deleted immediately. Read by nova-api and nova-conductor."),
        cfg.BoolOpt("instance_usage_audit", default=False, help="Send a notification instance.exists for each server "
                    "at the end of each audit period. Needs a driver in [oslo_messaging_notifications]. Read by "
                    "nova-conductor. Set it for billing by notifications."),
        cfg.StrOpt("instance_usage_audit_period", default="month",
                   regex="^(hour(@[1-5]?[0-9])?|day(@(1?[0-9]|2[0-3]))?|month(@([1-9]|1[0-9]|2[0-8]))?|"
                         "year(@([1-9]|1[0-2]))?)$", help="Length of the audit periods of os-instance_usage_audit_log: "
                   "hour, day, month or year. @NUMBER sets the minute, hour, day (at most 28) or month at which a "
                   "period begins: day@6 begins at 06:00 UTC. Read by nova-api and nova-conductor."),
        cfg.StrOpt("default_schedule_zone",
                   help="Availability zone for servers that request none. Unset: any zone. Read by nova-conductor."),
    ],
    "rpc": [
        cfg.StrOpt("rabbit_driver", default="nova", choices=["nova", "oslo"],
                   help="Driver for a transport_url rabbit://. nova: the driver of Nova, whose timeouts include "
                        "publishing and which detects that the broker blocks publishers; nova-rabbit:// always selects "
                        "it. oslo: the driver of oslo.messaging, which compute hosts with broker accounts of their own "
                        "cannot use. Services with different drivers can share a broker. Read by all services."),
        cfg.StrOpt("key_file", help="File with the key with which the services of this machine sign and verify "
                   "messages: the master key on control nodes ('nova-manage host make_master_key'), the key of the "
                   "host on compute hosts ('nova-manage host enrol'). Its mode must be 0600, or 0640 with the group of "
                   "the services. Unset: messages are not signed. Read by all services."),
        cfg.BoolOpt("require_seals", default=False,
                    help="Refuse messages without a signature. By default they are accepted, so that any account of "
                         "the broker has full control; messages with a wrong signature are always refused. Read by "
                         "all services. Set it on control nodes and compute hosts as soon as all machines have keys."),
        cfg.DictOpt("key_generations", default={}, help="Valid key generations of hosts, as HOST:NUMBER,... A host "
                    "that is not listed has generation 1. Keys of other generations are refused. Read by "
                    "nova-conductor, nova-scheduler and nova-manage. After a host was compromised, raise its "
                    "generation, restart the control services and enrol the host again."),
        cfg.IntOpt("seal_age", default=600, min=0,
                   help="Seconds after which a signed message is refused, and the maximum difference between the "
                        "clocks of two machines. 0: messages do not expire. Read by all services."),
        cfg.StrOpt("broker_api", secret=True, help="URL of RabbitMQ's management plugin with the name and password of "
                   "an administrator (https://NAME:PASSWORD@HOST:15671), with which 'nova-manage host' creates the "
                   "broker accounts of hosts. Unset: the command writes definitions to import by hand. Read by "
                   "nova-manage only; keep the option in a separate file."),
        cfg.IntOpt("max_message_size", default=64, min=1,
                   help="Maximum size of a received message in MiB after decompression. Read by all services."),
        cfg.IntOpt("max_host_message_size", default=2, min=1,
                   help="Maximum size in MiB of a message from a compute host after decompression. It is small because "
                        "a decoded message uses many times its size in memory. Read by nova-conductor and "
                        "nova-scheduler. Raise it for hosts with thousands of devices or guests."),
    ],
    "prometheus": [
        cfg.StrOpt("listen", default="127.0.0.1",
                   help="IP address on which every service serves its metrics. Read by all services. There is no "
                        "authentication: use an address that only the monitoring system can reach."),
        *(cfg.PortOpt(f"{service}_port", default=0,
                      help=f"TCP port for the metrics of the first worker of nova-{service}; the next worker uses the "
                           f"next port, and so on. 0: no metrics. Read by nova-{service}.")
          for service in SERVICES),
        cfg.IntOpt("interval", default=15, min=1, help="Seconds between two updates of the metrics that are polled: "
                   "unfinished actions, services that are up, guests. Read by nova-conductor and nova-compute."),
    ],
    "tracing": [
        cfg.BoolOpt("enabled", default=False, help="Send trace spans to an OpenTelemetry collector, including those of "
                    "oslo.messaging. Needs the packages of Nova's extra otel. Read by all services; traces have no "
                    "spans of services in which the option is not set."),
        cfg.StrOpt("endpoint", default="http://127.0.0.1:4318",
                   help="URL of the collector for OTLP over HTTP; /v1/traces is appended. Read by all services."),
        cfg.FloatOpt("sample_ratio", default=1.0, min=0.0, max=1.0,
                     help="Fraction of the requests that is traced. Read by nova-api and nova-metadata; the other "
                          "services follow their decision. Lower it under high load."),
        cfg.StrOpt("service_name", help="Value of service.name in spans. Unset: the name of the service (nova-api, "
                   "...). Read by all services."),
    ],
}
