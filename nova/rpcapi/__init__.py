"""Who can be asked what: one interface class per resource, grouped by the topic that answers."""

CONDUCTOR = "conductor"
SCHEDULER = "scheduler"
COMPUTE = "compute"
