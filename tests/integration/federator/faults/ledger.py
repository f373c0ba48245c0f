"""Pods that record each of their counts on the disk of the machine: proof of when and in which cluster they ran."""

from __future__ import annotations

import itertools
import pathlib
import time
from typing import Any, NamedTuple

from tests.integration.federator.clusters import deployment

_INTERVAL = 0.1  # seconds between two records of a pod
_FRESH = 1.5  # seconds after which a pod without a record does not count as running
_COUNT = (f'n=0; while :; do n=$((n+1)); read up idle < /proc/uptime; echo "$NODE $POD $n $up" >> /host/{{file}};'
          f' sleep {_INTERVAL}; done')


class Record(NamedTuple):
    """A count of a pod. ``uptime``: seconds since the machine started, the same clock in all clusters."""

    node: str
    pod: str
    count: int
    uptime: float


class Ledger:
    """The records of the pods of a workload in all clusters, in the order in which they were written."""

    def __init__(self, directory: pathlib.Path, name: str) -> None:
        self.directory, self.name = directory, name
        self.path = directory / name

    def workload(self, namespace: str, replicas: int = 1, stubborn: int = 0, kind: str = "Deployment",
                 ) -> dict[str, Any]:
        """Return a workload whose pods write records. ``stubborn``: seconds after which pods are killed that ignore
        the signal to end; 0 for pods that end at once."""
        obj = deployment(self.name, replicas, namespace, {"app": self.name})
        obj["kind"] = kind
        pod = obj["spec"]["template"]["spec"]
        pod["terminationGracePeriodSeconds"] = stubborn or 1
        pod["volumes"] = [{"name": "host", "hostPath": {"path": str(self.directory)}}]
        variables = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in (
            ("NODE", "spec.nodeName"), ("POD", "metadata.name"))]
        signal = f"trap '{'' if stubborn else 'exit 0'}' TERM; "
        pod["containers"][0] |= {"env": variables, "command": ["sh", "-c", signal + _COUNT.format(file=self.name)],
                                 "volumeMounts": [{"name": "host", "mountPath": "/host"}]}
        if kind == "StatefulSet":
            obj["spec"]["serviceName"] = self.name
        if kind == "Pod":
            return {"apiVersion": "v1", "kind": "Pod", "metadata": obj["metadata"], "spec": pod}
        return obj

    def records(self) -> list[Record]:
        text = self.path.read_text() if self.path.exists() else ""
        fields = (line.split() for line in text[:text.rfind("\n") + 1].splitlines())
        return [Record(node, pod, int(count), float(uptime)) for node, pod, count, uptime in fields]

    def running(self) -> dict[str, int]:
        """Return the number of pods that run now, by cluster."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        pods = {(record.node, record.pod) for record in self.records() if now - record.uptime < _FRESH}
        return {node.removesuffix("-node"): sum(1 for _pod in group)
                for node, group in itertools.groupby(sorted(pods), key=lambda pair: pair[0])}

    def overlaps(self) -> list[str]:
        """Return the pairs of pods of different clusters that ran at the same time."""
        spans: dict[tuple[str, str], tuple[int, int]] = {}
        records = self.records()
        for position, record in enumerate(records):
            key = record.node, record.pod
            spans[key] = spans.get(key, (position, 0))[0], position
        result = []
        for (left, (start, end)), (right, (begin, last)) in itertools.combinations(spans.items(), 2):
            if left[0] != right[0] and start < last and begin < end:
                times = [records[position].uptime for position in (start, end, begin, last)]
                result.append(f"{self.name}: {left} ran from {times[0]} to {times[1]}, {right} from {times[2]} to"
                              f" {times[3]}")
        return result

    def homes(self) -> list[str]:
        """Return the clusters in which the workload ran, in this order."""
        return [node.removesuffix("-node") for node, _group in itertools.groupby(
            record.node for record in self.records())]

    def pods(self) -> set[str]:
        """Return the names of all pods that have run: a workload that was stopped has another one afterwards."""
        return {record.pod for record in self.records()}

    def miscounts(self) -> list[str]:
        """Return the pods whose counts are not 1, 2, 3 … in this order: records are lost, or a process ran twice."""
        counts: dict[tuple[str, str], list[int]] = {}
        for record in self.records():
            counts.setdefault((record.node, record.pod), []).append(record.count)
        return [f"{self.name}: {pod} counted {numbers[:5]} … {numbers[-5:]}" for pod, numbers in counts.items()
                if numbers != list(range(1, len(numbers) + 1))]
