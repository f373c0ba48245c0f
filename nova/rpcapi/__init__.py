"""Who can be asked what: one interface class per resource, grouped by the topic that answers."""

CONDUCTOR = "conductor"
# Conductors, too, each with a queue and threads of its own: what users ask never delays what hosts tell.
HEARTBEATS = "conductor-heartbeats"
REPORTS = "conductor-reports"
SCHEDULER = "scheduler"
COMPUTE = "compute"
