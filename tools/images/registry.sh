# shellcheck shell=bash
# A registry of this machine: Debian's docker-registry, with its data, log and number of process below $OUTPUT/registry.

registry_answers() { (exec 3<> "/dev/tcp/${REGISTRY%:*}/${REGISTRY#*:}") 2> /dev/null; }

start_registry() {
    local place=$OUTPUT/registry end=$((SECONDS + 30))
    if registry_answers; then
        say "there is a registry at $REGISTRY"
        return 0
    fi
    mkdir -p "$place/data"
    cat > "$place/registry.yml" <<- YAML
	version: 0.1
	log: {level: warn}
	storage: {filesystem: {rootdirectory: $place/data}, delete: {enabled: true}}
	http: {addr: '$REGISTRY'}
	YAML
    setsid nohup docker-registry serve "$place/registry.yml" > "$place/registry.log" 2>&1 < /dev/null 9>&- &
    echo $! > "$place/registry.pid"
    disown # it goes on
    until registry_answers; do
        kill -0 "$(cat "$place/registry.pid")" 2> /dev/null && [ $SECONDS -lt $end ] ||
            die "the registry does not start: $(tail -n 3 "$place/registry.log")"
        sleep 0.1
    done
    say "the registry listens at $REGISTRY; its process is $(cat "$place/registry.pid")"
}
