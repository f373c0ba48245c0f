# shellcheck shell=bash
# Glance from PyPI under gunicorn, with the file store.

prepare_glance() {
    local etc=$DATA_DIR/etc/glance data=$DATA_DIR/glance
    install -d -m 700 "$data" "$data/images" "$data/staging" "$data/tasks"
    write_file "$etc/glance-api.conf" 600 <<- CONF
	[DEFAULT]
	debug = $DEBUG
	use_stderr = True
	enabled_backends = fs:file
	[database]
	connection = $(database_url glance)
	[glance_store]
	default_backend = fs
	[fs]
	filesystem_store_datadir = $data/images
	[os_glance_staging_store]
	filesystem_store_datadir = $data/staging
	[os_glance_tasks_store]
	filesystem_store_datadir = $data/tasks
	[oslo_policy]
	policy_file = $etc/policy.yaml
	[paste_deploy]
	flavor = keystone
	config_file = $VENV/etc/glance/glance-api-paste.ini
	$(keystone_authtoken glance)
	CONF
    write_file "$etc/policy.yaml" 644 < "$DEVSTACK_DIR/lib/glance_policy.yaml"
    write_gunicorn_options glance "$GLANCE_PORT"
    define_service glance "$VENV/bin/gunicorn" \
        priority=11 stopsignal=INT "environment=OS_GLANCE_CONFIG_DIR=\"$etc\",GUNICORN_CMD_ARGS=\"--config $etc/gunicorn.conf.py\",CONFIG=\"$(digest "$etc")\""
}

keystone_authtoken() { # USER: print the section of a service that validates tokens
    cat <<- CONF
	[keystone_authtoken]
	www_authenticate_uri = $KEYSTONE_URL
	$(service_credentials "$1")
	service_token_roles = service
	service_token_roles_required = True
	memcached_servers = 127.0.0.1:$MEMCACHED_PORT
	CONF
}

sync_glance() {
    local log=$DATA_DIR/logs/stack/glance.log version
    version=$(database_state glance)
    ! stamp_is glance "$version" || return 0
    "$VENV/bin/glance-manage" --config-file "$DATA_DIR/etc/glance/glance-api.conf" db_sync > "$log" 2>&1 ||
        die "glance-manage db_sync failed" "$log"
    set_stamp glance "$version"
}

wait_for_glance() {
    wait_for "Glance" "$DATA_DIR/logs/glance.log" http_responds "$GLANCE_URL/"
    note "Glance is up at $GLANCE_URL"
}
