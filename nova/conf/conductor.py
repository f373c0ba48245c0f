"""Options of nova-conductor: automatic actions ([DEFAULT]), threads, leases and keys ([conductor]), certificates
([certificates]), the database ([database], read by nova-manage, too; its option names are those of oslo.db), default
quotas ([quota]), and notifications ([notifications]), sent only if [oslo_messaging_notifications]driver is set."""

from oslo_config import cfg

QUOTAS = {
    "instances": (10, "servers of a project"),
    "cores": (20, "virtual CPUs of the servers of a project"),
    "ram": (50 * 1024, "MiB of memory of the servers of a project"),
    "metadata_items": (128, "metadata items of a server"),
    "injected_files": (5, "injected files of a server"),
    "injected_file_content_bytes": (10 * 1024, "bytes in the content of an injected file"),
    "injected_file_path_length": (255, "bytes in the path of an injected file"),
    "key_pairs": (100, "key pairs of a user"),
    "server_groups": (10, "server groups of a project"),
    "server_group_members": (10, "servers in a server group"),
    "security_groups": (10, "security groups of a project"),
    "fixed_ips": (-1, "interfaces of the servers of a project (driver linuxnet)"),
    "floating_ips": (10, "floating IP addresses of a project"),
    "security_group_rules": (100, "rules in a security group"),
}

