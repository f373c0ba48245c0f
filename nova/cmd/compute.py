"""nova-compute."""

from nova.cmd import run


def main() -> int:
    """Run the service of this host until SIGTERM; its guests run on."""
    from nova.compute.service import ComputeService

    return run.run("nova-compute", lambda transport, _worker: ComputeService(transport))
