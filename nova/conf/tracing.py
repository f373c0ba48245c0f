"""Options of OpenTelemetry tracing ([tracing]), read by all services."""

from oslo_config import cfg

OPTIONS = {
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
