# shellcheck shell=bash
# Nova: its configuration, database and one process per service.

NOVA_SERVICES="nova-conductor nova-scheduler nova-api nova-compute nova-metadata nova-novncproxy nova-serialproxy"

# The default filters, and the filters for the scheduler hints same_host and different_host.
NOVA_FILTERS=ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,ServerGroupAntiAffinityFilter,ServerGroupAffinityFilter
NOVA_FILTERS+=,SameHostFilter,DifferentHostFilter

spice_wanted() { [ "$NOVA_SPICE" = True ]; }

ec2_wanted() { [ "$NOVA_EC2" = True ]; }

nova_services() { echo "$NOVA_SERVICES$(! spice_wanted || echo " nova-spicehtml5proxy")$(! ec2_wanted || echo " nova-api-ec2")"; }

nova_conf_file() { echo "$DATA_DIR/etc/nova/nova.conf"; }

master_key_file() { echo "$DATA_DIR/etc/nova/master.key"; }

host_key_file() { echo "$DATA_DIR/etc/nova/hosts/$1.key"; } # NAME

enrol_hosts() { # DIRECTORY: create a key and a RabbitMQ account for each host; RabbitMQ loads accounts from DIRECTORY
    local number name conf=$DATA_DIR/etc/nova/enrol.conf log=$DATA_DIR/logs/stack/enrol.log
    write_file "$conf" 600 <<- CONF
	[DEFAULT]
	transport_url = $RABBIT_URL
	[rpc]
	key_file = $(master_key_file)
	CONF
    install -d -m 700 "$DATA_DIR/etc/nova/hosts"
    [ -s "$(master_key_file)" ] ||
        "$VENV/bin/nova-manage" --config-file "$conf" host make_master_key "$(master_key_file)" > "$log" 2>&1 || die "creating the master key failed" "$log"
    rm -f "$1"/host-*.json
    for number in $(seq "$NOVA_HOSTS"); do
        name=$(host_name "$number")
        [ -s "$DATA_DIR/etc/nova/hosts/$name.definitions.json" ] || {
            rm -f "$DATA_DIR/etc/nova/hosts/$name".*
            "$VENV/bin/nova-manage" --config-file "$conf" host enrol "$name" --output "$DATA_DIR/etc/nova/hosts" > "$log" 2>&1 ||
                die "enrolling host $name failed" "$log"
        }
        write_file "$1/host-$name.json" 640 root:rabbitmq < "$DATA_DIR/etc/nova/hosts/$name.definitions.json"
    done
}

host_rabbit_url() { # NAME: print the transport URL with the account of the host
    sed -n 's/^transport_url = //p' "$DATA_DIR/etc/nova/hosts/$1.conf"
}

write_nova_conf() { # TRANSPORT_URL DATABASE_URL
    write_file "$(nova_conf_file)" 600 <<- CONF
	[DEFAULT]
	host = $HOST_NAME
	my_ip = $HOST_ADDRESS
	transport_url = $1
	state_path = $DATA_DIR/nova
	compute_driver = libvirt
	allow_resize_to_same_host = True
	debug = $DEBUG
	# the supervisor writes one log file per service
	use_stderr = True
	[rpc]
	key_file = $(master_key_file)
	require_seals = True
	[api]
	listen = $SERVICE_HOST
	port = $NOVA_API_PORT
	workers = $NOVA_API_WORKERS
	auth_strategy = keystone
	status_page = true
	legacy = true
	[conductor]
	workers = $NOVA_CONDUCTOR_WORKERS
	[scheduler]
	workers = 1
	[filter_scheduler]
	enabled_filters = $NOVA_FILTERS
	[database]
	connection = $2
	[libvirt]
	virt_type = $VIRT_TYPE
	[network]
	driver = $NOVA_NETWORK
	$(nova_conf_of_neutron)
	[image]
	driver = glance
	[glance]
	$(service_credentials nova)
	endpoint_override = $GLANCE_URL
	$(keystone_authtoken nova)
	$(nova_conf_of_cinder)
	[metadata]
	$(! neutron_wanted || echo "metadata_proxy_shared_secret = $METADATA_SECRET")
	listen = $SERVICE_HOST
	port = $NOVA_METADATA_PORT
	[ec2]
	listen = $SERVICE_HOST
	port = $NOVA_EC2_PORT
	nova_url = http://$SERVICE_HOST:$NOVA_API_PORT
	region = $REGION_NAME
	$(service_credentials nova)
	[vnc]
	enabled = True
	novncproxy_host = $SERVICE_HOST
	novncproxy_port = $NOVA_NOVNCPROXY_PORT
	novncproxy_base_url = http://$SERVICE_HOST:$NOVA_NOVNCPROXY_PORT/vnc_auto.html?autoconnect=true
	[spice]
	enabled = $NOVA_SPICE
	html5proxy_host = $SERVICE_HOST
	html5proxy_port = $NOVA_SPICEHTML5PROXY_PORT
	html5proxy_base_url = http://$SERVICE_HOST:$NOVA_SPICEHTML5PROXY_PORT/spice_auto.html
	[serial_console]
	enabled = True
	serialproxy_host = $SERVICE_HOST
	serialproxy_port = $NOVA_SERIALPROXY_PORT
	base_url = ws://$SERVICE_HOST:$NOVA_SERIALPROXY_PORT/
	[oslo_concurrency]
	lock_path = $DATA_DIR/nova/locks
	CONF
}

