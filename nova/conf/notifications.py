"""[notifications]: what Nova tells of what it does, for billing, auditing and those that follow servers.

Whether anything is told at all is a matter of oslo.messaging's [oslo_messaging_notifications] driver.
"""

from oslo_config import cfg

OPTIONS = {
    "notifications": [
        cfg.StrOpt("notification_format", default="unversioned", choices=["unversioned", "versioned", "both"],
                   help="In which form notifications are sent. Versioned ones are of a documented shape, and there are "
                        "more of them."),
        cfg.ListOpt("versioned_notifications_topics", default=["versioned_notifications"],
                    help="The topics of versioned notifications; their queues have the priority appended, as in "
                         "versioned_notifications.info. Those of unversioned ones are [oslo_messaging_notifications] "
                         "topics."),
        cfg.StrOpt("notify_on_state_change", choices=["vm_state", "vm_and_task_state"],
                   help="Send instance.update when a server changes; with vm_state a change of its task_state alone is "
                        "not told as one. Unset: never."),
        cfg.StrOpt("default_level", default="INFO", choices=["DEBUG", "INFO", "WARN", "ERROR", "CRITICAL"],
                   help="The priority of unversioned notifications that have none of their own."),
        cfg.BoolOpt("bdms_in_notifications", default=False,
                    help="Whether notifications of a server name its volumes."),
        cfg.BoolOpt("include_share_mapping", default=False,
                    help="Whether notifications of a server name its shares."),
        cfg.IntOpt("max_age", default=86400, min=60,
                   help="Seconds that a notification waits for a broker that is away; then it is dropped, and a "
                        "warning says how many were."),
        cfg.IntOpt("max_waiting", default=100000, min=1000,
                   help="How many notifications wait for a broker that is away; of more the oldest are dropped, and a "
                        "warning says how many were."),
    ],
}
