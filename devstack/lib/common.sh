# shellcheck shell=bash
# Common functions: messages, polling with a timeout, background tasks, secrets.

STARTED_AT=${STARTED_AT:-$SECONDS}
# Seconds to wait for a service to respond. On a busy machine RabbitMQ needs up to 65 s instead of 5 s.
START_LIMIT=180

say() { printf '%s\n' "$*"; }
elapsed() { printf '%d:%02d' $(((SECONDS - STARTED_AT) / 60)) $(((SECONDS - STARTED_AT) % 60)); }
step() { printf '\n[%s] %s\n' "$(elapsed)" "$*"; }
note() { printf '       %s\n' "$*"; }
warn() { printf 'WARNING: %s\n' "$*" >&2; }

die() { # MESSAGE [LOGFILE]: print the message and the last 30 lines of the log, then exit
    printf '\nERROR: %s\n' "$1" >&2
    if [ -n "${2:-}" ] && [ -s "${2:-}" ]; then
        printf -- '--- last lines of %s ---\n' "$2" >&2
        tail -n 30 "$2" >&2
    fi
    exit 1
}

require_root() {
    [ "$(id -u)" = 0 ] || die "run this script as root: it installs packages and creates bridges and guests"
}

is_true() { case "${1,,}" in true | yes | on | 1) return 0 ;; *) return 1 ;; esac; }

random_secret() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

secret() { # NAME: export variable NAME, and store it in secrets.env; its value is generated if unset
    local name=$1 file=$DATA_DIR/secrets.env
    if [ -z "${!name:-}" ]; then
        printf -v "$name" '%s' "$(random_secret)"
    fi
    (umask 077 && touch "$file")
    grep -q "^$name=" "$file" || printf '%s=%s\n' "$name" "${!name}" >> "$file"
    export "${name?}"
}

load_secrets() {
    # shellcheck disable=SC1091  # generated
    [ ! -f "$DATA_DIR/secrets.env" ] || . "$DATA_DIR/secrets.env"
}

port_in_use() { [ -n "$(ss -Hltn "sport = :$1")" ]; }

allocate_port() { # NAME FIRST: set variable NAME to the first free port >= FIRST, and store it in ports.env for later runs
    local name=$1 port=$2 file=$DATA_DIR/ports.env
    if [ -n "${!name:-}" ]; then return 0; fi
    if grep -qs "^$name=" "$file"; then
        port=$(sed -n "s/^$name=//p" "$file")
    else
        while port_in_use "$port"; do port=$((port + 1)); done
        printf '%s=%s\n' "$name" "$port" >> "$file"
    fi
    printf -v "$name" '%s' "$port"
}

write_file() { # PATH MODE [OWNER]: write standard input to a file; do not replace the file if its content is the same
    local path=$1 mode=$2 owner=${3:-root:root} new
    mkdir -p "$(dirname "$path")"
    new=$(umask 077 && mktemp "$path.XXXXXX")
    cat > "$new"
    chmod "$mode" "$new"
    chown "$owner" "$new"
    if cmp -s "$new" "$path"; then rm "$new"; else mv "$new" "$path"; fi
    chmod "$mode" "$path"
}

digest() { # FILE_OR_DIRECTORY…: print a short hash of the contents; ignore missing files
    find "$@" -type f ! -name '*.pyc' ! -path '*.egg-info/*' -print0 2> /dev/null |
        LC_ALL=C sort -z | xargs -0r sha256sum | sha256sum | cut -c1-16
}

stamp_is() { [ "$(cat "$DATA_DIR/stamps/$1" 2> /dev/null)" = "$2" ]; }
set_stamp() { mkdir -p "$DATA_DIR/stamps" && printf '%s' "$2" > "$DATA_DIR/stamps/$1"; }

start_task() { # NAME FUNCTION [ARGUMENT…]: run the function in the background; its output goes to logs/stack/NAME.log
    local name=$1
    shift
    ("$@") > "$DATA_DIR/logs/stack/$name.log" 2>&1 &
    printf -v "TASK_${name//-/_}" '%s' $!
}

last_line() { # LOG: print the last line of a log that is not a warning
    local line
    line=$(grep -av '^WARNING' "$1" | tail -n 1 | tr -d '\r' | cut -c1-90) || true
    echo "${line:-running}"
}

finish_task() { # NAME TITLE: wait for a background task and print its progress
    local name=$1 title=$2 log=$DATA_DIR/logs/stack/$1.log pid next=$((SECONDS + 5))
    pid=TASK_${name//-/_}
    pid=${!pid}
    while kill -0 "$pid" 2> /dev/null; do
        if [ "$SECONDS" -ge "$next" ]; then
            note "[$(elapsed)] $title: $(last_line "$log")"
            next=$((SECONDS + 5))
        fi
        sleep 0.2
    done
    wait "$pid" || die "$title failed" "$log"
    note "$title: done"
}

run_logged() { # NAME TITLE COMMAND…: run a long command and print its progress; print its output only if it fails
    local name=$1 title=$2
    shift 2
    start_task "$name" "$@"
    finish_task "$name" "$title"
}

wait_for() { # NAME LOGFILE COMMAND…: poll until the command succeeds; fail after START_LIMIT seconds
    local limit=$((SECONDS + START_LIMIT)) name=$1 log=$2 next=$((SECONDS + 10))
    shift 2
    until "$@" > /dev/null 2>&1; do
        [ "$SECONDS" -lt "$limit" ] || die "$name did not respond within $START_LIMIT s" "$log"
        if [ "$SECONDS" -ge "$next" ]; then
            note "[$(elapsed)] waiting for $name"
            next=$((SECONDS + 10))
        fi
        sleep 0.2
    done
}

http_responds() { # URL: true if a request of the URL returns a status below 500
    "$VENV/bin/python" - "$1" <<- 'PYTHON'
	import sys, urllib.error, urllib.request
	try:
	    urllib.request.urlopen(sys.argv[1], timeout=5)
	except urllib.error.HTTPError as error:
	    sys.exit(error.code >= 500)
	except OSError:
	    sys.exit(1)
	PYTHON
}
