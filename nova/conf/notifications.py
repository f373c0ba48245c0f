"""Options of notifications for billing, auditing and monitoring ([notifications]), read by nova-conductor.
Notifications are sent only if [oslo_messaging_notifications]driver of oslo.messaging is set."""

from oslo_config import cfg

OPTIONS = {
    "notifications": [
        cfg.StrOpt("notification_format", default="unversioned", choices=["unversioned", "versioned", "both"],
                   help="Format of notifications. Versioned notifications have a documented schema and cover more "
                        "events. Read by nova-conductor."),
        cfg.ListOpt("versioned_notifications_topics", default=["versioned_notifications"],
                    help="Topics of versioned notifications. The priority is appended to the name of the queue, as in "
                         "versioned_notifications.info. [oslo_messaging_notifications]topics names those of "
                         "unversioned notifications. Read by nova-conductor."),
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
                   help="Maximum number of notifications that wait for an unreachable broker. Above it the oldest are "
                        "dropped with a warning in the log. Read by nova-conductor."),
    ],
}
