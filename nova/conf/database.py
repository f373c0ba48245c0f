"""Options of the database ([database]), read by nova-conductor and nova-manage. The names are those of oslo.db."""

from oslo_config import cfg

OPTIONS = {
    "database": [
        cfg.StrOpt("connection", default="sqlite:///$state_path/nova.sqlite", secret=True, help="SQLAlchemy URL of the "
                   "database: postgresql+psycopg2://..., mysql+pymysql://... or sqlite:///FILE. SQLite is for one "
                   "machine only. Read by nova-conductor, nova-manage and nova-status."),
        cfg.IntOpt("max_pool_size", min=1, help="Number of connections that a worker process keeps open, besides two "
                   "for heartbeats. Unset: 40 divided by the number of workers, at least 4, so that two conductors "
                   "stay below the 100 connections that PostgreSQL allows by default. Read by nova-conductor."),
        cfg.IntOpt("max_overflow", default=0, min=0, help="Number of additional connections that a worker process may "
                   "open during peaks. Read by nova-conductor."),
        cfg.IntOpt("connection_recycle_time", default=3600, help="Seconds after which a connection is replaced by a "
                   "new one. Read by nova-conductor. Keep it below idle timeouts of the database and of firewalls."),
        cfg.IntOpt("max_retries", default=20, min=0, help="Number of times that a transaction is repeated after a "
                   "deadlock or a lost connection. Read by nova-conductor."),
        cfg.IntOpt("statement_timeout", default=30, min=0, help="Seconds after which the database cancels a statement "
                   "(PostgreSQL: statement_timeout, MariaDB: max_statement_time); the request is then answered with "
                   "503. A statement waits for a lock half as long; then its transaction is repeated. 0: no limit. "
                   "nova-manage has no limit. Read by nova-conductor."),
    ],
}
