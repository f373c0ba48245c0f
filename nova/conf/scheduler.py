"""[scheduler] and [filter_scheduler]: how hosts are chosen."""

from oslo_config import cfg

OPTIONS = {
    "scheduler": [
        cfg.IntOpt("workers", min=1, help="Worker processes; unset: one per CPU, at most 8."),
    ],
}