OPTIONS = {
    None: [
        cfg.BoolOpt("allow_resize_to_same_host", default=False, help="Allow a resize to select the current host of the "
                    "server. Read by nova-conductor. Set it in a deployment with one host."),
        cfg.IntOpt("resize_confirm_window", default=0, min=0, help="Seconds after which a resize or a cold migration "
                   "is confirmed automatically. 0: never. Read by nova-conductor."),
        cfg.IntOpt("rescue_timeout", default=0, min=0, help="Seconds after which a rescued server is unrescued "
                   "automatically, checked every minute. 0: never. Read by nova-conductor."),
        cfg.IntOpt("shelved_offload_time", default=0, min=-1, help="Seconds after which a shelved server is removed "
                   "from its host. 0: immediately, -1: never. Read by nova-conductor."),
        cfg.IntOpt("shelved_poll_interval", default=3600, min=1, help="Seconds between two checks for shelved servers "
                   "whose shelved_offload_time has passed. Read by nova-conductor."),
    ],
    "certificates": [
        cfg.IntOpt("days", default=365, min=1, max=3650, help="Days for which a certificate that os-certificates "
                   "issues is valid, but at most as long as the root certificate that signs it. Read by "
                   "nova-conductor."),
        cfg.IntOpt("root_days", default=3650, min=1, max=36500, help="Days for which the root certificate of a project "
                   "is valid. Read by nova-conductor and nova-manage."),
        cfg.IntOpt("max_per_project", default=100, min=-1, help="Maximum number of certificates of a project that are "
                   "neither expired nor revoked; further requests are answered with 403. -1: no limit. Read by "
                   "nova-conductor."),
    ],
    "conductor": [
        cfg.IntOpt("workers", min=1, help="Number of worker processes of nova-conductor. Unset: one per CPU, at most "
                   "8. Read by nova-conductor."),
        cfg.IntOpt("lease", default=30, min=0,
                   help="Seconds without a heartbeat of the process that runs a step of an operation, after which "
                        "another process takes over the step. At least twice report_interval. Read by nova-conductor."),
        cfg.IntOpt("recovery_interval", default=5, min=1,
                   help="Seconds between two checks for expired leases. Read by nova-conductor."),
        cfg.IntOpt("max_attempts", default=3, min=1, help="Maximum number of hosts on which the build of a server, or "
                   "a live migration without a requested host, is tried. Read by nova-conductor."),
        cfg.IntOpt("transactions", default=2, min=1, help="Maximum number of database transactions that a worker "
                   "process runs at the same time; further transactions wait, and projects are served round robin. "
                   "Transactions that wait for a lock are not counted. Read by nova-conductor."),
        cfg.IntOpt("report_threads", default=16, min=1, help="Number of threads of a worker process that handle "
                   "reports of hosts; requests of users have other threads. Read by nova-conductor."),
        cfg.IntOpt("threads", default=4, min=1, help="Number of threads of a worker process that run steps which need "
                   "the database only. More threads do not raise the throughput, but delay requests of other projects. "
                   "Read by nova-conductor."),
        cfg.StrOpt("secret_key_file", default="$state_path/secret.keys",
                   help="File with the keys that encrypt passwords of servers and keys of encrypted volumes in the "
                        "database, one key per line (URL-safe base64 of 32 bytes). The first key encrypts, all keys "
                        "decrypt. nova-conductor creates the file with mode 0600 if it is missing. All machines with "
                        "nova-conductor need the same file. Read by nova-conductor and nova-manage."),
        cfg.IntOpt("outside_threads", default=16, min=1,
                   help="Number of threads of a worker process that wait for the same external service (Neutron, "
                        "Cinder, Glance). Read by nova-conductor. Raise it where such a service is slow."),
    ],
    "database": [
        cfg.StrOpt("connection", default="sqlite:///$state_path/nova.sqlite", secret=True, help="SQLAlchemy URL of the "
                   "database: postgresql+psycopg2://..., mysql+pymysql://... or sqlite:///FILE. SQLite is for one "
                   "machine only. Read by nova-conductor, nova-manage and nova-status."),
        cfg.IntOpt("max_pool_size", min=1, help="Number of database connections that a worker process keeps "
                   "open, besides two for heartbeats. Unset: 40 divided by the number of workers, at least 4, so that "
                   "two conductors stay below the 100 connections that PostgreSQL allows by default. Read by "
                   "nova-conductor."),
        cfg.IntOpt("max_overflow", default=0, min=0, help="Number of database connections that a worker process may "
                   "open during peaks, above max_pool_size. Read by nova-conductor."),
        cfg.IntOpt("connection_recycle_time", default=3600, help="Seconds after which a database connection is "
                   "replaced by a new one. Read by nova-conductor. Keep it below idle timeouts of the database "
                   "and of firewalls."),
        cfg.IntOpt("max_retries", default=20, min=0, help="Number of times that a transaction is repeated after a "
                   "deadlock or a lost connection. Read by nova-conductor."),
        cfg.IntOpt("statement_timeout", default=30, min=0, help="Seconds after which the database cancels a statement "
                   "(PostgreSQL: statement_timeout, MariaDB: max_statement_time); the request is then answered with "
                   "503. A statement waits for a lock half as long; then its transaction is repeated. 0: no limit. "
                   "nova-manage has no limit. Read by nova-conductor."),
    ],
    "notifications": [
        cfg.StrOpt("notification_format", default="unversioned", choices=["unversioned", "versioned", "both"],
                   help="Format of notifications. Versioned notifications have a documented schema and cover more "
                        "events. Read by nova-conductor."),
        cfg.ListOpt("versioned_notifications_topics", default=["versioned_notifications"],
                    help="Topics of versioned notifications. The priority is appended to the name of the queue, as in "
                         "versioned_notifications.info. [oslo_messaging_notifications]topics names the "
                         "topics of unversioned notifications. Read by nova-conductor."),
        cfg.StrOpt("notify_on_state_change", choices=["vm_state", "vm_and_task_state"], help="Send the notification "
                   "instance.update when the vm_state of a server changes, or, with vm_and_task_state, also when only "
                   "its task_state changes. Unset: never. Read by nova-conductor."),
        cfg.StrOpt("default_level", default="INFO", choices=["DEBUG", "INFO", "WARN", "ERROR", "CRITICAL"],
                   help="Priority of unversioned notifications that define none. Read by nova-conductor."),
        cfg.BoolOpt("bdms_in_notifications", default=False,
                    help="Include the block devices of the server in its notifications. Read by nova-conductor."),
        cfg.BoolOpt("include_share_mapping", default=False,
                    help="Include the shares of the server in its notifications. Read by nova-conductor."),
        cfg.IntOpt("max_age", default=86400, min=60, help="Seconds for which a notification waits for an unreachable "
                   "broker. Older notifications are dropped with a warning in the log. Read by nova-conductor."),
        cfg.IntOpt("max_waiting", default=100000, min=1000,
                   help="Maximum number of notifications that wait for an unreachable broker. Above this number the "
                        "oldest notifications are dropped with a warning in the log. Read by nova-conductor."),
    ],
    "quota": [
        *(cfg.IntOpt(name, default=value, min=-1,
                     help=f"Default maximum number of {counted}. -1: no limit. Read by nova-conductor. A project's own "
                          "quota overrides it.") for name, (value, counted) in QUOTAS.items()),
        cfg.IntOpt("server_ports", default=16, min=-1, help="Maximum number of interfaces of a server on Nova's own "
                   "networks, each with one address of each IP version. -1: no limit. Read by nova-conductor. "
                   "fixed_ips limits the interfaces of a whole project."),
    ],
}
