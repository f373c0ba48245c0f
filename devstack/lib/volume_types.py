"""Wait until Cinder's scheduler reports all backends in BACKENDS, then create a volume type for each backend."""

import os
import sys
import time

import openstack

LIMIT = 120  # seconds: a start of Cinder on a busy machine is slow


def wait_for(cinder, backends):
    end = time.monotonic() + LIMIT
    while missing := backends - {pool.capabilities.get("volume_backend_name") for pool in cinder.backend_pools()}:
        if time.monotonic() > end:
            sys.exit(f"Cinder's scheduler did not report these backends within {LIMIT} s: {', '.join(sorted(missing))}")
        time.sleep(1)


def main():
    cinder = openstack.connect().block_storage
    names = os.environ["BACKENDS"].split()
    wait_for(cinder, set(names))
    existing = {volume_type.name for volume_type in cinder.types()}
    for name in names:
        if name not in existing:
            cinder.create_type(name=name, extra_specs={"volume_backend_name": name})


if __name__ == "__main__":
    main()
