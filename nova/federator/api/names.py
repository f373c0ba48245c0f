"""Names of labels, annotations, groups and namespaces that users and agents see."""

import hashlib
import re

VERSION = "v1alpha1"
CLUSTER_GROUP = "cluster.elotl.co"
POLICY_GROUP = "policy.elotl.co"
SCHEDULE_GROUP = "schedule.elotl.co"
RECOVERY_GROUP = "recovery.elotl.co"

# Set by users on any object.
PIN = "nova.elotl.co/cluster"  # name of the cluster in which the object is placed
SPREAD_ONTO = "nova.elotl.co/spread-onto"  # names of the clusters among which the object is spread
ADOPT = "nova.elotl.co/adopt"  # "true": Nova adopts an object of this name that exists in the cluster
BACKPROPAGATE = "nova.elotl.co/backpropagate"  # "true": the control plane shows the object's ReplicaSets and Pods
REPLICAS_PATH = "nova.elotl.co/replicas-path"  # field of a custom resource with its number of replicas
# Set by Nova.
TARGET = "nova.elotl.co/target-cluster"
MATCHING_POLICY = "nova.elotl.co/matching-policy"
ORIGINAL_NAME = "nova.elotl.co/cluster.original-name"
CREATED_FOR = "nova.elotl.co/created-for"  # on namespaces that an agent created
MANAGED_BY = "nova.elotl.co/managed-by"  # on copies in a workload cluster: the schedule that lists them
ORPHAN = "nova.elotl.co/orphan"  # on a Cluster, "true": the copies in it stay when the Cluster is deleted
BACKPROPAGATED = "nova.elotl.co/backpropagated"
BACKPROPAGATED_ORIGIN = "nova.elotl.co/backpropagated.origin"
RECOVERED_BY = "nova.elotl.co/recovered-by"  # on objects that a recovery plan changed: run and step
CLUSTER_LABELS = "nova.elotl.co/cluster."  # prefix of labels: provider, region, zone, version, novacreated
NAME_LABEL = "kubernetes.io/metadata.name"

SCHEDULER, AGENT = "nova-scheduler", "nova-agent"  # sources of events, field managers
FINALIZER = "nova.elotl.co/agent"  # on schedules: the agent removes it once the copies are deleted
DRAIN_FINALIZER = "nova.elotl.co/drain"  # on clusters: the scheduler removes it once no workload is left
AGENTS_GROUP, AGENT_USER = "nova:agents", "nova:agent:"  # identity of agents, followed by the cluster's name
SIGNER = "nova.elotl.co/agent"  # signerName of the certificate requests of agents
AUTHORITIES = "nova-ca"  # ConfigMap in kube-public. ca.crt: agents trust it; issuer.crt: signs agents' certificates
TRUSTED = "nova.elotl.co/trusted-authorities"  # on certificate requests: digest of the ca.crt that the agent trusts
HEARTBEAT = "heartbeat"  # name of the Lease in the namespace of a cluster
WAITING = "nova.elotl.co/waiting"  # annotation of that Lease: an agent that waits for it, and the time of its last try
SILENT_SINCE = "nova.elotl.co/silent-since"  # annotation of an agent's Secret: time since which it has no control plane
TRACE = "nova.elotl.co/traceparent"  # annotation of a schedule: the span of its last decision, if that is traced
WANTED_BY = "nova.elotl.co/wanted-by"  # annotation of a scheduler's Lease: the replica that requests its duty
STANDBY = "nova.elotl.co/standby"  # annotation of a Cluster that is not active: a scheduling.standby.Record
STANDBY_REPORT = "standby"  # name of the ClusterReport's copy, which is stored before its cluster enters standby
REPORT = "report"  # name of the ClusterReport in the namespace of a cluster
NAMESPACE = "elotl"

# Valid names of clusters: DNS names that are also valid label values.
CLUSTER_NAME = re.compile(r"(?=.{1,63}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")

_LABEL_LIMIT = 63


def label_value(name: str) -> str:
    """Return a name cut to the length of a label value."""
    return name[:_LABEL_LIMIT].rstrip("-.")


def cluster_namespace(cluster: str) -> str:
    """Return the namespace of a cluster's schedules. An invalid or too long name is replaced by its digest."""
    plain = f"nova-cluster-{cluster}"
    if len(plain) <= _LABEL_LIMIT and re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", plain):
        return plain
    return f"nova-cluster-{hashlib.sha256(cluster.encode()).hexdigest()[:32]}"
