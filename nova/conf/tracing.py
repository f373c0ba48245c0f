"""[tracing]: the way of a request through all services, for OpenTelemetry."""

from oslo_config import cfg

OPTIONS = {
    "tracing": [
        cfg.BoolOpt("enabled", default=False,
                    help="Send spans. Needs the packages of the extra otel, and the same setting on every service: "
                         "one without it leaves a hole in the trace. Turns on the tracing of oslo.messaging, too."),
        cfg.StrOpt("endpoint", default="http://127.0.0.1:4318",
                   help="Where a collector takes spans by OTLP over HTTP; /v1/traces is appended."),
        cfg.FloatOpt("sample_ratio", default=1.0, min=0.0, max=1.0,
                     help="The part of the requests that is traced. nova-api and nova-metadata decide, the others "
                          "follow."),
        cfg.StrOpt("service_name",
                   help="The service.name of the spans; unset: the name of the service (nova-api, ...)."),
    ],
}
