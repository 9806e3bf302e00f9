#!/usr/bin/env python3
"""Drives DeepEP's library (V1 and hybrid-ep, `deep_ep.Buffer`) and fails closed.

One process per GPU, with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun or
`expertrail worker` set them. Needs torch and deep_ep; everything else is Python's own library (3.9 or newer).

Settings, buffer sizes and byte counts are those of the Kubernetes guide's benchmark, so that its reference figures apply:
inside a node a token counts once for each other rank it goes to, between nodes once for each node, the own one included;
times are CUDA events around the whole call. Beside them stand wire bytes, all ranks' times (maximum over ranks first,
percentiles after), a check of every received row and of every combined element, and what each rail sent.

Exit codes: 0 every benchmark ran and every row was right, 1 something failed, 2 refused before any GPU work, 143 stopped.
A process that is stuck beyond its deadline is ended by SIGALRM; the result file says "fail" until the run has ended well.
"""
import argparse
import importlib
import json
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from datetime import datetime, timedelta, timezone

VERSION = "1"
MIB = 1 << 20
# Points 37 and 38 of the guide; low-latency is DeepEP's published decode shape, with experts that any power of two divides.
BENCHMARKS = {
    "intranode": dict(preset="guide-intranode", tokens=65536, hidden=3072, experts=128, top_k=16, sms=40, warmup=10, iters=50),
    "internode": dict(preset="guide-internode", tokens=8192, hidden=3072, experts=128, top_k=8, sms=20, warmup=10, iters=50),
    "low-latency": dict(preset="decode", tokens=128, hidden=7168, experts=256, top_k=8, sms=0, warmup=10, iters=50),
}
MARKS = {"intranode": "INTRA ERROR", "internode": "INTER ERROR", "low-latency": "LOW-LATENCY ERROR"}
# What a row of a verification carries: base-64 digits of its source and token. BF16 holds them exactly, four times over too.
DIGITS = ("source", "source", "token", "token", "token", "token")
COMBINE_TOLERANCE = 2.0 ** -8  # of the sum of magnitudes: two BF16 roundings of at most 2^-9 each (partial of a node, result)
FP8_TOLERANCE = 2.0 ** -4  # of the value: E4M3 has three bits of fraction
CHUNK = 8192  # rows compared at once, so that a check needs little memory


class Refused(Exception):
    """The run must not start; one line for each reason."""

    def __init__(self, lines):
        super().__init__("; ".join(lines))
        self.lines = lines


class Failed(Exception):
    """The run cannot go on."""


def say(text, to=None):
    # One write for a line: ranks share the stream.
    stream = to or sys.stdout
    stream.write(text + "\n")
    stream.flush()


# ---- What was asked for, and who this process is ----

