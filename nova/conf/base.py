"""Options in [DEFAULT] that most services read."""

import socket

from oslo_config import cfg

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
                   help="Seconds that a stopping service has to finish the work it began. Unfinished work is then "
                        "handed over to other processes, and remaining processes are killed 10 seconds later. Read by "
                        "all services. Set TimeoutStopSec of systemd at least 15 seconds longer."),
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
                   "period begins, as in day@6. Read by nova-api and nova-conductor."),
        cfg.StrOpt("default_schedule_zone",
                   help="Availability zone for servers that request none. Unset: any zone. Read by nova-conductor."),
    ],
}
