"""A type of volumes for each of Cinder's backends in BACKENDS; waits until its scheduler knows of all of them."""

import os
import sys
import time

import openstack

LIMIT = 120  # seconds; a cold start on a busy machine


def wait_for(cinder, backends):
    end = time.monotonic() + LIMIT
    while missing := backends - {pool.capabilities.get("volume_backend_name") for pool in cinder.backend_pools()}:
        if time.monotonic() > end:
            sys.exit(f"not there after {LIMIT} seconds: {', '.join(sorted(missing))}")
        time.sleep(1)


def main():
    cinder = openstack.connect().block_storage
    names = os.environ["BACKENDS"].split()
    wait_for(cinder, set(names))
    known = {found.name for found in cinder.types()}
    for name in names:
        if name not in known:
            cinder.create_type(name=name, extra_specs={"volume_backend_name": name})


if __name__ == "__main__":
    main()
