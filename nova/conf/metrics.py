"""Options of the Prometheus metrics of all services ([prometheus])."""

from oslo_config import cfg

SERVICES = ("api", "conductor", "scheduler", "compute", "metadata", "novncproxy", "spicehtml5proxy", "serialproxy")

OPTIONS = {
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
}
