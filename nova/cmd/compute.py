"""The command nova-compute."""

from nova.service import thread_caches


def main() -> int:
    """Run the service of this host, or of all simulated hosts, until SIGTERM. Guests keep running."""
    thread_caches.disable()
    from nova.service import run  # isort: skip  (first: it chooses oslo.service's threading back end)

    from nova.compute.identity import lock_host
    from nova.compute.service import compute_of

    return run.run("nova-compute", lambda transport, _worker: compute_of(transport), check=lock_host)
