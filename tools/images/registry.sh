# shellcheck shell=bash
# A local registry: Debian's docker-registry. Its data, log and pid file are below $OUTPUT/registry.

registry_responds() { (exec 3<> "/dev/tcp/${REGISTRY%:*}/${REGISTRY#*:}") 2> /dev/null; }

start_registry() {
    local directory=$OUTPUT/registry end=$((SECONDS + 30))
    if registry_responds; then
        say "using the registry at $REGISTRY"
        return 0
    fi
    mkdir -p "$directory/data"
    cat > "$directory/registry.yml" <<- YAML
	version: 0.1
	log: {level: warn}
	storage: {filesystem: {rootdirectory: $directory/data}, delete: {enabled: true}}
	http: {addr: '$REGISTRY'}
	YAML
    setsid nohup docker-registry serve "$directory/registry.yml" > "$directory/registry.log" 2>&1 < /dev/null 9>&- &
    echo $! > "$directory/registry.pid"
    disown # the registry continues to run after this script
    until registry_responds; do
        kill -0 "$(cat "$directory/registry.pid")" 2> /dev/null && [ $SECONDS -lt $end ] ||
            die "the registry did not start: $(tail -n 3 "$directory/registry.log")"
        sleep 0.1
    done
    say "started the registry at $REGISTRY, pid $(cat "$directory/registry.pid")"
}
