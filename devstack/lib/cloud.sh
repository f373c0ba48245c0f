# shellcheck shell=bash
# Initial resources of the cloud: images, flavors, a key pair, a network, and the first server as a test.

cloud() { as_admin "$VENV/bin/python" "$DEVSTACK_DIR/lib/cloud.py" "$@"; }

create_ssh_key() {
    install -d -m 700 "$DATA_DIR/ssh"
    [ -s "$DATA_DIR/ssh/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C nova-devstack -f "$DATA_DIR/ssh/id_ed25519"
}

upload_images() {
    cloud images "$DATA_DIR/images" || die "uploading the images failed" "$DATA_DIR/logs/glance.log"
}

create_cloud() {
    create_ssh_key
    start_task networks create_networks
    DEMO_PASSWORD=$DEMO_PASSWORD cloud prepare "$HOST_NAME" "$START_LIMIT" stack "$DATA_DIR/ssh/id_ed25519.pub" ||
        die "creating flavors, key pair or security group rules failed" "$DATA_DIR/logs/nova-compute.log"
    finish_task networks "network $NETWORK_NAME: $NETWORK_CIDR${FLOATING_RANGE:+; floating IP pool $FLOATING_POOL: $FLOATING_RANGE}"
    grep -h '^WARNING' "$DATA_DIR/logs/stack/networks.log" >&2 || true
}

create_networks() {
    if neutron_wanted; then
        cloud neutron-networks "$NETWORK_NAME" "$NETWORK_CIDR" "$FLOATING_POOL" "$FLOATING_RANGE" ${NETWORK_DNS:+"$NETWORK_DNS"}
        return
    fi
    create_network
    create_floating_pool
}

boot_first_server() { # boot one server on each host
    local number
    boot_server "$FIRST_SERVER" "$HOST_NAME" nova-compute
    for number in $(additional_hosts); do
        boot_server "$FIRST_SERVER-on-host$number" "$(host_name "$number")" "host$number-nova-compute"
    done
}

boot_server() { # NAME HOST LOG
    if ! cloud boot "$1" "$FIRST_SERVER_FLAVOR" nova-guest stack "$2"; then
        warn "last lines of nova-conductor.log:"
        tail -n 15 "$DATA_DIR/logs/nova-conductor.log" >&2 || true
        die "server $1 did not boot correctly" "$DATA_DIR/logs/$3.log"
    fi
}
