"""Options of the Prometheus metrics ([prometheus]) and OpenTelemetry traces ([tracing]) of all services."""

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
    "tracing": [
        cfg.BoolOpt("enabled", default=False, help="Send trace spans to an OpenTelemetry collector, including those of "
                    "oslo.messaging. Needs the packages of the extra otel. Read by all services; a service without it "
                    "is missing in the traces."),
        cfg.StrOpt("endpoint", default="http://127.0.0.1:4318",
                   help="URL of the collector for OTLP over HTTP; /v1/traces is appended. Read by all services."),
        cfg.FloatOpt("sample_ratio", default=1.0, min=0.0, max=1.0,
                     help="Fraction of the requests that is traced. Read by nova-api and nova-metadata; the other "
                          "services follow their decision. Lower it under high load."),
        cfg.StrOpt("service_name", help="Value of service.name in spans. Unset: the name of the service (nova-api, "
                   "...). Read by all services."),
    ],
}