prepare_nova() {
    local service host_conf=()
    mkdir -p "$DATA_DIR/nova/locks"
    chmod 755 "$DATA_DIR/nova"
    write_nova_conf "$RABBIT_URL" "$(database_url nova)"
    write_file "$(host_conf_file 1)" 600 <<- CONF
	[DEFAULT]
	transport_url = $(host_rabbit_url "$HOST_NAME")
	[rpc]
	key_file = $(host_key_file "$HOST_NAME")
	CONF
    for service in $(nova_services); do
        case $service in
            nova-compute | nova-metadata) host_conf=(--config-file "$(host_conf_file 1)") ;;
            *) host_conf=() ;;
        esac
        define_nova_service "$service" "$VENV/bin/$service --config-file $(nova_conf_file) ${host_conf[*]}" \
            "$(digest "$(host_conf_file 1)")"
    done
}

define_nova_service() { # NAME COMMAND [STATE]: start_services restarts it if STATE, the code or nova.conf changed
    local state path=$VENV/bin:/usr/sbin:/usr/bin:/sbin:/bin
    ! cinder_wanted || path=$(cinder_programs):$path
    state=$(digest "$(nova_conf_file)" "$REPO/nova" "$DATA_DIR/stamps/python")${3:-}
    define_service "$1" "$2" priority=20 \
        "environment=PATH=\"$path\",PYTHONUNBUFFERED=\"1\",STATE=\"$state\""
}

nova_manage() { "$VENV/bin/nova-manage" --config-file "$(nova_conf_file)" "$@"; }

sync_nova() {
    local log=$DATA_DIR/logs/stack/nova-db.log
    nova_manage db sync > "$log" 2>&1 || die "nova-manage db sync failed" "$log"
}

check_nova() { # exit code of nova-status: 1 is a warning, 2 and more are failures
    local log=$DATA_DIR/logs/stack/nova-status.log result=0
    "$VENV/bin/nova-status" --config-file "$(nova_conf_file)" upgrade check > "$log" 2>&1 || result=$?
    [ "$result" -lt 2 ] || die "nova-status upgrade check failed" "$log"
}

create_network() { # with several hosts: an overlay network that spans all hosts
    local log=$DATA_DIR/logs/stack/network.log options=(--if-missing --name "$NETWORK_NAME" --cidr "$NETWORK_CIDR")
    [ -z "$NETWORK_DNS" ] || options+=(--dns "$NETWORK_DNS")
    [ "$NOVA_HOSTS" = 1 ] || options+=(--vni 0)
    nova_manage network create "${options[@]}" > "$log" 2>&1 || die "nova-manage network create failed" "$log"
    note "network $NETWORK_NAME: $NETWORK_CIDR"
    [ "$NOVA_HOSTS" = 1 ] || has_vni "$NETWORK_NAME" ||
        warn "network $NETWORK_NAME was created with NOVA_HOSTS=1: it does not connect guests on different hosts"
}

create_floating_pool() { # the functional tests of clients require a floating IP pool
    local log=$DATA_DIR/logs/stack/floating.log
    [ -n "$FLOATING_RANGE" ] || return 0
    nova_manage floating list > "$log" 2>&1 || die "nova-manage floating list failed" "$log"
    ! grep -q "| $FLOATING_POOL *|" "$log" || return 0
    nova_manage floating create --pool "$FLOATING_POOL" --ip_range "$FLOATING_RANGE" > "$log" 2>&1 ||
        die "nova-manage floating create failed" "$log"
    note "floating IP pool $FLOATING_POOL: $FLOATING_RANGE"
}

has_vni() { # NETWORK: true if the network has a VNI
    nova_manage network list | awk -F ' *[|] *' -v name="$1" '$3 == name && $9 != "" { found = 1 } END { exit !found }'
}

start_nova_services() { # the conductor first: messages of other services to a queue without a consumer are lost
    local services remaining=()
    services=$(nova_services)
    read -r -a remaining <<< "${services/nova-conductor/}"
    start_services nova-conductor
    wait_for "nova-conductor" "$DATA_DIR/logs/nova-conductor.log" queue_has_consumer conductor
    start_services "${remaining[@]}"
    wait_for "nova-scheduler" "$DATA_DIR/logs/nova-scheduler.log" queue_has_consumer scheduler
}

wait_for_nova() {
    wait_for "nova-api" "$DATA_DIR/logs/nova-api.log" http_responds "http://$SERVICE_HOST:$NOVA_API_PORT/"
    note "nova-api is up at $NOVA_URL"
    if ec2_wanted; then
        wait_for "nova-api-ec2" "$DATA_DIR/logs/nova-api-ec2.log" port_in_use "$NOVA_EC2_PORT"
        note "nova-api-ec2 is up at http://$SERVICE_HOST:$NOVA_EC2_PORT/ (openstack ec2 credentials create)"
    fi
    wait_for "nova-novncproxy" "$DATA_DIR/logs/nova-novncproxy.log" \
        http_responds "http://$SERVICE_HOST:$NOVA_NOVNCPROXY_PORT/vnc_auto.html"
    note "nova-novncproxy is up at http://$SERVICE_HOST:$NOVA_NOVNCPROXY_PORT/ (openstack console url show SERVER)"
}
