# shellcheck shell=bash
# NOVA_HOSTS > 1: additional compute hosts, built from namespaces by tools/hosts. This machine is host 1. An additional
# host has its own libvirtd, nova-compute and nova-metadata. Their supervisor programs are host2, host2-libvirtd, ….

hosts_tool() { (cd "$REPO" && "$PYTHON" -m tools.hosts "$DATA_DIR/hosts" "$@"); }

additional_hosts() { seq 2 "$NOVA_HOSTS"; }

host_name() { # NUMBER
    [ "$1" = 1 ] && echo "$HOST_NAME" || echo "${HOST_NAME}-host$1"
}

host_conf_file() { echo "$DATA_DIR/etc/nova/host$1.conf"; } # NUMBER

prepare_hosts_network() { # create HOST_ADDRESS before any service listens on it
    [ "$NOVA_HOSTS" -gt 1 ] || return 0
    hosts_tool create "$HOSTS_NETWORK" "$HOSTS_OUTSIDE" || die "creating the network between the hosts failed"
    note "$NOVA_HOSTS hosts; address of this machine: $HOST_ADDRESS"
}

prepare_hosts() {
    local number options=()
    remove_surplus_hosts
    [ "$VIRT_TYPE" != kvm ] || options=(--kvm)
    for number in $(additional_hosts); do
        # Each host has its own directory at the same path.
        hosts_tool add "$number" "$(host_name "$number")" --state "$DATA_DIR/nova" "${options[@]}" ||
            die "creating host $number failed"
        prepare_host "$number"
    done
}

prepare_host() { # NUMBER
    local number=$1 service name command enter='' url
    url=$(host_rabbit_url "$(host_name "$number")")
    while read -r name command; do
        case $name in
            power) define_service "host$number" "$command" priority=6 ;;
            enter) enter=$command ;;
            *) define_service "host$number-$name" "$command" priority=7 ;;
        esac
    done < <(hosts_tool commands "$number")
    write_file "$(host_conf_file "$number")" 600 <<- CONF
	[DEFAULT]
	host = $(host_name "$number")
	my_ip = $HOSTS_NETWORK.$number
	transport_url = ${url/@127.0.0.1:/@$HOST_ADDRESS:}
	[rpc]
	key_file = $(host_key_file "$(host_name "$number")")
	[glance]
	auth_url = http://$HOST_ADDRESS:$KEYSTONE_PORT/v3
	endpoint_override = http://$HOST_ADDRESS:$GLANCE_PORT
	[metadata]
	listen = $HOSTS_NETWORK.$number
	[vnc]
	server_listen = $HOSTS_NETWORK.$number
	server_proxyclient_address = $HOSTS_NETWORK.$number
	[spice]
	server_listen = $HOSTS_NETWORK.$number
	server_proxyclient_address = $HOSTS_NETWORK.$number
	[serial_console]
	proxyclient_address = $HOSTS_NETWORK.$number
	CONF
    for service in nova-compute nova-metadata; do
        define_nova_service "host$number-$service" \
            "$enter $VENV/bin/$service --config-file $(nova_conf_file) --config-file $(host_conf_file "$number")" \
            "$(digest "$(host_conf_file "$number")")"
    done
}

host_programs() { # NUMBER KIND…: print the names of the supervisor programs; the empty kind is the host itself
    local number=$1 kind
    shift
    for kind in "$@"; do echo "host$number${kind:+-$kind}"; done
}

start_hosts() {
    local number
    for number in $(additional_hosts); do
        # shellcheck disable=SC2046  # a list of names
        start_services $(host_programs "$number" '' virtlogd libvirtd nova-compute nova-metadata)
    done
}

wait_for_hosts() {
    local number names=()
    for number in $(additional_hosts); do names+=("$(host_name "$number")"); done
    [ ${#names[@]} -eq 0 ] || cloud wait-compute "$START_LIMIT" "${names[@]}" ||
        die "nova-compute did not start on all hosts; see $DATA_DIR/logs/host*-nova-compute.log"
}

remove_surplus_hosts() { # remove the hosts of an earlier run with a larger NOVA_HOSTS
    local number _rest
    [ -d "$DATA_DIR/hosts" ] || return 0
    while read -r number _rest; do
        [ "$number" -gt "$NOVA_HOSTS" ] || continue
        [ ! -e "$DATA_DIR/etc/supervisor.d/host$number-ovs-db.conf" ] ||
            remove_services $(host_programs "$number" neutron-ovn-agent ovn-controller ovs-switch ovs-db)
        remove_services $(host_programs "$number" nova-compute nova-metadata libvirtd virtlogd '')
        hosts_tool remove "$number" || die "removing host $number failed"
        rm -f "$(host_conf_file "$number")"
        note "host $number removed"
    done < <(hosts_tool list)
}

remove_hosts() { # remove the additional hosts with their guests and networks
    [ -d "$DATA_DIR/hosts" ] || return 0
    hosts_tool remove || warn "removing the additional hosts failed"
}
