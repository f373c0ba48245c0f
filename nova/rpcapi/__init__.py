"""RPC interfaces of the services, with a class for each resource."""

CONDUCTOR = "conductor"
# Further topics of conductors, each with its own queue and threads, so that requests of users never delay hosts.
HEARTBEATS = "conductor-heartbeats"
REPORTS = "conductor-reports"
SCHEDULER = "scheduler"
COMPUTE = "compute"
