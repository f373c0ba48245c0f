"""Options of nova-conductor: automatic actions ([DEFAULT]), threads, leases and keys ([conductor]), certificates
([certificates]), and the database
([database]), which nova-manage also reads; the names of its options are those of oslo.db."""

from oslo_config import cfg

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
                   help="Seconds without a sign of life after which a step of an operation is taken from its worker "
                        "and given to another one. At least twice report_interval. Read by nova-conductor."),
        cfg.IntOpt("recovery_interval", default=5, min=1,
                   help="Seconds between two checks for expired leases. Read by nova-conductor."),
        cfg.IntOpt("max_attempts", default=3, min=1, help="Maximum number of hosts on which the build of a server, or "
                   "a live migration without a requested host, is tried. Read by nova-conductor."),
        cfg.IntOpt("transactions", default=2, min=1, help="Maximum number of database transactions that a worker "
                   "process runs at the same time; further ones wait in a queue that serves projects in turn. "
                   "Transactions that wait for a lock are not counted. Read by nova-conductor."),
        cfg.IntOpt("report_threads", default=16, min=1, help="Number of threads of a worker process that handle "
                   "reports of hosts, apart from requests of users. Read by nova-conductor."),
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
}
