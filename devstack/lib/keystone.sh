# shellcheck shell=bash
# Keystone from PyPI under gunicorn, its accounts and catalog, and memcached, which caches token validation.

prepare_memcached() {
    allocate_port MEMCACHED_PORT 11211
    define_service memcached "/usr/bin/memcached -l 127.0.0.1 -p $MEMCACHED_PORT -m 64" user=nobody priority=2
}

prepare_keystone() {
    secret ADMIN_PASSWORD
    secret DEMO_PASSWORD
    secret SERVICE_PASSWORD
    local etc=$DATA_DIR/etc/keystone
    write_file "$etc/keystone.conf" 600 <<- CONF
	[DEFAULT]
	debug = $DEBUG
	use_stderr = True
	[database]
	connection = $(database_url keystone)
	[token]
	provider = fernet
	[fernet_tokens]
	key_repository = $DATA_DIR/keystone/fernet
	[fernet_receipts]
	key_repository = $DATA_DIR/keystone/fernet
	[credential]
	key_repository = $DATA_DIR/keystone/credential
	[identity]
	# fast, weak password hashes, acceptable in a development stack: with the default a login takes 250 ms
	password_hash_rounds = 4
	[cache]
	enabled = True
	backend = dogpile.cache.memcached
	memcache_servers = 127.0.0.1:$MEMCACHED_PORT
	CONF
    write_gunicorn_options keystone "$KEYSTONE_PORT"
    define_service keystone "$VENV/bin/gunicorn" \
        priority=10 stopsignal=INT "environment=OS_KEYSTONE_CONFIG_DIR=\"$etc\",GUNICORN_CMD_ARGS=\"--config $etc/gunicorn.conf.py\",CONFIG=\"$(digest "$etc")\""
}

# PACKAGE PORT [CONFIG_FILE [WORKERS]]: write gunicorn.conf.py, which serves PACKAGE.wsgi.api on all addresses in LISTEN.
# CONFIG_FILE: for packages that accept their configuration file as a command-line argument only.
# gunicorn gets a file instead of arguments, because Keystone would parse the arguments as its own.
# gunicorn instead of uWSGI: after a 204, uWSGI sends extra data or closes the connection without notice, and the next
# request on the persistent connection fails.
write_gunicorn_options() {
    local workers=${4:-2} threads=4 address binds=""
    # SQLite aborts a transaction that read before another transaction wrote, so the service would return errors.
    [ "$NOVA_DATABASE" != sqlite ] || workers=1 threads=1
    for address in $LISTEN; do binds+="\"$address:$2\", "; done
    write_file "$DATA_DIR/etc/$1/gunicorn.conf.py" 644 <<- PYTHON
	wsgi_app = "$1.wsgi.api:application"
	bind = [$binds]
	worker_class = "gthread"
	workers = $workers
	threads = $threads
	# seconds: longer than clients keep idle connections, and long enough for an image upload
	keepalive = 75
	timeout = 300
	control_socket_disable = True
	$([ -z "${3:-}" ] || printf '%s\n' "" "def post_fork(server, worker):" "    import sys" "    sys.argv = [\"$1-api\", \"--config-file\", \"$3\"]")
	PYTHON
}

sync_keystone() {
    local log=$DATA_DIR/logs/stack/keystone.log version
    version=$(database_state keystone)
    ! stamp_is keystone "$version" || return 0
    install -d -m 700 "$DATA_DIR/keystone"
    {
        keystone_manage db_sync
        keystone_manage fernet_setup --keystone-user root --keystone-group root
        keystone_manage credential_setup --keystone-user root --keystone-group root
        OS_BOOTSTRAP_PASSWORD=$ADMIN_PASSWORD keystone_manage bootstrap --bootstrap-region-id "$REGION_NAME" \
            --bootstrap-admin-url "$KEYSTONE_URL" --bootstrap-internal-url "$KEYSTONE_URL" --bootstrap-public-url "$KEYSTONE_URL"
    } > "$log" 2>&1 || die "creating Keystone's database failed" "$log"
    set_stamp keystone "$version"
}

keystone_manage() { "$VENV/bin/keystone-manage" --config-dir "$DATA_DIR/etc/keystone" "$@"; }

wait_for_keystone() {
    wait_for "Keystone" "$DATA_DIR/logs/keystone.log" http_responds "$KEYSTONE_URL"
    note "Keystone is up at $KEYSTONE_URL"
}

create_accounts() { # create projects, users, role assignments and the service catalog
    local log=$DATA_DIR/logs/stack/accounts.log
    SERVICE_PASSWORD=$SERVICE_PASSWORD DEMO_PASSWORD=$DEMO_PASSWORD GLANCE_URL=$GLANCE_URL NOVA_URL=$NOVA_URL CINDER_URL=$(! cinder_wanted || echo "$CINDER_URL") \
        NEUTRON_URL=$(! neutron_wanted || echo "$NEUTRON_URL") \
        as_admin "$VENV/bin/python" "$DEVSTACK_DIR/lib/accounts.py" > "$log" 2>&1 || die "creating the accounts failed" "$log"
}

service_credentials() { # USER: print the options by which a service authenticates as a user of the project service
    cat <<- CONF
	auth_type = password
	auth_url = $KEYSTONE_URL
	username = $1
	password = $SERVICE_PASSWORD
	project_name = service
	user_domain_name = Default
	project_domain_name = Default
	region_name = $REGION_NAME
	CONF
}

as_admin() { # COMMAND…: run the command with the administrator's credentials in the environment
    # Not with env(1): all local users can read its arguments.
    OS_AUTH_URL=$KEYSTONE_URL OS_IDENTITY_API_VERSION=3 OS_USERNAME=admin OS_PASSWORD=$ADMIN_PASSWORD OS_PROJECT_NAME=admin \
        OS_USER_DOMAIN_NAME=Default OS_PROJECT_DOMAIN_NAME=Default OS_REGION_NAME=$REGION_NAME "$@"
}

write_openrc() {
    { openrc admin admin "$ADMIN_PASSWORD"; echo "export NOVA_CONFIG=$(nova_conf_file)"; } | write_file "$DATA_DIR/openrc" 600
    openrc demo demo "$DEMO_PASSWORD" | write_file "$DATA_DIR/openrc-demo" 600
}

openrc() { # USER PROJECT PASSWORD
    cat <<- RC
	export OS_AUTH_URL=$KEYSTONE_URL
	export OS_IDENTITY_API_VERSION=3
	export OS_USERNAME=$1
	export OS_PASSWORD=$3
	export OS_PROJECT_NAME=$2
	export OS_USER_DOMAIN_NAME=Default
	export OS_PROJECT_DOMAIN_NAME=Default
	export OS_REGION_NAME=$REGION_NAME
	case ":\$PATH:" in *":$VENV/bin:"*) ;; *) export PATH="$VENV/bin:\$PATH" ;; esac
	RC
}
