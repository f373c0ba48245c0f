"""[conductor]: the processes that own the database."""

from oslo_config import cfg

OPTIONS = {
    "conductor": [
        cfg.IntOpt("workers", min=1, help="Worker processes; unset: one per CPU, at most 8."),
        cfg.IntOpt("lease", default=30, min=0,
                   help="Seconds after which a step whose owner gave no sign is given to another. At least "
                        "twice report_interval."),
        cfg.IntOpt("recovery_interval", default=5, min=1, help="Seconds between two looks for expired leases."),
        cfg.IntOpt("max_attempts", default=3, min=1, help="How many hosts a build is tried on."),
        cfg.IntOpt("threads", default=16, min=1, help="Operations whose conductor steps run at the same time."),
    ],
}
