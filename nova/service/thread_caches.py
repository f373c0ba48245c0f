"""The C library's caches of freed memory, one for each thread, which a service with many threads does without."""

from __future__ import annotations

import os
import sys

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.tcache_count"


def disable() -> None:
    """Start this program again, with glibc's caches of threads disabled; return if they are, or the C library has none.

    Each thread keeps up to seven freed blocks of each size up to 1032 bytes for itself: with the blocks that Python
    takes from the C library up to 170 KiB for each of some sixty threads. They fill up over thousands of requests, and
    malloc_trim does not return them. Only the environment of a program that starts can disable them. Call first in
    main(), before anything that takes long to import. A value that the operator has set is kept.
    """
    tunables = os.environ.get(_VARIABLE, "")
    if _TUNABLE in tunables or not sys.executable or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return
    os.environ[_VARIABLE] = ":".join(filter(None, (tunables, f"{_TUNABLE}=0")))
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    except OSError as error:
        print(f"Cannot start again without caches of threads, goes on with them: {error}", file=sys.stderr)
