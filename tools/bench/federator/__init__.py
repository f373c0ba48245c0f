"""The federator: latency, CPU and memory of placements with real and simulated members.

Needs the programs of Kubernetes (tools/kubernetes/build.sh); otherwise nothing is measured.
"""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

from nova.common.errors import Invalid
from nova.federator.local.binaries import Binaries
from tools.bench.amounts import Amounts


def measure(amounts: Amounts) -> dict[str, Any]:
    """Return the measurements of the federator; see doc/performance.md."""
    from tools.bench.federator import placements, scale, world
    try:
        Binaries()
    except Invalid as error:
        print(f"  the federator is not measured: {error.message}", flush=True)
        return {}
    with tempfile.TemporaryDirectory(prefix="federator-bench-") as folder:
        with world.start(pathlib.Path(folder), 3) as running:
            results = placements.measure(running, amounts)
        return results | scale.measure(pathlib.Path(folder), amounts)
