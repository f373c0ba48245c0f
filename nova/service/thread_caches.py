"""Disabling of the C library's caches of freed memory per thread."""

import os
import sys

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.tcache_count"


def disable() -> None:
    """Execute this program again with glibc's thread caches disabled.

    Returns if the caches are already disabled or the C library has none. glibc caches up to seven freed blocks of each
    size up to 1032 bytes per thread, which is up to 170 KiB for each of some sixty threads. malloc_trim does not return
    this memory, and only the environment at the start of a program can disable the caches. Call it first in main(),
    before slow imports. A value of the operator in the environment is not changed."""
    tunables = os.environ.get(_VARIABLE, "")
    if _TUNABLE in tunables or not sys.executable or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return
    os.environ[_VARIABLE] = ":".join(filter(None, (tunables, f"{_TUNABLE}=0")))
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    except OSError as error:
        print(f"Cannot restart without thread caches of glibc, continuing with them: {error}", file=sys.stderr)
