"""[database]: read by the conductor and nova-manage only. The names are those of oslo.db."""

from oslo_config import cfg

OPTIONS = {
    "database": [
        cfg.StrOpt("connection", default="sqlite:///$state_path/nova.sqlite", secret=True,
                   help="SQLAlchemy URL: sqlite:///FILE, postgresql+psycopg2://..., mysql+pymysql://..."),
        cfg.IntOpt("max_pool_size", min=1,
                   help="Connections that a worker process keeps open, beside two for heartbeats; unset: what makes 40 "
                        "of all workers of a conductor together, at least 4 each, so that two conductors need less "
                        "than the 100 that PostgreSQL allows by itself."),
        cfg.IntOpt("max_overflow", default=0, min=0, help="Further connections of a worker process at peaks."),
        cfg.IntOpt("connection_recycle_time", default=3600, help="Seconds after which a connection is renewed."),
        cfg.IntOpt("max_retries", default=20, min=0,
                   help="How often a transaction is tried again after a deadlock or a lost connection."),
        cfg.IntOpt("statement_timeout", default=30, min=0,
                   help="Seconds after which the database cancels a statement of a conductor (PostgreSQL: "
                        "statement_timeout, MariaDB: max_statement_time); whoever waits for it gets 503. A lock is "
                        "waited for half as long, then the transaction is tried again. 0: no limit. nova-manage has "
                        "none."),
    ],
}
