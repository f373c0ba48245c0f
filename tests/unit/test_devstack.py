"""What of devstack can be shown without a cloud."""

import pathlib
import stat
import subprocess

LIBRARY = pathlib.Path(__file__).parents[2] / "devstack" / "lib" / "supervisor.sh"

# Ends when all three services have been told to stop, and fails if that does not happen.
_STOPS = """#!/bin/sh
touch "$DATA_DIR/$4"
for _ in $(seq 300); do
    [ "$(ls "$DATA_DIR" | grep -c nova-)" = 3 ] && { echo "$4" >> "$DATA_DIR/stopped"; exit 0; }
    sleep 0.1
done
exit 1
"""


def test_services_are_told_to_stop_all_at_once_and_waited_for(tmp_path):
    supervisorctl = tmp_path / "bin" / "supervisorctl"
    supervisorctl.parent.mkdir()
    supervisorctl.write_text(_STOPS)
    supervisorctl.chmod(supervisorctl.stat().st_mode | stat.S_IXUSR)
    data = tmp_path / "data"
    data.mkdir()
    subprocess.run(["bash", "-euc", f". {LIBRARY}; stop_services nova-api nova-compute nova-conductor"], check=True,
                   env={"VENV": str(tmp_path), "DATA_DIR": str(data), "PATH": "/usr/bin:/bin"}, timeout=120)
    assert sorted((data / "stopped").read_text().split()) == ["nova-api", "nova-compute", "nova-conductor"]
