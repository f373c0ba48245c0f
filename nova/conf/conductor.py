"""[DEFAULT] and [conductor]: the processes that own the database."""

from oslo_config import cfg

OPTIONS = {
    None: [
        cfg.BoolOpt("allow_resize_to_same_host", default=False,
                    help="Whether a resize may choose the host that the server is on."),
        cfg.IntOpt("resize_confirm_window", default=0, min=0,
                   help="Seconds after which a resize or a cold migration is confirmed by itself; 0: never."),
        cfg.IntOpt("rescue_timeout", default=0, min=0,
                   help="Seconds after which a rescued server runs from its own disks again by itself; 0: never. It is "
                        "looked for every minute."),
        cfg.IntOpt("shelved_offload_time", default=0, min=-1,
                   help="Seconds after which a shelved server gives its host back by itself; 0: at once, -1: never."),
        cfg.IntOpt("shelved_poll_interval", default=3600, min=1,
                   help="Seconds between two looks for shelved servers that are to give their host back."),
    ],
    "conductor": [
        cfg.IntOpt("workers", min=1, help="Worker processes; unset: one per CPU, at most 8."),
        cfg.IntOpt("lease", default=30, min=0,
                   help="Seconds after which a step whose owner gave no sign is given to another. At least "
                        "twice report_interval."),
        cfg.IntOpt("recovery_interval", default=5, min=1, help="Seconds between two looks for expired leases."),
        cfg.IntOpt("max_attempts", default=3, min=1,
                   help="How many hosts a build, or a live migration without a host, is tried on."),
        cfg.IntOpt("transactions", default=2, min=1,
                   help="Transactions of a worker process that run at the same time; the others take turns by their "
                        "projects. One that has been waiting for a lock for a while does not count."),
        cfg.IntOpt("report_threads", default=16, min=1,
                   help="Reports of hosts that are handled at the same time, beside what users ask."),
        cfg.IntOpt("threads", default=4, min=1,
                   help="Steps that need nothing but the database and run at the same time. More are not faster: "
                        "each takes longer, and with it what another project asks for."),
        cfg.StrOpt("secret_key_file", default="$state_path/secret.keys",
                   help="The keys that passwords of servers, and keys of their volumes, are encrypted with in the "
                        "database, one per line (url-safe base64 of 32 bytes): the first encrypts, all decrypt. Made "
                        "by the first conductor, with mode 0600, if it is not there. The conductors of all machines "
                        "need the same."),
        cfg.IntOpt("outside_threads", default=16, min=1,
                   help="Steps that wait for the same service outside (Neutron, Cinder, Glance) at the same time."),
    ],
}
