# shellcheck shell=bash
# Plugin for upstream DevStack, which sources this file in each phase, with the phase as arguments. DevStack provides
# Keystone, Glance, RabbitMQ, the database and the functions used here (iniset, run_process, …). stack.sh does not use it.
# shellcheck disable=SC2154  # SERVICE_HOST, REGION_NAME … come from DevStack

NOVA_PLUGIN_SERVICES="nova-conductor nova-scheduler nova-compute nova-api nova-metadata"

function nova_plugin_packages {
    install_package libvirt-daemon-system libvirt-clients qemu-system-x86 qemu-utils genisoimage nftables dnsmasq-base \
        pkg-config libvirt-dev python3-dev gcc
}

function nova_plugin_install {
    setup_develop "$NOVA_PLUGIN_DIR" libvirt
}

function nova_plugin_configure {
    sudo install -d -o "$STACK_USER" "$NOVA_PLUGIN_CONF_DIR" "$NOVA_PLUGIN_STATE" "$NOVA_PLUGIN_STATE/locks"
    rm -f "$NOVA_PLUGIN_CONF"
    iniset "$NOVA_PLUGIN_CONF" DEFAULT host "${HOST_NAME:-$(hostname)}"
    iniset "$NOVA_PLUGIN_CONF" DEFAULT my_ip "$HOST_IP"
    iniset "$NOVA_PLUGIN_CONF" DEFAULT state_path "$NOVA_PLUGIN_STATE"
    iniset "$NOVA_PLUGIN_CONF" DEFAULT compute_driver libvirt
    iniset "$NOVA_PLUGIN_CONF" DEFAULT debug "$ENABLE_DEBUG_LOG_LEVEL"
    iniset "$NOVA_PLUGIN_CONF" DEFAULT use_stderr True
    iniset_rpc_backend nova "$NOVA_PLUGIN_CONF" DEFAULT
    iniset "$NOVA_PLUGIN_CONF" database connection "$(database_connection_url nova)"
    iniset "$NOVA_PLUGIN_CONF" api listen "$(ipv6_unquote "$SERVICE_LISTEN_ADDRESS")"
    iniset "$NOVA_PLUGIN_CONF" api port "$NOVA_PLUGIN_PORT"
    iniset "$NOVA_PLUGIN_CONF" api workers "$API_WORKERS"
    iniset "$NOVA_PLUGIN_CONF" api auth_strategy keystone
    iniset "$NOVA_PLUGIN_CONF" libvirt virt_type "$NOVA_PLUGIN_VIRT_TYPE"
    iniset "$NOVA_PLUGIN_CONF" network driver linuxnet
    iniset "$NOVA_PLUGIN_CONF" image driver glance
    iniset "$NOVA_PLUGIN_CONF" metadata port "$NOVA_PLUGIN_METADATA_PORT"
    iniset "$NOVA_PLUGIN_CONF" oslo_concurrency lock_path "$NOVA_PLUGIN_STATE/locks"
    configure_keystone_authtoken_middleware "$NOVA_PLUGIN_CONF" nova
    iniset "$NOVA_PLUGIN_CONF" keystone_authtoken service_token_roles_required True
    # Nova uses the same account for Glance.
    configure_keystone_authtoken_middleware "$NOVA_PLUGIN_CONF" nova glance
    iniset "$NOVA_PLUGIN_CONF" glance region_name "$REGION_NAME"
}

function nova_plugin_accounts {
    create_service_user nova admin
    get_or_create_service nova compute "Compute"
    get_or_create_endpoint compute "$REGION_NAME" "http://$SERVICE_HOST:$NOVA_PLUGIN_PORT/v2.1"
}

function nova_plugin_init {
    recreate_database nova
    nova-manage --config-file "$NOVA_PLUGIN_CONF" db sync
}

function nova_plugin_start {
    local service account
    for service in $NOVA_PLUGIN_SERVICES; do
        case "$service" in
            # Both manage bridges, namespaces or disks of guests, which requires root.
            nova-compute | nova-metadata) account=root ;;
            *) account=$STACK_USER ;;
        esac
        run_process "$service" "$(command -v "$service") --config-file $NOVA_PLUGIN_CONF" "" "$account"
    done
    wait_for_service "${SERVICE_TIMEOUT:-60}" "http://$SERVICE_HOST:$NOVA_PLUGIN_PORT/" ||
        die $LINENO "nova-api did not start"
}

function nova_plugin_network {
    nova-manage --config-file "$NOVA_PLUGIN_CONF" network create --if-missing --name "$NOVA_PLUGIN_NETWORK" \
        --cidr "$NOVA_PLUGIN_CIDR"
}

function nova_plugin_stop {
    local service
    for service in $NOVA_PLUGIN_SERVICES; do stop_process "$service"; done
}

function nova_plugin_clean {
    sudo rm -rf "$NOVA_PLUGIN_CONF" "$NOVA_PLUGIN_STATE"
}

case "$1 ${2:-}" in
    "stack pre-install") nova_plugin_packages ;;
    "stack install") nova_plugin_install ;;
    "stack post-config")
        nova_plugin_configure
        nova_plugin_accounts
        nova_plugin_init
        ;;
    "stack extra")
        nova_plugin_start
        nova_plugin_network
        ;;
    "unstack "*) nova_plugin_stop ;;
    "clean "*) nova_plugin_clean ;;
esac
