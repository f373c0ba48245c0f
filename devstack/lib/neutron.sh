# shellcheck shell=bash
# NOVA_NETWORK=neutron: Neutron from PyPI with ML2/OVN, and the Open vSwitch and OVN of Debian. Without the kernel module of
# Open vSwitch, the switch forwards packets itself (netdev). libvirt and Nova expect its socket at the usual place.

NEUTRON_SERVICES="neutron-api neutron-ovn-agent"
OVN_SERVICES="ovs-db ovn-nb ovn-sb"
SWITCH_SERVICES="ovs-switch ovn-northd ovn-controller"
SWITCH_SOCKET=/run/openvswitch/db.sock

neutron_wanted() { [ "$NOVA_NETWORK" = neutron ]; }

neutron_packages() { echo openvswitch-switch ovn-central ovn-host haproxy conntrack; }

prepare_neutron() {
    local data=$DATA_DIR/neutron etc=$DATA_DIR/etc/neutron
    secret METADATA_SECRET
    install -d -m 755 "$data" "$data/ovn" /run/openvswitch
    [ ! -S "$SWITCH_SOCKET" ] || supervisorctl status ovs-db 2> /dev/null | grep RUNNING > /dev/null ||
        ! ovs-vsctl --timeout=2 --no-wait show > /dev/null 2>&1 ||
        die "this machine runs an Open vSwitch already; NOVA_NETWORK=neutron needs its own"
    modprobe -q openvswitch 2> /dev/null && DATAPATH=system || DATAPATH=netdev
    create_ovsdb "$data/switch.db" /usr/share/openvswitch/vswitch.ovsschema
    create_ovsdb "$data/ovn/nb.db" /usr/share/ovn/ovn-nb.ovsschema
    create_ovsdb "$data/ovn/sb.db" /usr/share/ovn/ovn-sb.ovsschema
    define_service ovs-db "/usr/sbin/ovsdb-server $data/switch.db --remote=punix:$SWITCH_SOCKET --unixctl=$data/ovs-db.ctl" priority=3
    define_service ovn-nb "/usr/sbin/ovsdb-server $data/ovn/nb.db --remote=punix:$data/ovn/nb.sock --unixctl=$data/ovn/nb.ctl" priority=3
    define_service ovn-sb "/usr/sbin/ovsdb-server $data/ovn/sb.db --remote=punix:$data/ovn/sb.sock --unixctl=$data/ovn/sb.ctl" priority=3
    define_service ovs-switch "/usr/sbin/ovs-vswitchd unix:$SWITCH_SOCKET --unixctl=$data/ovs-switch.ctl" priority=4
    define_service ovn-northd "/usr/bin/ovn-northd --ovnnb-db=unix:$data/ovn/nb.sock --ovnsb-db=unix:$data/ovn/sb.sock --unixctl=$data/ovn/northd.ctl" priority=4
    define_service ovn-controller "/usr/bin/ovn-controller unix:$SWITCH_SOCKET" \
        priority=5 "environment=OVN_RUNDIR=\"$data/ovn\",OVS_RUNDIR=\"/run/openvswitch\""
    write_neutron_conf
    write_gunicorn_options neutron "$NEUTRON_PORT"
    sed -i 's/^workers = .*/workers = 1/' "$etc/gunicorn.conf.py"
    local environment="OS_NEUTRON_CONFIG_DIR=\"$etc\",OS_NEUTRON_CONFIG_FILES=\"neutron.conf;ml2.ini\",PATH=\"$VENV/bin:/usr/sbin:/usr/bin:/sbin:/bin\",CONFIG=\"$(digest "$etc")\""
    # ASGI_WORKERS: Neutron cannot ask gunicorn how many processes share the events of OVN.
    define_service neutron-api "$VENV/bin/gunicorn" priority=12 stopsignal=INT \
        "environment=$environment,ASGI_WORKERS=\"1\",GUNICORN_CMD_ARGS=\"--config $etc/gunicorn.conf.py\""
    define_service neutron-ovn-agent "$VENV/bin/neutron-ovn-agent --config-file $etc/neutron.conf --config-file $etc/agent.ini" \
        priority=13 "environment=$environment"
}

create_ovsdb() { # FILE SCHEMA
    [ -s "$1" ] || ovsdb-tool create "$1" "$2"
}

