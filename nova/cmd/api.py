"""The command nova-api."""

import sys

from nova.service import thread_caches


def main() -> int:
    """Run the worker processes of the REST API until SIGTERM."""
    thread_caches.disable()
    from nova.cmd import api_workers

    return api_workers.run_workers(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
