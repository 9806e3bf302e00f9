hostfile=${EXPERTRAIL_HOSTFILE:-/etc/mpi/hostfile}
most=${EXPERTRAIL_SSH_S:-900}
# The first process of a container gets no signal that it has no handler for; mpirun takes over at the end.
trap 'exit 143' TERM INT

if [ ! -r "$hostfile" ]; then
    echo "launcher: $hostfile is not there: this is no launcher of an MPIJob; apply the MPIJob's file" >&2
    exit 2
fi
hosts=
found=0
while read -r host _; do
    case $host in
    '' | '#'*) continue ;;
    esac
    hosts="$hosts $host"
    found=$((found + 1))
done <"$hostfile"
if [ "$found" -ne "$nodes" ]; then
    echo "launcher: $hostfile names $found nodes and the run has $nodes: replicas of Worker and the rendered files do not belong together" >&2
    exit 2
fi

# Operator and nodes start together: sshd answers only when the image has been pulled on its node. A launcher that started mpirun
# before that would fail at once, and with backoffLimit 0 that is the end of the run.
# Its key is mounted read-only, so that no host can be added to known_hosts; pods are new in each run anyway.
ssh_options="-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
begin=$(date +%s)
answered=0
for host in $hosts; do
    said=
    # shellcheck disable=SC2086 # several words
    until last=$(ssh -o ConnectTimeout=3 -o BatchMode=yes $ssh_options "$host" true 2>&1 </dev/null); do
        waited=$(($(date +%s) - begin))
        if [ "$waited" -ge "$most" ]; then
            echo "launcher: $host does not answer by ssh after $waited s ($answered of $nodes nodes do). Last words: $last. Look at its pod:" \
                "$kubectl describe pod ${host%%.*}" >&2
            exit 3
        fi
        if [ -z "$said" ] || [ $((waited - said)) -ge 30 ]; then
            said=$waited
            echo "launcher: $answered of $nodes nodes answer; waiting for $host ($waited s of at most $most s)"
        fi
        sleep 1
    done
    answered=$((answered + 1))
done
echo "launcher: $answered of $nodes nodes answer"

# The first node has rank 0.
MASTER_ADDR=${hosts# }
MASTER_ADDR=${MASTER_ADDR%% *}
export MASTER_ADDR