def arguments(argv):
    parser = argparse.ArgumentParser(prog="deepep_bench.py", description="DeepEP's benchmark, fail-closed.")
    parser.add_argument("--benchmarks", default="intranode,internode", help="comma list of " + ", ".join(BENCHMARKS))
    numbers = ("tokens", "hidden", "experts", "top_k", "sms", "warmup", "iters")
    for name in numbers:
        flag = name.replace("_", "-")
        parser.add_argument("--" + flag, type=int, help="for every benchmark")
        for benchmark in BENCHMARKS:
            parser.add_argument("--%s-%s" % (benchmark, flag), type=int, help=argparse.SUPPRESS)
    parser.add_argument("--qps", type=int, default=24, help="queue pairs of a rank, between nodes")
    parser.add_argument("--internode-nvl-mib", type=int, default=1024)
    parser.add_argument("--internode-rdma-mib", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pins", help="DEVICE[:PORT],... by local rank: this rank takes its own before NVSHMEM starts")
    parser.add_argument("--json", metavar="FILE", help="rank 0 writes the result here (expertrail.result/1)")
    parser.add_argument("--rendezvous-s", type=float, default=900, help="until all ranks have met")
    parser.add_argument("--timeout-s", type=float, default=300, help="each wait for other ranks")
    parser.add_argument("--benchmark-s", type=float, default=600, help="a benchmark as a whole")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"], help="of the process group DeepEP gets")
    parser.add_argument("--sysfs", default="/sys", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.benchmarks = [name.strip() for name in args.benchmarks.split(",") if name.strip()]
    unknown = [name for name in args.benchmarks if name not in BENCHMARKS]
    if unknown or not args.benchmarks:
        parser.error("--benchmarks: %s: known are %s" % (",".join(unknown) or "none given", ", ".join(BENCHMARKS)))
    # DeepEP's own order, whatever was typed: inside a node first, as the guide does.
    args.benchmarks = [name for name in BENCHMARKS if name in args.benchmarks]
    args.settings = {}
    for benchmark in args.benchmarks:
        chosen = dict(BENCHMARKS[benchmark])
        for name in numbers:
            for given in (getattr(args, name), getattr(args, "%s_%s" % (benchmark.replace("-", "_"), name))):
                if given is not None:
                    chosen[name] = given
            least = 0 if name == "warmup" or (name == "sms" and benchmark == "low-latency") else 1
            if chosen[name] < least:
                parser.error("%s of %s is %d: %d or more is wanted" % (name, benchmark, chosen[name], least))
        args.settings[benchmark] = chosen
    return args


class Identity:
    """This rank, from its launcher's variables. Refuses variables that are missing or contradict each other."""

    def __init__(self, env):
        lines, values = [], {}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
            text = env.get(name, "")
            if re.fullmatch("[0-9]+", text):
                values[name] = int(text)
            else:
                lines.append("%s is %s: start one process per GPU with torchrun or `expertrail worker`, which set it"
                             % (name, repr(text) if text else "not set"))
        if not env.get("MASTER_ADDR"):
            lines.append("MASTER_ADDR is not set: it names the host of rank 0")
        if lines:
            raise Refused(lines)
        self.rank, self.world = values["RANK"], values["WORLD_SIZE"]
        self.local_rank, self.local = values["LOCAL_RANK"], values["LOCAL_WORLD_SIZE"]
        self.master = env["MASTER_ADDR"]
        if self.local < 1 or self.world < self.local or self.world % max(self.local, 1):
            lines.append("WORLD_SIZE=%d with LOCAL_WORLD_SIZE=%d: WORLD_SIZE seems to count nodes; here it counts ranks "
                         "(nodes x %d)" % (self.world, self.local, self.local))
        elif self.rank >= self.world or self.local_rank >= self.local:
            lines.append("RANK=%d of WORLD_SIZE=%d, LOCAL_RANK=%d of LOCAL_WORLD_SIZE=%d: ranks count from 0 to one below "
                         "the size" % (self.rank, self.world, self.local_rank, self.local))
        elif self.rank % self.local != self.local_rank:
            lines.append("RANK=%d and LOCAL_RANK=%d do not fit LOCAL_WORLD_SIZE=%d: RANK is node x %d + LOCAL_RANK; is RANK "
                         "the index of a node?" % (self.rank, self.local_rank, self.local, self.local))
        else:
            for name in ("NODE_RANK", "GROUP_RANK"):
                text = env.get(name, "")
                if text and text != str(self.rank // self.local):
                    lines.append("%s=%s, but RANK=%d with %d ranks a node is on node %d"
                                 % (name, text, self.rank, self.local, self.rank // self.local))
        if lines:
            raise Refused(lines)
        self.node, self.nodes = self.rank // self.local, self.world // self.local
        self.host = socket.gethostname()


def setting_problems(args, me):
    """What is wrong with the settings for this number of ranks; the same on every rank."""
    lines = []
    for benchmark, chosen in args.settings.items():
        ranks = me.local if benchmark == "intranode" else me.world
        if benchmark == "internode" and me.nodes < 2:
            lines.append("internode needs two nodes or more, there is 1: use --benchmarks intranode, or start more nodes")
        if chosen["experts"] % ranks:
            lines.append("%s: %d experts cannot be divided among %d ranks: give a multiple with --%s-experts"
                         % (benchmark, chosen["experts"], ranks, benchmark))
        block = 128 if benchmark == "low-latency" else 8
        if chosen["hidden"] % block:
            lines.append("%s: hidden %d is no multiple of %d" % (benchmark, chosen["hidden"], block))
        if chosen["sms"] % 2:
            lines.append("%s: %d SMs: DeepEP wants an even number" % (benchmark, chosen["sms"]))
        # The others draw with replacement.
        if benchmark == "low-latency" and chosen["top_k"] > chosen["experts"]:
            lines.append("%s: top-%d of %d experts" % (benchmark, chosen["top_k"], chosen["experts"]))
    return lines


# ---- Rails ----

def text_of(*path):
    try:
        with open(os.path.join(*path)) as file:
            return file.read().strip()
    except OSError:
        return ""


def bits_per_second(rate):
    found = re.match(r"([0-9.]+)\s*Gb", rate)
    return float(found.group(1)) if found else 0.0


class Rails:
    """The devices of this node under /sys/class/infiniband, and the one this rank is pinned to."""

    def __init__(self, sysfs, env):
        self.folder = os.path.join(sysfs, "class", "infiniband")
        self.libfabric = env.get("NVSHMEM_REMOTE_TRANSPORT", "") == "libfabric"
        self.listed = [item.strip() for item in env.get("NVSHMEM_HCA_LIST", "").split(",") if item.strip()]
        self.mapping = env.get("NVSHMEM_ENABLE_NIC_PE_MAPPING", "")
        self.ports = {}
        for device in sorted(os.listdir(self.folder)) if os.path.isdir(self.folder) else []:
            ports = os.path.join(self.folder, device, "ports")
            for port in sorted(os.listdir(ports)) if os.path.isdir(ports) else []:
                at = os.path.join(ports, port)
                self.ports[(device, port)] = (text_of(at, "state"), text_of(at, "rate"))
        self.pin = self._split(self.listed[0]) if self.listed and not self.libfabric else None

    @staticmethod
    def _split(item):
        device, _, port = item.partition(":")
        return device, port or "1"

    def active(self):
        return [at for at, (state, _) in self.ports.items() if state.endswith("ACTIVE")]

    def fastest(self):
        """Active ports at the highest rate there is: the rails, without a slower frontend."""
        rates = {at: bits_per_second(self.ports[at][1]) for at in self.active()}
        return [at for at, rate in rates.items() if rate == max(rates.values())]

    def problems(self, rank):
        if self.libfabric:
            if not self.active():
                return ["[rank %d] no device with an active port under %s, and NVSHMEM_REMOTE_TRANSPORT=libfabric needs one: "
                        "is the EFA device given to this container?" % (rank, self.folder)]
            return []
        lines = []
        if self.mapping != "1":
            lines.append("[rank %d] NVSHMEM_ENABLE_NIC_PE_MAPPING is %s: without =1 NVSHMEM ignores NVSHMEM_HCA_LIST"
                         % (rank, repr(self.mapping) if self.mapping else "not set"))
        if not self.listed:
            lines.append("[rank %d] NVSHMEM_HCA_LIST is not set: every rank needs its own rail, set in the rank before "
                         "NVSHMEM starts (`expertrail topo --emit env` lists them; --pins gives them here)" % rank)
        for item in self.listed:
            device, port = self._split(item)
            known = sorted({device for device, _ in self.ports})
            if device not in known:
                lines.append("[rank %d] NVSHMEM_HCA_LIST names %s, which is not under %s (there: %s)"
                             % (rank, device, self.folder, ", ".join(known) or "nothing"))
            elif (device, port) not in self.ports:
                lines.append("[rank %d] NVSHMEM_HCA_LIST names port %s of %s, which it does not have" % (rank, port, device))
            elif not self.ports[(device, port)][0].endswith("ACTIVE"):
                lines.append("[rank %d] port %s of %s is %s, not ACTIVE: check its cable and subnet manager, or pin another"
                             % (rank, port, device, self.ports[(device, port)][0] or "unreadable"))
        return lines

    def sent(self):
        """Bytes that each port of this node has sent: IB counts in words of four bytes, EFA in bytes."""
        counts = {}
        for device, port in self.ports:
            at = os.path.join(self.folder, device, "ports", port)
            for path, unit in (("counters/port_xmit_data", 4), ("hw_counters/tx_bytes", 1)):
                count = text_of(at, path)
                if count.isdigit():
                    counts[(device, port)] = int(count) * unit
                    break
        return counts

    def line(self):
        if self.pin is None:
            return "NIC chosen by libfabric" if self.libfabric else "no HCA pinned"
        state, rate = self.ports.get(self.pin, ("", ""))
        return "HCA %s port %s %s %s" % (*self.pin, state.partition(": ")[2] or state or "?", rate or "rate unknown")


def shared_rails(ranks, local):
    """Two ranks of a node on one HCA although there is one for each."""
    lines = []
    for node in sorted({rank["node"] for rank in ranks}):
        here = [rank for rank in ranks if rank["node"] == node and rank["pin"]]
        if not here or here[0]["rails"] < local:
            continue
        owners = {}
        for rank in here:
            owners.setdefault(rank["pin"], []).append(rank["rank"])
        for pin, those in sorted(owners.items()):
            if len(those) > 1:
                lines.append("ranks %s of node %d share %s, and the node has %d rails for %d ranks: give each its own"
                             % (", ".join(map(str, those)), node, pin, here[0]["rails"], local))
    return lines


# ---- Talk between ranks that always ends ----

class Control:
    """A star of connections to rank 0. Every wait has a deadline, and the first failure is told to all and ends all."""

    def __init__(self, me, timeout):
        self.me, self.timeout = me, timeout
        self.changed = threading.Condition()
        self.arrived, self.errors, self.streams = {}, [], {}
        self.over = self.ending = False
        self.on_failure = lambda errors: None
        self.server = None
        if me.rank == 0:
            self.token = secrets.token_hex(16)
            self.server = socket.socket()
            self.server.bind(("", 0))
            self.server.listen(me.world)

    def offer(self):
        return {"port": self.server.getsockname()[1], "token": self.token} if self.server else None

    def connect(self, offer, host):
        if self.me.rank == 0:
            return self._accept()
        reasons = []
        for address in (self.me.master, host):
            try:
                link = socket.create_connection((address, offer["port"]), timeout=self.timeout)
            except OSError as error:
                reasons.append("%s: %s" % (address, error))
                continue
            link.settimeout(None)
            self._serve(0, link, link.makefile("r"))
            return self._send(0, {"token": offer["token"], "rank": self.me.rank})
        raise Failed("cannot reach rank 0 at port %d (%s)" % (offer["port"], "; ".join(reasons)))

    def _accept(self):
        end = time.monotonic() + self.timeout
        while len(self.streams) < self.me.world - 1:
            self.server.settimeout(max(end - time.monotonic(), 0.01))
            try:
                link, _ = self.server.accept()
                link.settimeout(10)
                lines = link.makefile("r")
                hello = json.loads(lines.readline() or "{}")
            except socket.timeout:
                missing = sorted(set(range(1, self.me.world)) - set(self.streams))
                if time.monotonic() >= end:
                    raise Failed("ranks %s did not connect within %g s" % (missing, self.timeout)) from None
                continue
            except ValueError:
                continue
            if hello.get("token") == self.token:
                link.settimeout(None)
                self._serve(hello["rank"], link, lines)

    def _serve(self, peer, link, lines):
        self.streams[peer] = link
        threading.Thread(target=self._read, args=(peer, lines), daemon=True).start()

    def _send(self, peer, message):
        try:
            self.streams[peer].sendall((json.dumps(message) + "\n").encode())
        except OSError:
            pass  # its reader sees the end of the connection, and says so

    def _read(self, peer, lines):
        try:
            for line in lines:
                self._take(peer, json.loads(line))
        except (OSError, ValueError):
            pass
        if not self.over:
            self._fault({"rank": peer, "text": "its process ended without a word (see its own log and exit code)"})

    def _take(self, peer, message):
        if "errors" in message:
            for error in message["errors"]:
                self._fault(error)
        elif "bye" in message:
            self.over = True
        elif self.me.rank == 0:
            with self.changed:
                self.arrived.setdefault(message["tag"], {})[peer] = message["value"]
                self.changed.notify_all()
        else:
            with self.changed:
                self.arrived[message["tag"]] = message["values"]
                self.changed.notify_all()

    def _fault(self, error):
        with self.changed:
            self.errors.append(error)
            first, self.ending = not self.ending, True
            self.changed.notify_all()
        if first:
            threading.Thread(target=self._end, daemon=True).start()

    def _end(self):
        # Others that failed by themselves get a moment to say so; then nobody waits for anybody.
        time.sleep(1.0 if self.me.rank == 0 else 3.0)
        if self.me.rank == 0:
            try:
                self.on_failure(list(self.errors))
            finally:
                for peer in self.streams:
                    self._send(peer, {"errors": self.errors[:8]})
                time.sleep(0.2)
                os._exit(1)
        os._exit(1)

    def fail(self, text, trace=""):
        """Tells all, and ends this process: never returns."""
        error = {"rank": self.me.rank, "text": text, "trace": trace[-4000:]}
        if self.me.rank != 0 and self.streams:
            self._send(0, {"errors": [error]})
            with self.changed:
                self.changed.wait_for(lambda: self.ending, timeout=15)
            time.sleep(0.2)
            os._exit(1)
        self._fault(error)
        time.sleep(30)
        os._exit(1)

    def gather(self, tag, value):
        """Every rank's value, on every rank."""
        def check(missing):
            if self.ending:
                time.sleep(30)  # the thread that ends this process has begun
                os._exit(1)
            raise Failed("%s: no word from %s within %g s" % (tag, missing, self.timeout))

        if self.me.rank != 0:
            self._send(0, {"tag": tag, "value": value})
            with self.changed:
                ready = lambda: self.ending or tag in self.arrived  # noqa: E731
                if not self.changed.wait_for(ready, self.timeout * 1.5) or tag not in self.arrived:
                    check("rank 0")
                return self.arrived.pop(tag)
        with self.changed:
            got = self.arrived.setdefault(tag, {})
            got[0] = value
            ready = lambda: self.ending or len(got) == self.me.world  # noqa: E731
            if not self.changed.wait_for(ready, self.timeout) or len(got) < self.me.world:
                check("ranks %s" % sorted(set(range(self.me.world)) - set(got)))
            del self.arrived[tag]
        values = [got[rank] for rank in range(self.me.world)]
        for peer in self.streams:
            self._send(peer, {"tag": tag, "values": values})
        return values

    def close(self):
        self.gather("end", None)
        self.over = True
        for peer in list(self.streams):
            self._send(peer, {"bye": True})


# ---- What is loaded ----

def mapped_nvshmem():
    """Path and version of the NVSHMEM host library in this process: from its own text, else by asking it."""
    paths = {line.split(None, 5)[5].strip() for line in text_of("/proc/self/maps").splitlines() if "libnvshmem_host" in line}
    for path in sorted(paths):
        version = ""
        try:
            with open(path, "rb") as file:
                found = re.search(rb"NVSHMEM v(\d+\.\d+\.\d+)", file.read())
            version = found.group(1).decode() if found else asked_version(path)
        except (OSError, AttributeError):
            pass
        return path, version, len(paths)
    return "", "", 0


def asked_version(path):
    import ctypes
    numbers = [ctypes.c_int() for _ in range(3)]
    ctypes.CDLL(path).nvshmemx_vendor_get_version_info(*map(ctypes.byref, numbers))
    return ".".join(str(number.value) for number in numbers)


def deep_ep_version(deep_ep):
    if getattr(deep_ep, "__version__", ""):
        return deep_ep.__version__
    try:
        from importlib.metadata import version
        return version("deep_ep")
    except Exception:  # an installation without its metadata
        return "unknown"


# ---- Verification: rows that say where they come from ----

def pattern(torch, source, token, hidden):
    """A row for each (source, token): digits of both, then small whole numbers that BF16 holds exactly."""
    column = torch.arange(hidden, device=source.device, dtype=torch.int64).unsqueeze(0)
    source, token = source.to(torch.int64).unsqueeze(1), token.to(torch.int64).unsqueeze(1)
    rows = (source * 17 + token * 29 + column * (token % 7 + 1)) % 61 - 30
    for i, what in enumerate(DIGITS):
        power = i - DIGITS.index(what)
        rows[:, i] = ((source if what == "source" else token)[:, 0] // 64 ** power) % 64
    return rows.to(torch.bfloat16)


class Checks:
    """Counts rows, remembers the first that is wrong."""

    def __init__(self):
        self.checked = self.total = self.wrong = 0
        self.first = ""

    def rows(self, ok, what):
        """`ok` has one truth value for each row."""
        bad = ok.size(0) - int(ok.sum().item())
        self.checked += ok.size(0)
        self.wrong += bad
        if bad and not self.first:
            self.first = "%s: row %d of these (%d of %d wrong)" % (what, ok.tolist().index(False), bad, ok.size(0))

    def fact(self, holds, what):
        if not holds:
            self.wrong += 1
            self.first = self.first or what

    def report(self):
        return {"checked": self.checked, "total": self.total, "wrong": self.wrong, "first": self.first}


def chunks(rows):
    return [(at, min(at + CHUNK, rows)) for at in range(0, rows, CHUNK)]


def check_dispatch(torch, checks, recv_x, recv_topk_idx, expected):
    """Every element of every row; rows complete, once each, in order of (source, token); each for an expert of this rank."""
    rows = recv_x.size(0)
    checks.total += sum(expected)
    checks.fact(rows == sum(expected), "dispatch: %d rows arrived, %d were sent here" % (rows, sum(expected)))
    last, seen = -1, [0] * len(expected)
    for begin, end in chunks(rows):
        part = recv_x[begin:end]
        digits = part[:, :len(DIGITS)].to(torch.float32).to(torch.int64)
        source = digits[:, 0] + digits[:, 1] * 64
        token = digits[:, 2] + digits[:, 3] * 64 + digits[:, 4] * 64 ** 2 + digits[:, 5] * 64 ** 3
        ok = (pattern(torch, source, token, part.size(1)) == part).all(1) & (recv_topk_idx[begin:end] >= 0).any(1)
        checks.rows(ok, "dispatch, from row %d" % begin)
        keys = (source * 64 ** 4 + token).tolist()
        for key in keys:
            checks.fact(key > last, "dispatch: rows out of order, or one came twice")
            last = key
        for number in source.tolist():
            if 0 <= number < len(seen):
                seen[number] += 1
    checks.fact(seen == expected, "dispatch: rows of each source %s, sent were %s" % (seen, expected))


def check_combine(torch, checks, x, combined, share):
    """Each element against the sum of what each rank sent back, in float32; `share` is that sum's factor for each token."""
    checks.total += x.size(0)
    checks.fact(combined.size(0) == x.size(0), "combine gave %d rows for %d tokens" % (combined.size(0), x.size(0)))
    for begin, end in chunks(min(x.size(0), combined.size(0))):
        factor = share[begin:end].unsqueeze(1)
        wanted = x[begin:end].to(torch.float32) * factor
        bound = wanted.abs() * COMBINE_TOLERANCE + 1e-6
        # "Not within" rather than "beyond", so that NaN is wrong.
        checks.rows(((combined[begin:end].to(torch.float32) - wanted).abs() <= bound).all(1), "combine, from token %d" % begin)


# ---- The benchmarks ----

class Bench:
    """What the benchmarks of one rank share."""

    def __init__(self, args, me, rails, torch, dist, control):
        self.args, self.me, self.rails, self.torch, self.dist, self.control = args, me, rails, torch, dist, control
        self.deep_ep = importlib.import_module("deep_ep")
        self.device = "cuda"
        self.at = "start"
        self.groups = {}

    def group(self, ranks_of_group):
        """A process group of these ranks; every rank makes every group, in the same order."""
        key = tuple(ranks_of_group)
        if key not in self.groups:
            self.groups[key] = self.dist.new_group(
                ranks=list(key), timeout=timedelta(seconds=self.args.timeout_s), backend=self.args.backend)
        return self.groups[key]

    def event(self):
        return self.torch.cuda.Event(enable_timing=True)

    def timed(self, call):
        start, end = self.event(), self.event()
        start.record()
        result = call()
        end.record()
        end.synchronize()
        return result, start.elapsed_time(end) * 1000.0

    def run(self, name):
        me = self.me
        nodes = [self.group(range(n * me.local, (n + 1) * me.local)) for n in range(me.nodes)]
        world = self.group(range(me.world))
        self.torch.manual_seed(self.args.seed * 100003 + me.rank)
        if name == "low-latency":
            result = self.low_latency(world)
        elif name == "intranode":
            result = self.high_throughput(name, nodes[me.node], me.local, me.local_rank)
        else:
            result = self.high_throughput(name, world, me.world, me.rank)
        return result

    def counted(self, before, after):
        """What each port sent; with a pin the rank's own port only, else local rank 0 speaks for its node."""
        if self.rails.pin is None and self.me.local_rank != 0:
            return []
        ports = [self.rails.pin] if self.rails.pin else sorted(before)
        return [dict(device=at[0], port=int(at[1]) if at[1].isdigit() else 1, sent_bytes=max(after[at] - before[at], 0))
                for at in ports if at in before and at in after]

    def high_throughput(self, name, group, ranks, index):
        torch, deep_ep, cfg, inter = self.torch, self.deep_ep, self.args.settings[name], name == "internode"
        self.at = "making the buffer"
        deep_ep.Buffer.set_num_sms(cfg["sms"])
        if inter:
            buffer = deep_ep.Buffer(
                group=group, num_nvl_bytes=self.args.internode_nvl_mib * MIB, num_rdma_bytes=self.args.internode_rdma_mib * MIB,
                low_latency_mode=False, num_qps_per_rank=self.args.qps, explicitly_destroy=True)
        else:
            nvl = max(256 * MIB, (cfg["sms"] // 2) * ranks * 6 * cfg["hidden"] * 2 * 4)
            buffer = deep_ep.Buffer(group=group, num_nvl_bytes=nvl, num_rdma_bytes=0, low_latency_mode=False,
                                    explicitly_destroy=True)
        id_type = getattr(deep_ep, "topk_idx_t", torch.int64)
        shape = (cfg["tokens"], cfg["top_k"])
        topk_idx = torch.randint(0, cfg["experts"], shape, device=self.device, dtype=torch.int64).to(id_type)
        weights = torch.rand(*shape, device=self.device, dtype=torch.float32)

        def layout():
            return buffer.get_dispatch_layout(topk_idx, cfg["experts"])[:4]

        def dispatch(x, plan):
            per_rank, per_node, per_expert, in_rank = plan
            return buffer.dispatch(x, None, per_rank, per_node if inter else None, in_rank, per_expert, topk_idx, weights)

        x = torch.randn(cfg["tokens"], cfg["hidden"], device=self.device, dtype=torch.bfloat16)
        for i in range(cfg["warmup"]):
            self.at = "warm-up %d" % (i + 1)
            received = dispatch(x, layout())
            buffer.combine(torch.randn_like(received[0]), received[4], received[2])
            torch.cuda.synchronize()
        self.at = "verification"
        plan = layout()
        if inter and plan[1] is None:
            raise Failed("DeepEP takes these %d ranks as one node (it does so up to 8 ranks): run 8 ranks on each node" % ranks)
        checks = self.verify(name, plan, lambda rows: dispatch(rows, plan), buffer, (ranks, index, weights))
        times = {"layout": [], "dispatch": [], "combine": []}
        counted = logical = wire = 0
        self.control.gather(name + ": ready to time", None)
        before = self.rails.sent()
        for i in range(cfg["iters"]):
            self.at = "iteration %d" % (i + 1)
            plan, spent = self.timed(layout)
            times["layout"].append(spent)
            # Read on the host here, as the guide does: dispatch starts on an idle stream.
            to_ranks = plan[0].tolist()
            to_nodes = plan[1].tolist() if inter else []
            if inter:
                logical += sum(to_nodes)
                wire += sum(to_nodes) - to_nodes[self.me.node]
            else:
                logical += sum(to_ranks)
                wire += sum(to_ranks) - to_ranks[index]
            received, spent = self.timed(lambda: dispatch(x, plan))
            times["dispatch"].append(spent)
            rows = torch.randn_like(received[0])
            _, spent = self.timed(lambda: buffer.combine(rows, received[4], received[2]))
            times["combine"].append(spent)
        counted = logical if inter else wire
        self.at = "counters"
        self.control.gather(name + ": timed", None)
        rails = self.counted(before, self.rails.sent())
        self.at = "freeing the buffer"
        buffer.destroy()
        size, n = cfg["hidden"] * 2, cfg["iters"]
        return dict(times=times, counted_bytes=counted * size, rails=rails, received=received[0].size(0), checks=checks.report(),
                    logical={"dispatch": logical * size / n, "combine": logical * size / n},
                    wire={"dispatch": wire * size / n, "combine": wire * size / n})

    def verify(self, name, plan, dispatch, buffer, who):
        torch, (ranks, index, weights) = self.torch, who
        cfg, checks = self.args.settings[name], Checks()
        sent = self.control.gather(name + ": rows sent", plan[0].tolist())
        first = self.me.node * self.me.local if name == "intranode" else 0
        expected = [sent[first + source][index] for source in range(ranks)]
        tokens = torch.arange(cfg["tokens"], device=self.device, dtype=torch.int64)
        x = pattern(torch, tokens * 0 + index, tokens, cfg["hidden"])
        recv_x, recv_idx, recv_weights, _, handle, _ = dispatch(x)
        check_dispatch(torch, checks, recv_x, recv_idx, expected)
        # Every rank scales what it got by a number of its own: a row summed twice, or of another rank, shows.
        combined, combined_weights, _ = buffer.combine(recv_x * (index % 4 + 1), handle, recv_weights)
        share = (torch.arange(ranks, device=self.device, dtype=torch.int64) % 4 + 1).to(torch.float32)
        check_combine(torch, checks, x, combined, (plan[3].to(torch.float32) * share.unsqueeze(0)).sum(1))
        checks.fact(bool((combined_weights == weights).all().item()), "combine: weights came back changed")
        return checks

    def low_latency(self, group):
        torch, me, cfg = self.torch, self.me, self.args.settings["low-latency"]
        tokens, hidden, experts, top_k = (cfg[name] for name in ("tokens", "hidden", "experts", "top_k"))
        self.at = "making the buffer"
        buffer_type = self.deep_ep.Buffer
        size = buffer_type.get_low_latency_rdma_size_hint(tokens, hidden, me.world, experts)
        buffer = buffer_type(group=group, num_nvl_bytes=0, num_rdma_bytes=size, low_latency_mode=True,
                             num_qps_per_rank=experts // me.world, explicitly_destroy=True)
        id_type = getattr(self.deep_ep, "topk_idx_t", torch.int64)
        topk_idx = torch.rand(tokens, experts, device=self.device).topk(top_k, 1)[1].to(id_type)
        weights = torch.rand(tokens, top_k, device=self.device, dtype=torch.float32)

        def dispatch(x):
            return buffer.low_latency_dispatch(x, topk_idx, tokens, experts, use_fp8=True)

        x = torch.randn(tokens, hidden, device=self.device, dtype=torch.bfloat16)
        checks = Checks()
        self.at = "verification"
        self.verify_low_latency(checks, dispatch, buffer, (topk_idx, weights))
        back = torch.randn(experts // me.world, me.world * tokens, hidden, device=self.device, dtype=torch.bfloat16)
        times = {"dispatch": [], "combine": []}
        before = {}
        for i in range(cfg["warmup"] + cfg["iters"]):
            if i == cfg["warmup"]:
                self.control.gather("low-latency: ready to time", None)
                before = self.rails.sent()
            self.at = "iteration %d" % (i - cfg["warmup"] + 1)
            received, spent = self.timed(lambda: dispatch(x))
            _, combining = self.timed(lambda: buffer.low_latency_combine(back, topk_idx, weights, received[2]))
            if i >= cfg["warmup"]:
                times["dispatch"].append(spent)
                times["combine"].append(combining)
        # The two without a pause between them, as DeepEP's test shows them, too.
        times["both"] = [self.timed(lambda: buffer.low_latency_combine(back, topk_idx, weights, dispatch(x)[2]))[1]
                         for _ in range(cfg["iters"])]
        self.at = "counters"
        self.control.gather("low-latency: timed", None)
        rails = self.counted(before, self.rails.sent())
        owners = (topk_idx.to(torch.int64) // (experts // me.world)).view(-1).tolist()
        sizes = {"dispatch": hidden + hidden // 128 * 4 + 16, "combine": 2 * hidden}
        others = sum(1 for owner in owners if owner != me.rank)
        rows = int(received[1].sum().item())
        self.at = "freeing the buffer"
        buffer.destroy()
        return dict(times=times, counted_bytes=0, rails=rails, received=rows, checks=checks.report(),
                    logical={op: len(owners) * sizes[op] for op in sizes}, wire={op: others * sizes[op] for op in sizes})

    def verify_low_latency(self, checks, dispatch, buffer, routing):
        torch, me, cfg = self.torch, self.me, self.args.settings["low-latency"]
        hidden, local_experts = cfg["hidden"], cfg["experts"] // me.world
        topk_idx, weights = routing
        chosen = self.control.gather("low-latency: routing", topk_idx.view(-1).tolist())
        token = torch.arange(cfg["tokens"], device=self.device, dtype=torch.int64)
        x = pattern(torch, token * 0 + me.rank, token, hidden)
        (values, scales), count, handle, _, _ = dispatch(x)
        back = torch.zeros(*values.shape, device=self.device, dtype=torch.bfloat16)
        for i in range(local_experts):
            expert, rows = me.rank * local_experts + i, int(count[i].item())
            wanted = [those.count(expert) for those in chosen]
            checks.total += sum(wanted)
            # Count in the low half, first row in the high half.
            ranges = [(value & 0xFFFFFFFF, value >> 32) for value in handle[1][i].tolist()]
            checks.fact(rows == sum(wanted) and [n for n, _ in ranges] == wanted,
                        "low-latency dispatch: expert %d got rows %s, sent were %s" % (expert, ranges, wanted))
            source = [-1] * rows
            for number, (n, begin) in enumerate(ranges):
                source[begin:begin + n] = [number] * n
            if not rows or len(source) != rows:
                continue
            sources = torch.tensor(source, device=self.device, dtype=torch.int64)
            tokens = handle[0][i][:rows].to(torch.int64)
            for number, of_token in zip(source, tokens.tolist()):
                known = 0 <= number and 0 <= of_token < cfg["tokens"]
                routed = known and expert in chosen[number][of_token * cfg["top_k"]:(of_token + 1) * cfg["top_k"]]
                checks.fact(routed, "low-latency dispatch: expert %d got token %d of rank %d, which did not choose it"
                            % (expert, of_token, number))
            got = values[i][:rows].to(torch.float32).view(rows, hidden // 128, 128) * scales[i][:rows].unsqueeze(2)
            got = got.reshape(rows, hidden)
            exact = pattern(torch, sources, tokens, hidden).to(torch.float32)
            checks.rows(((got - exact).abs() <= exact.abs() * FP8_TOLERANCE + 1e-3).all(1),
                        "low-latency dispatch, expert %d" % expert)
            back[i, :rows] = got.to(torch.bfloat16)
        combined = buffer.low_latency_combine(back, topk_idx, weights, handle)[0]
        checks.total += x.size(0)
        wanted = x.to(torch.float32) * weights.sum(1).unsqueeze(1)
        # One FP8 cast and two BF16 roundings.
        bound = wanted.abs() * (FP8_TOLERANCE + 2 * COMBINE_TOLERANCE) + 1e-2
        checks.rows(((combined.to(torch.float32) - wanted).abs() <= bound).all(1), "low-latency combine")


# ---- From the ranks' numbers to figures ----

def percentile(samples, share):
    ordered = sorted(samples)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def times_of(samples):
    return dict(p50=percentile(samples, 0.5), p95=percentile(samples, 0.95), p99=percentile(samples, 0.99),
                max=max(samples), min=min(samples), mean=sum(samples) / len(samples))


def gbps(size, microseconds):
    return size / (microseconds * 1e3) if microseconds > 0 else 0.0


def guide_rates(name, result):
    """The guide's three figures of one rank: counted bytes over summed times."""
    sums = {op: sum(samples) for op, samples in result["times"].items()}
    whole = sums["dispatch"] + sums["combine"] + (sums["layout"] if name == "internode" else 0.0)
    size = result["counted_bytes"]
    return gbps(size, sums["dispatch"]), gbps(size, sums["combine"]), gbps(2 * size, whole)


def op_of(name, op, results, sms):
    worst = [max(samples) for samples in zip(*(result["times"][op] for result in results))]
    logical = [result["logical"][op] for result in results]
    wire = [result["wire"][op] for result in results]
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    entry = dict(
        op=op, dtype="fp8" if name == "low-latency" and op == "dispatch" else "bf16", span="isolated",
        iterations=len(worst), time_us=times_of(worst), samples_us=worst,
        per_rank=[dict(rank=rank, time_us=times_of(result["times"][op]), logical_bytes=logical[rank], wire_bytes=wire[rank],
                       ceiling_bytes=wire[rank]) for rank, result in enumerate(results)],
        logical_bytes=dict(mean=mean(logical), max=max(logical)), wire_bytes=dict(mean=mean(wire), max=max(wire)),
        logical_gbps=gbps(mean(logical), percentile(worst, 0.5)), wire_gbps=gbps(mean(wire), percentile(worst, 0.5)),
        ceiling_bytes_gbps=gbps(mean(wire), percentile(worst, 0.5)), phases_us={})
    if sms:
        entry["sms"] = sms
    if op == "dispatch" and "layout" in results[0]["times"]:
        layout = [max(samples) for samples in zip(*(result["times"]["layout"] for result in results))]
        entry["phases_us"]["layout"] = percentile(layout, 0.5)
    return entry


class Document:
    """The result file. It is written before anything runs, and says `fail` until the run has ended well."""

    def __init__(self, args, me, argv):
        self.args, self.me, self.path = args, me, args.json if me.rank == 0 else None
        self.base = dict(
            schema="expertrail.result/1", tool=dict(name="deepep_bench", version=VERSION),
            started_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), command=["deepep_bench.py"] + list(argv),
            hosts=[], backend=dict(name="deepep", details={}), versions={}, machine={}, warnings=[])
        self.parts = {name: self.part(name) for name in args.benchmarks}
        self.refused = False
        self.failed = ["the run stopped before its end, and nothing was said of it"]

    def part(self, name):
        cfg, me = self.args.settings[name], self.me
        ll = name == "low-latency"
        settings = dict(
            preset=cfg["preset"], tokens=cfg["tokens"], hidden=cfg["hidden"], top_k=cfg["top_k"], experts=cfg["experts"],
            dispatch_dtype="fp8" if ll else "bf16", combine_dtype="bf16", mode="ll" if ll else "ht",
            routing="uniform" if ll else "uniform-with-replacement", routing_skew=0.0, seed=self.args.seed,
            layout="expert_major" if ll else "by_source", alignment=1, warmup=cfg["warmup"], iters=cfg["iters"],
            spans=["isolated"], verify="full", hot=cfg["tokens"] * cfg["hidden"] * 2 <= 50 * MIB, rotation_sets=1,
            deadline_s=float(self.args.timeout_s))
        if cfg["sms"]:
            settings["sms"] = [cfg["sms"]]
        topology = dict(ranks=me.world, ranks_per_node=me.local, nodes=me.nodes,
                        scope="node" if name == "intranode" else "world")
        return dict(settings=settings, topology=topology, ops=[], received=dict(rows_per_rank=[], tokens_per_expert=[]),
                    verification=dict(mode="full", rows_checked=0, rows_total=0, mismatches=0),
                    verdict=dict(status="not_run", reasons=["%s did not begin" % name]), rails=[])

    def write(self):
        if not self.path:
            return
        # The run's own verdict stands on top, with the figures of the benchmark that reaches farthest.
        top = next((name for name in ("internode", "intranode", "low-latency") if name in self.parts))
        document = dict(self.base, **self.parts[top])
        document["parts"] = [self.parts[name] for name in self.args.benchmarks if name != top]
        if self.failed:
            own = self.parts[top]["verdict"]
            left_out = own["reasons"] if own["status"] == "not_run" and not self.refused else []
            document["verdict"] = dict(status="not_run" if self.refused else "fail", reasons=self.failed + left_out)
        else:
            document["verdict"] = dict(status="pass", reasons=[line for name in self.args.benchmarks
                                                               for line in self.parts[name]["verdict"]["reasons"]])
        partial = self.path + ".part"
        with open(partial, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
        os.replace(partial, self.path)


def settle(document, name, results, ranks):
    """Judges a benchmark that ran to its end; gives the reasons why it failed."""
    part, cfg, me = document.parts[name], document.args.settings[name], document.me
    part["ops"] = [op_of(name, op, results, cfg["sms"]) for op in ("dispatch", "combine")]
    part["received"]["rows_per_rank"] = [result["received"] for result in results]
    checks = [result["checks"] for result in results]
    wrong = sum(check["wrong"] for check in checks)
    part["verification"] = dict(mode="full", rows_checked=sum(check["checked"] for check in checks),
                                rows_total=sum(check["total"] for check in checks), mismatches=wrong)
    reasons = []
    if wrong:
        rank, first = next((rank, check["first"]) for rank, check in enumerate(checks) if check["wrong"])
        part["verification"]["first_mismatch"] = "rank %d: %s" % (rank, first)
        reasons.append("%s: %d mismatches; first: rank %d: %s" % (name, wrong, rank, first))
    elif part["verification"]["rows_checked"] < part["verification"]["rows_total"]:
        reasons.append("%s: only %d of %d rows could be checked" % (
            name, part["verification"]["rows_checked"], part["verification"]["rows_total"]))
    part["rails"] = [dict(rail, rank=rank, host=ranks[rank]["host"]) for rank, result in enumerate(results)
                     for rail in result["rails"]]
    if name == "internode" or (name == "low-latency" and me.nodes > 1):
        reasons += rail_problems(document, name, part["rails"], ranks)
    part["verdict"] = dict(status="fail" if reasons else "pass", reasons=reasons or [
        "%s: %d of %d rows right (combine within 2^-8 of the sum of magnitudes%s), %d timed iterations" % (
            name, part["verification"]["rows_checked"], part["verification"]["rows_total"],
            ", FP8 within 2^-4" if name == "low-latency" else "", cfg["iters"])])
    return reasons


def rail_problems(document, name, rails, ranks):
    """A pinned rail that sent nothing while others did carried nobody's tokens."""
    moved = [rail for rail in rails if rail["sent_bytes"] > 0]
    if not rails or not moved:
        document.base["warnings"].append("%s: no port counted what it sent (%s); that the rails were used is not shown" % (
            name, "its counters stood still" if rails else "no counter could be read"))
        return []
    if any(rank["pin"] is None for rank in ranks):
        silent = sorted({rail["host"] for rail in rails} - {rail["host"] for rail in moved})
        return ["%s: no device of %s sent a byte, while others did" % (name, host) for host in silent]
    return ["%s: rank %d's rail %s:%d sent nothing, while others did: is the rank pinned to another NIC than NVSHMEM uses?"
            % (name, rail["rank"], rail["device"], rail["port"]) for rail in rails if rail["sent_bytes"] == 0]


# ---- What people read ----

def banner(document, ranks, args):
    me, versions = document.me, document.base["versions"]
    say("=" * 70)
    # The guide's words promise the guide's parts to whoever reads the log.
    guides = set(args.benchmarks) != {"low-latency"}
    say("DeepEP %s: %d nodes, %d GPUs" % ("Benchmark" if guides else "low-latency", me.nodes, me.world))
    for product in sorted({rank["gpu"] for rank in ranks}):
        say("GPU: %s" % product)
    if all(rank["pin"] for rank in ranks):
        offsets = {int(found.group(1)) - rank["rank"] % me.local if found else None
                   for rank in ranks for found in [re.fullmatch(r"mlx5_(\d+):1", rank["pin"])]}
        same = len(offsets) == 1 and None not in offsets
        by_rank = " ".join(rank["pin"] for rank in ranks[:me.local]) + " by local rank"
        say("%s: %s" % ("NVSHMEM_HCA_LIST mapping" if guides else "HCAs",
                        "mlx5_(local_rank+%d):1 per rank" % offsets.pop() if same else by_rank))
    if versions.get("nvidia_driver"):
        say("NVIDIA: %s" % versions["nvidia_driver"])
    say("PyTorch: %s, CUDA: %s, NCCL: (%s)" % (versions["torch"], versions["cuda"], versions["nccl"].replace(".", ", ")))
    say("deep_ep %s" % versions["deep_ep"])
    if "nvshmem" in versions:
        say("NVSHMEM v%s mapped from %s" % (versions["nvshmem"], versions["nvshmem_path"]))
    else:
        say("no libnvshmem_host is mapped")
    say("=" * 70)


def heading(name, rails):
    if name == "intranode":
        return "\n--- Intra-node DeepEP (NVLink) ---"
    if name == "internode":
        return "\n--- Inter-node DeepEP (RDMA%s) ---" % (" over libfabric" if rails.libfabric else " + IBGDA")
    return "\n--- Low-latency DeepEP ---"


def show(document, name, results):
    me, part = document.me, document.parts[name]
    if name == "intranode":
        for node in range(me.nodes):
            say("  Node %d: dispatch=%.1f GB/s, combine=%.1f GB/s, total=%.1f GB/s"
                % (node, *guide_rates(name, results[node * me.local])))
    elif name == "internode":
        say("  dispatch=%.1f GB/s, combine=%.1f GB/s, total=%.1f GB/s" % guide_rates(name, results[0]))
        sums = {op: sum(samples) / 1000.0 for op, samples in results[0]["times"].items()}
        say("  layout=%.1fms, dispatch=%.1fms, combine=%.1fms" % (sums["layout"], sums["dispatch"], sums["combine"]))
    else:
        for rank, result in enumerate(results):
            words, both = [], sum(result["times"]["both"]) / len(result["times"]["both"])
            say("[rank %d] Dispatch + combine bandwidth: %.2f GB/s, avg_t=%.2f us"
                % (rank, gbps(sum(result["logical"].values()), both), both))
            for op in ("dispatch", "combine"):
                mean = sum(result["times"][op]) / len(result["times"][op])
                words.append("%s bandwidth: %.2f GB/s, avg_t=%.2f us" % (op.capitalize(), gbps(result["logical"][op], mean), mean))
            say("[rank %d] %s" % (rank, " | ".join(words)))
    for entry in part["ops"]:
        spent = entry["time_us"]
        say("  %s, slowest rank: p50 %.1f us, p95 %.1f, p99 %.1f, max %.1f; %.0f wire bytes a rank, %.1f GB/s on the wire"
            % (entry["op"], spent["p50"], spent["p95"], spent["p99"], spent["max"], entry["wire_bytes"]["mean"],
               entry["wire_gbps"]))
    for rail in part["rails"] if name == "internode" or (name == "low-latency" and me.nodes > 1) else []:
        say("  rail of rank %d: %s:%d on %s sent %d bytes" % (
            rail["rank"], rail["device"], rail["port"], rail["host"], rail["sent_bytes"]))
    check = part["verification"]
    say("  verified: %d of %d rows, %d mismatches" % (check["rows_checked"], check["rows_total"], check["mismatches"]))


# ---- The run ----

def meet(args, me, rails, dist, control):
    """All ranks meet, before any GPU is touched; what any of them found wrong refuses the run."""
    over_nodes = "internode" in args.benchmarks or ("low-latency" in args.benchmarks and me.nodes > 1)
    mine = dict(rank=me.rank, node=me.node, host=me.host, pin=":".join(rails.pin) if rails.pin else None,
                rails=len(rails.fastest()), problems=rails.problems(me.rank) if over_nodes else [],
                offer=control.offer(), asked=[args.settings, args.benchmarks])
    ranks = [None] * me.world
    dist.all_gather_object(ranks, mine)
    lines = [line for rank in ranks for line in rank["problems"]]
    lines += shared_rails(ranks, me.local) if over_nodes else []
    lines += ["rank %d was started with other settings than rank 0" % rank["rank"] for rank in ranks
              if rank["asked"] != ranks[0]["asked"]]
    control.connect(ranks[0]["offer"], ranks[0]["host"])
    if lines:
        # All have the reasons before rank 0, which serves the group, goes away.
        control.close()
        raise Refused(lines)
    return ranks


def look(args, me, torch, bench, control, ranks, document):
    """GPU and versions of every rank, into the document."""
    path, version, copies = mapped_nvshmem()
    mine = dict(gpu=torch.cuda.get_device_properties(bench.index).name, nvshmem=version, nvshmem_path=path)
    for rank, seen in zip(ranks, control.gather("versions", mine)):
        rank.update(seen)
    if path == "" and any(name != "intranode" for name in args.benchmarks):
        raise Failed("deep_ep is loaded and no libnvshmem_host is mapped: it was built without NVSHMEM, and nothing it does "
                     "says anything of the fabric; rebuild it with NVSHMEM_DIR set")
    say("[rank %d] node %d %s, GPU %d %s, %s" % (me.rank, me.node, me.host, me.local_rank, mine["gpu"], bench.rails.line()))
    nccl = torch.cuda.nccl.version()
    versions = dict(torch=str(torch.__version__), cuda=str(torch.version.cuda),
                    nccl=".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl),
                    deep_ep=deep_ep_version(bench.deep_ep))
    if path:
        versions.update(nvshmem=version or "unknown", nvshmem_path=path)
    driver = text_of("/proc/driver/nvidia/version").splitlines()
    if driver:
        versions["nvidia_driver"] = driver[0]
    base = document.base
    base["versions"] = versions
    base["hosts"] = [dict(name=ranks[node * me.local]["host"], ranks=list(range(node * me.local, (node + 1) * me.local)))
                     for node in range(me.nodes)]
    base["backend"]["details"] = dict(
        device=mine["gpu"], timing="CUDA events around the whole call, host wait included; ranks aligned by the call before",
        transport="libfabric" if bench.rails.libfabric else "ibgda")
    if copies > 1:
        base["warnings"].append("rank %d has %d copies of libnvshmem_host mapped" % (me.rank, copies))
    for what in ("gpu", "nvshmem"):
        if len({rank[what] for rank in ranks}) > 1:
            base["warnings"].append("ranks differ in %s: %s" % (what, ", ".join(sorted({rank[what] for rank in ranks}))))
    control.gather("rank lines", None)
    if me.rank == 0:
        banner(document, ranks, args)


def benchmark(name, bench, control, document, ranks):
    """One benchmark on all ranks; gives the reasons why it failed."""
    me, args = bench.me, bench.args
    if me.rank == 0:
        say(heading(name, bench.rails))
        document.parts[name]["verdict"] = dict(status="fail", reasons=["%s began and did not end" % name])
        document.write()

    def late():
        text = "no end within %g s; this rank stood at: %s" % (args.benchmark_s, bench.at)
        say("  [rank %d] %s: %s" % (me.rank, MARKS[name], text))
        control.fail("%s: %s" % (MARKS[name], text))

    watch = threading.Timer(args.benchmark_s, late)
    watch.daemon = True
    watch.start()
    # The last resort, for a thread that holds the interpreter: the system ends the process.
    signal.alarm(int(args.benchmark_s) + 60)
    try:
        results = control.gather(name + ": results", bench.run(name))
    except Exception as error:
        failing(control, me, MARKS[name], error)
    watch.cancel()
    signal.alarm(int(args.timeout_s) + 60)
    reasons = settle(document, name, results, ranks)
    if me.rank == 0:
        show(document, name, results)
        for reason in reasons:
            # Each in the words of the program whose lines it stands among, so that readers of those logs see it.
            say("[testing] %s FAILED" % reason if name == "low-latency" else "  [rank 0] %s: %s" % (MARKS[name], reason))
        document.write()
    return reasons


def failing(control, me, mark, error):
    text = "%s: %s: %s" % (mark, type(error).__name__, error)
    say("  [rank %d] %s" % (me.rank, text))
    trace = traceback.format_exc()
    say(trace.rstrip())
    control.fail(text, trace)


def run(args, me, document):
    pins = [pin.strip() for pin in args.pins.split(",")] if args.pins else []
    if pins:
        if len(pins) != me.local:
            raise Refused(["--pins has %d entries for %d ranks of a node" % (len(pins), me.local)])
        os.environ["NVSHMEM_HCA_LIST"] = pins[me.local_rank]
        os.environ["NVSHMEM_ENABLE_NIC_PE_MAPPING"] = "1"
    rails = Rails(args.sysfs, os.environ)
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise Refused(["torch cannot be imported: %s" % error]) from error
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(args.rendezvous_s + args.timeout_s) + 60)
    # gloo tells a dead peer at once and leaves the GPU alone; DeepEP needs the group only to exchange objects.
    dist.init_process_group(backend=args.backend, timeout=timedelta(seconds=args.rendezvous_s))
    control = Control(me, args.timeout_s)
    ranks = meet(args, me, rails, dist, control)

    def on_failure(errors):
        for error in errors:
            if error["rank"] != 0:
                say("  told by rank %d: %s" % (error["rank"], error["text"]))
        document.failed = ["rank %d: %s" % (error["rank"], error["text"]) for error in errors[:16]]
        begun = [part for part in document.parts.values() if part["verdict"]["status"] == "fail"]
        for part in begun[-1:]:
            part["verdict"]["reasons"] = document.failed
        for name, part in document.parts.items():
            if part["verdict"]["status"] == "not_run":
                part["verdict"]["reasons"] = ["%s did not begin: the run had failed before" % name]
        document.write()
        say("DeepEP benchmark failed: %s" % document.failed[0])

    control.on_failure = on_failure
    try:
        count = torch.cuda.device_count()
        index = me.local_rank if me.local_rank < count else 0
        if count == 0 or (index != me.local_rank and count != 1):
            raise Failed("%d GPUs are visible to local rank %d" % (count, me.local_rank))
        torch.cuda.set_device(index)
        bench = Bench(args, me, rails, torch, dist, control)
        bench.index = index
        look(args, me, torch, bench, control, ranks, document)
    except Exception as error:
        failing(control, me, MARKS[args.benchmarks[0]], error)
    reasons = []
    for name in args.benchmarks:
        # Wrong data in one benchmark says nothing of the next; a failure of a rank has ended the run already.
        reasons += benchmark(name, bench, control, document, ranks)
    document.failed = reasons
    if me.rank == 0:
        document.write()
        for warning in document.base["warnings"]:
            say("warning: %s" % warning)
        say("\n" + "=" * 70)
        done = "low-latency complete." if args.benchmarks == ["low-latency"] else "DeepEP benchmark complete."
        say("DeepEP benchmark failed: %s" % reasons[0] if reasons else done)
    control.close()
    return 1 if reasons else 0


def main(argv):
    args = arguments(argv)
    document = None
    try:
        me = Identity(os.environ)
        document = Document(args, me, argv)
        document.write()
        lines = setting_problems(args, me)
        if lines:
            raise Refused(lines)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
        return run(args, me, document)
    except Refused as refusal:
        # The same on every rank from here on: rank 0 speaks, unless who rank 0 is is not known.
        if document is None or document.me.rank == 0:
            for line in refusal.lines:
                say("deepep_bench: refused: %s" % line, sys.stderr)
        if document is not None:
            document.failed, document.refused = refusal.lines, True
            document.write()
        return 2
    except Exception as error:
        text = "%s: %s" % (type(error).__name__, error)
        say("deepep_bench: [rank %s] cannot start: %s" % (os.environ.get("RANK", "?"), text), sys.stderr)
        traceback.print_exc()
        if document is not None:
            document.failed = [text]
            document.write()
        return 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries that wait for dead peers when they are unloaded cannot hold a process that has ended.
    os._exit(code)