write_neutron_conf() {
    local etc=$DATA_DIR/etc/neutron data=$DATA_DIR/neutron
    write_file "$etc/neutron.conf" 600 <<- CONF
	[DEFAULT]
	debug = $DEBUG
	use_stderr = True
	host = $HOST_NAME
	auth_strategy = keystone
	core_plugin = ml2
	service_plugins = ovn-router,auto_allocate
	api_paste_config = $VENV/etc/neutron/api-paste.ini
	transport_url = fake:/
	dhcp_agent_notification = False
	rpc_workers = 0
	state_path = $data/state
	[oslo_messaging_notifications]
	driver = noop
	[oslo_concurrency]
	lock_path = $data/locks
	[database]
	connection = $(database_url neutron)
	$(keystone_authtoken neutron)
	[nova]
	auth_type = password
	auth_url = $KEYSTONE_URL
	username = neutron
	password = $SERVICE_PASSWORD
	project_name = service
	user_domain_name = Default
	project_domain_name = Default
	region_name = $REGION_NAME
	CONF
    write_file "$etc/ml2.ini" 644 <<- CONF
	[ml2]
	type_drivers = geneve,vlan,flat,local
	tenant_network_types = geneve
	mechanism_drivers = ovn
	extension_drivers = port_security
	[ml2_type_geneve]
	max_header_size = 38
	vni_ranges = 1:65535
	[ml2_type_flat]
	flat_networks = public
	[ovn]
	ovn_nb_connection = unix:$data/ovn/nb.sock
	ovn_sb_connection = unix:$data/ovn/sb.sock
	ovn_metadata_enabled = True
	CONF
    # The agent runs as root: it needs no sudo.
    write_file "$etc/agent.ini" 600 <<- CONF
	[DEFAULT]
	nova_metadata_host = $SERVICE_HOST
	nova_metadata_port = $NOVA_METADATA_PORT
	metadata_proxy_shared_secret = $METADATA_SECRET
	[agent]
	extensions = metadata
	root_helper = env
	[ovs]
	ovsdb_connection = unix:$SWITCH_SOCKET
	[ovn]
	ovn_nb_connection = unix:$data/ovn/nb.sock
	ovn_sb_connection = unix:$data/ovn/sb.sock
	CONF
}

sync_neutron() {
    local etc=$DATA_DIR/etc/neutron log=$DATA_DIR/logs/stack/neutron.log version
    version=$(database_state neutron)
    ! stamp_is neutron "$version" || return 0
    "$VENV/bin/neutron-db-manage" --config-file "$etc/neutron.conf" --config-file "$etc/ml2.ini" upgrade heads > "$log" 2>&1 ||
        die "neutron-db-manage upgrade failed" "$log"
    set_stamp neutron "$version"
}

start_switch() { # start Open vSwitch and OVN on this machine, with a bridge to the external network
    local data=$DATA_DIR/neutron gateway
    gateway=$(first_address "$FLOATING_RANGE")
    # shellcheck disable=SC2086  # lists of names
    start_services $OVN_SERVICES
    wait_for "the database of Open vSwitch" "$DATA_DIR/logs/ovs-db.log" ovs-vsctl --timeout=2 --no-wait init
    ovs-vsctl --no-wait set Open_vSwitch . external_ids:system-id="$HOST_NAME" external_ids:hostname="$HOST_NAME" \
        other_config:userspace-tso-enable=true external_ids:ovn-remote="unix:$data/ovn/sb.sock" external_ids:ovn-encap-type=geneve \
        external_ids:ovn-encap-ip="$HOST_ADDRESS" external_ids:ovn-bridge=br-int external_ids:ovn-bridge-datapath-type="$DATAPATH" \
        external_ids:ovn-bridge-mappings=public:br-public external_ids:ovn-cms-options=enable-chassis-as-gw
    # shellcheck disable=SC2086
    start_services $SWITCH_SERVICES
    ovs-vsctl --timeout=30 --may-exist add-br br-int -- set bridge br-int datapath_type="$DATAPATH" fail_mode=secure
    ovs-vsctl --timeout=30 --may-exist add-br br-public -- set bridge br-public datapath_type="$DATAPATH"
    ip address replace "$gateway/${FLOATING_RANGE#*/}" dev br-public
    ip link set br-public up
    # Guests reach other networks through this machine.
    sysctl -q -w net.ipv4.ip_forward=1
    nft -f - <<- NFT
	table ip nova_stack_neutron
	delete table ip nova_stack_neutron
	table ip nova_stack_neutron {
	    chain postrouting {
	        type nat hook postrouting priority srcnat
	        ip saddr $FLOATING_RANGE ip daddr != $FLOATING_RANGE masquerade
	    }
	}
	NFT
}

first_address() { "$PYTHON" -c 'import ipaddress, sys; print(next(ipaddress.ip_network(sys.argv[1]).hosts()))' "$1"; } # CIDR

start_neutron() {
    # shellcheck disable=SC2086  # a list of names
    start_services $NEUTRON_SERVICES
    wait_for "Neutron" "$DATA_DIR/logs/neutron-api.log" http_responds "$NEUTRON_URL/"
    note "Neutron is up at $NEUTRON_URL (ML2/OVN, datapath $DATAPATH)"
}

nova_conf_of_neutron() { # print the section of nova.conf for Neutron
    neutron_wanted || return 0
    cat <<- CONF
	[neutron]
	auth_type = password
	auth_url = $KEYSTONE_URL
	username = nova-networks
	password = $SERVICE_PASSWORD
	project_name = service
	user_domain_name = Default
	project_domain_name = Default
	region_name = $REGION_NAME
	endpoint_override = $NEUTRON_URL
	CONF
}

remove_switch() { # remove what Open vSwitch, OVN and the agent leave on this machine after they were killed
    local name
    [ -d "$DATA_DIR/neutron" ] || return 0
    pkill -9 -f "haproxy -f $DATA_DIR/neutron/state/" || true
    nft delete table ip nova_stack_neutron 2> /dev/null || true
    for name in $(ip -o netns list | awk '$1 ~ /^ovnmeta-/ { print $1 }'); do ip netns delete "$name" || true; done
    for name in $(ip -o link show type veth | awk -F '[ :@]+' '$2 ~ /^tap/ { print $2 }'); do ip link delete "$name" 2> /dev/null || true; done
    for name in br-public br-int ovs-netdev; do ip link delete "$name" 2> /dev/null || true; done
    rm -f "$SWITCH_SOCKET"
}
