#!/usr/bin/env bash
# Stops all services of stack.sh and removes all its files, guests and networks. Debian packages remain installed.
#   --keep-downloads  keep the Python environment and the guest image for the next stack.sh
set -euo pipefail

DEVSTACK_DIR=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
REPO=$(dirname "$DEVSTACK_DIR")
for file in common config supervisor cinder neutron libvirt networks hosts; do
    # shellcheck source=/dev/null
    . "$DEVSTACK_DIR/lib/$file.sh"
done

KEEP=false
case "${1:-}" in
    '') ;;
    --keep-downloads) KEEP=true ;;
    *) sed -n '2,3s/^# *//p' "$0"; exit 2 ;;
esac

require_root
export PATH=$PATH:/usr/sbin:/sbin
load_options
if [ ! -e "$DATA_DIR/.nova-devstack" ]; then
    say "nothing to remove: $DATA_DIR was not created by stack.sh"
    exit 0
fi

step "Stopping Nova"
if supervisord_runs; then
    # Stop the services through supervisord, which would otherwise restart them during the removal.
    # shellcheck disable=SC2046  # a list of names
    stop_services $(supervisorctl status | awk '$1 ~ /nova-/ { print $1 }')
fi
step "Removing guests and networks"
remove_guests
remove_networks
step "Stopping the other services"
kill_supervisor
remove_switch
remove_hosts
unmount_all
step "Removing files"
if $KEEP; then
    find "$DATA_DIR" -mindepth 1 -maxdepth 1 ! -name venv ! -name images ! -name stamps ! -name .nova-devstack -exec rm -rf {} +
    find "$DATA_DIR/stamps" -type f ! -name python ! -name guest-image -delete
    note "kept $VENV and $DATA_DIR/images"
else
    rm -rf "$DATA_DIR"
fi
say "Done. The Debian packages remain."
