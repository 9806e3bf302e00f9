# shellcheck shell=bash
# shellcheck disable=SC2034,SC2153 # names in capitals come from settings.sh, or are for the scripts that read this
# What the scripts of this folder share. It is read by them and does nothing by itself.
#
# ROOT: a folder in place of /, for images that are being made: files are written below it, and commands run in it by chroot. With
# STAND_INS=yes commands are taken from PATH instead: for tests, which have their own.
#
# Exit codes: 0 done or right, 1 not as it should be, 2 usage, 3 not done (a command or --yes is missing), 4 no access.

ROOT=${ROOT:-}
ROOT=${ROOT%/}
STAND_INS=${STAND_INS:-no}
STATE=/var/lib/expertrail
ME=${0##*/}
ME=${ME%.sh}
CHANGED=no
REASONS=''

fail() {
    local code=$1
    shift
    printf '%s: %s\n' "$ME" "$*" >&2
    exit "$code"
}

say() { printf '%s: %s\n' "$ME" "$*"; }

# bad REASON: notes why verify fails.
bad() { REASONS="$REASONS
  $*"; }

# live COMMAND...: runs it on the machine that is set up.
live() {
    if [ -n "$ROOT" ] && [ "$STAND_INS" != yes ]; then
        chroot "$ROOT" "$@" </dev/null
    else
        "$@" </dev/null
    fi
}

# inner PATH: the path of a file of that machine, as a command that `live` runs sees it.
inner() {
    if [ "$STAND_INS" = yes ]; then printf '%s' "$ROOT$1"; else printf '%s' "$1"; fi
}

# have COMMAND: whether the machine has it.
have() {
    if [ -n "$ROOT" ] && [ "$STAND_INS" != yes ]; then
        chroot "$ROOT" /bin/sh -c "command -v \"\$1\"" sh "$1" >/dev/null 2>&1
    else
        command -v "$1" >/dev/null 2>&1
    fi
}

# need COMMAND WHY...: ends where it is absent.
need() {
    local command=$1
    shift
    have "$command" || fail 3 "there is no command $command on this machine: $*"
}

# put PATH TEXT: writes the text there with a line end, unless it is there already. Not behind a pipe: CHANGED would be set in another
# shell. Not from <(...): a chroot without /proc has no /dev/fd.
put() {
    local path=$ROOT$1
    if printf '%s\n' "$2" | holds "$1"; then
        say "unchanged $1"
        return 0
    fi
    if ! { mkdir -p "${path%/*}" && printf '%s\n' "$2" >"$path.new" && chmod 644 "$path.new" && mv "$path.new" "$path"; }; then
        fail 4 "cannot write $path"
    fi
    CHANGED=yes
    say "wrote $1"
}

# holds PATH: whether the file has exactly its input.
holds() {
    local text
    # The x keeps the line ends that $( ) would take away.
    text=$(cat && printf x)
    [ -f "$ROOT$1" ] && [ "$(cat "$ROOT$1" && printf x)" = "$text" ]
}

# stamp NAME TEXT: remembers that something was done for TEXT; stamped NAME TEXT: whether it was.
stamp() {
    if ! { mkdir -p "$ROOT$STATE" && printf '%s\n' "$2" >"$ROOT$STATE/$1"; }; then fail 4 "cannot write $ROOT$STATE/$1"; fi
}
stamped() { [ "$(cat "$ROOT$STATE/$1" 2>/dev/null)" = "$2" ]; }

# memlock_text: the drop-in of a unit.
memlock_text() { printf '[Service]\nLimitMEMLOCK=infinity\n'; }
memlock_path() { printf '/etc/systemd/system/%s.service.d/expertrail-memlock.conf' "$1"; }

# has_unit UNIT: whether systemd knows it.
has_unit() { have systemctl && live systemctl cat "$1.service" >/dev/null 2>&1; }

# unit_limit UNIT: whether the limit is set, and whether the running process has it; notes what is not.
unit_limit() {
    local shown pid row
    memlock_text | holds "$(memlock_path "$1")" || bad "$(memlock_path "$1") does not have LimitMEMLOCK=infinity: run 60-memlock.sh apply"
    shown=$(live systemctl show "$1.service" -p LimitMEMLOCK 2>/dev/null || true)
    [ "$shown" = LimitMEMLOCK=infinity ] || bad "systemd has ${shown:-no LimitMEMLOCK} for $1: run systemctl daemon-reload; another drop-in may set it"
    pid=$(live systemctl show "$1.service" -p MainPID 2>/dev/null || true)
    pid=${pid#MainPID=}
    case $pid in '' | 0) return 0 ;; esac
    row=$(grep '^Max locked memory' "$ROOT/proc/$pid/limits" 2>/dev/null || true)
    case $row in
        *unlimited*unlimited*) ;;
        *) bad "the running $1 (process $pid) has another limit (${row:-its limits cannot be read}): configured but not active, restart it with 70-runtime-restart.sh" ;;
    esac
}

# cuda_major: 12 or 13, from the toolkit.
cuda_major() {
    local nvcc=$CUDA/bin/nvcc text
    [ -x "$ROOT$nvcc" ] || nvcc=nvcc
    need "$nvcc" "install the CUDA toolkit, or give CUDA=FOLDER"
    text=$(live "$nvcc" --version) || fail 3 "$nvcc --version fails"
    text=$(printf '%s\n' "$text" | sed -n 's/.*release \([0-9][0-9]*\)\.[0-9].*/\1/p')
    [ -n "$text" ] || fail 3 "$nvcc --version names no release"
    printf '%s' "$text"
}

# main ARGUMENT...: runs apply_it or verify_it.
main() {
    local action=${1:-}
    [ $# -eq 0 ] || shift
    YES=no NODE='' DRAINED=no
    while [ $# -gt 0 ]; do
        case $1 in
            --yes) YES=yes ;;
            --drained) DRAINED=yes ;;
            --node)
                [ $# -ge 2 ] || fail 2 "--node needs a name"
                NODE=$2
                shift
                ;;
            *) fail 2 "unknown argument $1" ;;
        esac
        shift
    done
    case $action in
        apply)
            [ "$(id -u)" = 0 ] || [ "$STAND_INS" = yes ] || fail 4 "apply changes the machine and must run as root: sudo $0 apply"
            apply_it
            if [ $CHANGED = yes ]; then say "applied"; else say "unchanged: nothing to do"; fi
            ;;
        verify)
            verify_it
            [ -z "$REASONS" ] || fail 1 "not as it should be:$REASONS"
            say "ok"
            ;;
        *) fail 2 "usage: $0 apply|verify" ;;
    esac
}
