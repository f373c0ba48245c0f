# shellcheck shell=bash
# A dedicated RabbitMQ node with its own ports, data and Erlang port mapper, on loopback. With NOVA_HOSTS > 1, RabbitMQ also
# listens on HOST_ADDRESS.

prepare_rabbitmq() {
    secret RABBIT_PASSWORD
    allocate_port RABBIT_PORT 5672
    allocate_port RABBIT_DIST_PORT 25672
    allocate_port EPMD_PORT 4369
    RABBIT_URL=rabbit://nova:$RABBIT_PASSWORD@127.0.0.1:$RABBIT_PORT/nova
    local etc=$DATA_DIR/etc/rabbitmq data=$DATA_DIR/rabbitmq
    install -d -o rabbitmq -g rabbitmq -m 750 "$data"

    write_file "$etc/rabbitmq.conf" 644 <<- CONF
	listeners.tcp.default = 127.0.0.1:$RABBIT_PORT
	$([ "$NOVA_HOSTS" = 1 ] || echo "listeners.tcp.hosts = $HOST_ADDRESS:$RABBIT_PORT")
	load_definitions = $etc/definitions
	log.console = true
	log.console.level = warning
	log.file = false
	CONF
    rabbit_definitions | write_file "$etc/definitions/0-nova.json" 640 root:rabbitmq
    enrol_hosts "$etc/definitions"
    chmod 755 "$etc/definitions"
    : > "$etc/empty"  # replaces the system's rabbitmq-env.conf and enabled_plugins
    chmod 644 "$etc/empty"

    define_service epmd "/usr/bin/epmd -address 127.0.0.1 -port $EPMD_PORT" user=rabbitmq priority=1
    define_service rabbitmq /usr/lib/rabbitmq/bin/rabbitmq-server user=rabbitmq priority=2 stopasgroup=true killasgroup=true \
        "environment=$(rabbit_environment | paste -sd,)"
}

rabbit_environment() {
    local etc=$DATA_DIR/etc/rabbitmq data=$DATA_DIR/rabbitmq
    cat <<- ENVIRONMENT
	HOME="$data"
	RABBITMQ_NODENAME="nova@localhost"
	RABBITMQ_CONF_ENV_FILE="$etc/empty"
	RABBITMQ_ENABLED_PLUGINS_FILE="$etc/empty"
	RABBITMQ_CONFIG_FILE="$etc/rabbitmq.conf"
	RABBITMQ_MNESIA_BASE="$data/mnesia"
	RABBITMQ_LOG_BASE="$data/log"
	RABBITMQ_DIST_PORT="$RABBIT_DIST_PORT"
	RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}"
	ERL_EPMD_ADDRESS="127.0.0.1"
	ERL_EPMD_PORT="$EPMD_PORT"
	CONFIG="$(digest "$etc/rabbitmq.conf" "$etc/definitions")"
	ENVIRONMENT
}

rabbit_definitions() { # print the user and vhost definitions, which RabbitMQ loads at start; rabbitmqctl would be slower
    RABBIT_PASSWORD=$RABBIT_PASSWORD "$VENV/bin/python" - <<- 'PYTHON'
	import base64, hashlib, json, os
	password = os.environ["RABBIT_PASSWORD"].encode()
	salt = hashlib.sha256(b"salt" + password).digest()[:4]  # constant, so that the file does not change between runs
	hashed = base64.b64encode(salt + hashlib.sha256(salt + password).digest()).decode()
	print(json.dumps({
	    "users": [{"name": "nova", "password_hash": hashed, "hashing_algorithm": "rabbit_password_hashing_sha256",
	               "tags": ""}],
	    "vhosts": [{"name": "nova"}],
	    "permissions": [{"user": "nova", "vhost": "nova", "configure": ".*", "write": ".*", "read": ".*"}],
	}, indent=1))
	PYTHON
}

rabbit_responds() { # true if Nova's account can log in
    URL=${RABBIT_URL/rabbit:/amqp:} "$VENV/bin/python" -c 'import os, kombu; kombu.Connection(os.environ["URL"]).connect()'
}

wait_for_rabbitmq() {
    wait_for "RabbitMQ" "$DATA_DIR/logs/rabbitmq.log" rabbit_responds
    note "RabbitMQ is up on port $RABBIT_PORT, vhost nova"
}

queue_has_consumer() { # QUEUE: true if the queue has a consumer
    URL=${RABBIT_URL/rabbit:/amqp:} "$VENV/bin/python" - "$1" <<- 'PYTHON'
	import os, sys, kombu
	with kombu.Connection(os.environ["URL"]) as connection:
	    sys.exit(connection.channel().queue_declare(sys.argv[1], passive=True).consumer_count == 0)
	PYTHON
}
