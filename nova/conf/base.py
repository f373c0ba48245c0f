"""[DEFAULT]: what every process reads."""

import socket

from oslo_config import cfg

OPTIONS = {
    None: [
        cfg.StrOpt("host", default=socket.gethostname(), sample_default="<hostname>",
                   help="The name of this host: the key of its services and of its servers. Never change it while "
                        "the host has servers."),
        cfg.StrOpt("my_ip", default="127.0.0.1", help="The address under which other hosts reach this one."),
        cfg.StrOpt("state_path", default="/var/lib/nova", help="Where Nova keeps its files."),
        cfg.StrOpt("instances_path", default="$state_path/instances", help="Where the disks of guests are."),
        cfg.StrOpt("instance_name_template", default="instance-%08x",
                   help="The names of guests on the hypervisor, from the server's number or %(uuid)s. Deployments "
                        "that share a hypervisor need different ones; all services need the same."),
        cfg.IntOpt("report_interval", default=10, min=1, help="Seconds between two heartbeats of a service."),
        cfg.IntOpt("service_down_time", default=60, min=1,
                   help="Seconds without a heartbeat after which a service counts as down."),
        cfg.IntOpt("graceful_shutdown_timeout", default=60, min=1,
                   help="Seconds that a service which is told to stop has for what it has begun; what is left then is "
                        "handed over. 10 seconds later its processes are killed."),
        cfg.StrOpt("default_availability_zone", default="nova",
                   help="The zone of hosts that are in no aggregate with a zone."),
        cfg.StrOpt("internal_service_availability_zone", default="internal",
                   help="The zone shown for services that are not computes."),
        cfg.IntOpt("max_local_block_devices", default=3, min=-1,
                   help="How many local disks a new server may have: its root disk, ephemeral ones and swap. 0: none, "
                        "servers boot from volumes; -1: any number. Read by nova-conductor."),
        cfg.IntOpt("reclaim_instance_interval", default=0, min=0,
                   help="Seconds that a deleted server is only powered off, so that its user may restore it; 0: it "
                        "is deleted at once. Read by nova-api and nova-conductor."),
        cfg.BoolOpt("instance_usage_audit", default=False,
                    help="Tell at the end of each period, by instance.exists, which servers there were in it. Needs a "
                         "driver in [oslo_messaging_notifications]. Read by nova-conductor."),
        cfg.StrOpt("instance_usage_audit_period", default="month",
                   regex="^(hour(@[1-5]?[0-9])?|day(@(1?[0-9]|2[0-3]))?|month(@([1-9]|1[0-9]|2[0-8]))?|"
                         "year(@([1-9]|1[0-2]))?)$",
                   help="The periods of os-instance_usage_audit_log: hour, day, month or year, which begin at @ a "
                        "minute, hour, day (up to 28) or month. Read by nova-api and nova-conductor."),
        cfg.StrOpt("default_schedule_zone", help="The zone for servers that ask for none; unset: any."),
    ],
}
