"""Generate nova/novad/api/novad_pb2*.py from novad.proto: ``python -m tools.novad_api`` (needs grpcio-tools).

With --check, compares the files without writing; the exit code is 1 if they are not up to date.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
PROTO = "nova/novad/api/novad.proto"
MADE = ("novad_pb2.py", "novad_pb2.pyi")


def make(target: pathlib.Path) -> None:
    """Generate the files below ``target``, at the same path as in the repository."""
    from grpc_tools import protoc

    if protoc.main(["protoc", f"-I{ROOT}", f"--python_out={target}", f"--pyi_out={target}", PROTO]):
        raise SystemExit("protoc failed")


def different() -> list[str]:
    """Return the names of the files that are missing or not up to date."""
    with tempfile.TemporaryDirectory() as directory:
        make(pathlib.Path(directory))
        place = pathlib.PurePath(PROTO).parent
        return [name for name in MADE if not (ROOT / place / name).exists()
                or (ROOT / place / name).read_text() != (pathlib.Path(directory) / place / name).read_text()]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(f"not up to date: {', '.join(wrong)}" if (wrong := different()) else 0)
    make(ROOT)
