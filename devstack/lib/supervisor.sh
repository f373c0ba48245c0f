# shellcheck shell=bash
# supervisord runs each service of the stack as a program. All its files are below DATA_DIR.

supervisorctl() { "$VENV/bin/supervisorctl" -c "$DATA_DIR/etc/supervisord.conf" "$@"; }

supervisord_runs() {
    local pid
    pid=$(cat "$DATA_DIR/run/supervisord.pid" 2> /dev/null) || return 1
    grep -qs "$DATA_DIR/etc/supervisord.conf" "/proc/$pid/cmdline"
}

start_supervisor() {
    write_file "$DATA_DIR/etc/supervisord.conf" 644 <<- CONF
	[unix_http_server]
	file=$DATA_DIR/run/supervisor.sock
	chmod=0700
	[rpcinterface:supervisor]
	supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
	[supervisord]
	pidfile=$DATA_DIR/run/supervisord.pid
	logfile=$DATA_DIR/logs/supervisord.log
	childlogdir=$DATA_DIR/logs
	minfds=8192
	[supervisorctl]
	serverurl=unix://$DATA_DIR/run/supervisor.sock
	[include]
	files=$DATA_DIR/etc/supervisor.d/*.conf
	CONF
    mkdir -p "$DATA_DIR/etc/supervisor.d"
    if supervisord_runs; then
        note "supervisord is already running"
        return 0
    fi
    # In /, because the current directory may be removed later.
    (cd / && env -u PYTHONDONTWRITEBYTECODE "$VENV/bin/supervisord" -c "$DATA_DIR/etc/supervisord.conf")
    wait_for "supervisord" "$DATA_DIR/logs/supervisord.log" supervisorctl pid
    note "supervisord started"
}

define_service() { # NAME COMMAND [KEY=VALUE…]: write the definition of a program; KEY=VALUE are further supervisord options
    local name=$1 command=$2
    shift 2
    {
        echo "[program:$name]"
        echo "command=$command"
        # stack.sh starts the programs in order
        echo "autostart=false"
        echo "autorestart=true"
        echo "startretries=10"
        echo "stopwaitsecs=30"
        echo "redirect_stderr=true"
        echo "stdout_logfile=$DATA_DIR/logs/$name.log"
        echo "stdout_logfile_maxbytes=50MB"
        echo "stdout_logfile_backups=1"
        printf '%s\n' "$@"
    } | write_file "$DATA_DIR/etc/supervisor.d/$name.conf" 600
}

start_services() { # NAME…: restart services whose definition changed, start services that are not running
    local name pid pids=()
    supervisorctl update "$@" > "$DATA_DIR/logs/stack/supervisor.log" 2>&1 || die "supervisorctl update failed" "$DATA_DIR/logs/stack/supervisor.log"
    for name in $(supervisorctl status "$@" | awk '$2 != "RUNNING" { print $1 }'); do
        supervisorctl start "$name" >> "$DATA_DIR/logs/stack/supervisor.log" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
    for name in $(supervisorctl status "$@" | awk '$2 !~ /^(RUNNING|STARTING)$/ { print $1 }'); do
        die "$name did not start" "$DATA_DIR/logs/$name.log"
    done
}

stop_services() { # NAME…: stop services in parallel; one by one, a service would wait for services that already stopped
    local name pid pids=()
    for name in "$@"; do
        supervisorctl stop "$name" > /dev/null 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || true; done
}

remove_services() { # NAME…: stop services and remove their definitions
    stop_services "$@"
    (cd "$DATA_DIR/etc/supervisor.d" && rm -f "${@/%/.conf}")
    supervisorctl update "$@" > "$DATA_DIR/logs/stack/supervisor.log" 2>&1 || die "supervisorctl update failed" "$DATA_DIR/logs/stack/supervisor.log"
}

kill_supervisor() { # kill supervisord and all its services without a graceful stop: their data are removed next
    local pid child children
    supervisord_runs || return 0
    pid=$(cat "$DATA_DIR/run/supervisord.pid")
    children=$(pgrep -P "$pid" || true)
    kill -9 "$pid"  # before the services, because supervisord would restart them
    for child in $children; do
        kill -9 -- "-$child" 2> /dev/null || kill -9 "$child" 2> /dev/null || true  # each is the leader of a process group
    done
    for child in $pid $children; do
        for _ in $(seq 100); do
            kill -0 "$child" 2> /dev/null || break
            sleep 0.1
        done
    done
}
