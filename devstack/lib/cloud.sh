# shellcheck shell=bash
# Initial resources of the cloud: images, flavors, a key pair, a network, and the first server as a test.

cloud() { as_admin "$VENV/bin/python" "$DEVSTACK_DIR/lib/cloud.py" "$@"; }

create_ssh_key() {
    install -d -m 700 "$DATA_DIR/ssh"
    [ -s "$DATA_DIR/ssh/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C nova-devstack -f "$DATA_DIR/ssh/id_ed25519"
}

upload_images() {
    cloud images "$DATA_DIR/images" || die "uploading the images" "$DATA_DIR/logs/glance.log"
}

create_cloud() {
    create_ssh_key
    cloud flavors || die "creating the flavors" "$DATA_DIR/logs/nova-api.log"
    cloud keypair stack "$DATA_DIR/ssh/id_ed25519.pub" || die "creating the key pair" "$DATA_DIR/logs/nova-api.log"
    cloud open-group || die "opening the security group" "$DATA_DIR/logs/nova-api.log"
    (. "$DATA_DIR/openrc-demo" && "$VENV/bin/python" "$DEVSTACK_DIR/lib/cloud.py" open-group) ||
        die "opening the security group of demo" "$DATA_DIR/logs/nova-api.log"
    create_network
    create_floating_pool
}

boot_first_server() { # with several hosts: one server per host
    local number
    boot_server "$FIRST_SERVER" "$HOST_NAME" nova-compute
    for number in $(other_hosts); do
        boot_server "$FIRST_SERVER-on-host$number" "$(host_name "$number")" "host$number-nova-compute"
    done
}

boot_server() { # NAME HOST LOG
    if ! cloud boot "$1" "$FIRST_SERVER_FLAVOR" nova-guest stack "$2"; then
        warn "the end of nova-conductor's log:"
        tail -n 15 "$DATA_DIR/logs/nova-conductor.log" >&2 || true
        die "the server $1 did not boot as it should" "$DATA_DIR/logs/$3.log"
    fi
}
