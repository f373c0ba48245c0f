"""[prometheus]: what services count, for Prometheus to fetch."""

from oslo_config import cfg

SERVICES = ("api", "conductor", "scheduler", "compute", "metadata", "novncproxy", "spicehtml5proxy",
            "serialproxy")

OPTIONS = {
    "prometheus": [
        cfg.StrOpt("listen", default="127.0.0.1",
                   help="The address at which every service offers its metrics. There is no authentication: choose "
                        "one that only the monitoring reaches."),
        *(cfg.PortOpt(f"{service}_port", default=0,
                      help=f"The port of the metrics of nova-{service}'s first worker; the next worker has the next "
                           f"port, and so on. 0: nova-{service} counts nothing.")
          for service in SERVICES),
        cfg.IntOpt("interval", default=15, min=1,
                   help="Seconds between two looks at what is not counted as it happens: unfinished actions, "
                        "services that are up, guests."),
    ],
}
