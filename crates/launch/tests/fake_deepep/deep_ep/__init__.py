"""A stand-in for DeepEP: rows really cross processes, by DeepEP's rules."""
import fcntl
import mmap
import os
import signal
import struct
import time

import torch
import torch.distributed as dist

__version__ = "1.2.1+fake"
topk_idx_t = torch.int64
_KIND, _, _RANK = os.environ.get("FAKE_FAULT", "").partition(":")
_BROKEN = _RANK == os.environ.get("RANK")
_LOCAL = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
if _KIND == "import" and _BROKEN:
    raise ImportError("undefined symbol: nvshmem_selected_device_transport")
# Mapped as the real library would be; its text holds the version.
_MAPPED = None
if os.environ.get("FAKE_NVSHMEM"):
    with open(os.environ["FAKE_NVSHMEM"], "rb") as _file:
        _MAPPED = mmap.mmap(_file.fileno(), 0, prot=mmap.PROT_READ)


def _fault(kind):
    return _BROKEN and _KIND == kind


def _send_on_rail(size):
    """What a NIC's counter would say: words of four bytes."""
    device, _, port = os.environ.get("NVSHMEM_HCA_LIST", "").partition(":")
    path = os.path.join(os.environ.get("FAKE_SYSFS", ""), "class/infiniband", device, "ports", port, "counters/port_xmit_data")
    if os.path.exists(path) and not _fault("idle-rail"):
        # Ranks may share a port.
        with open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            words = int(file.read()) + size // 4
            file.seek(0)
            file.write("%d\n" % words)


class Buffer:
    num_sms = 20

    def __init__(self, group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=24,
                 explicitly_destroy=False):
        assert explicitly_destroy and num_nvl_bytes % 128 == 0 and num_rdma_bytes % 128 == 0
        self.group, self.size, self.rank = group, len(group), dist.get_rank(group)
        self.over_nodes, self.calls = self.size > _LOCAL, 0
        if os.environ.get("FAKE_SIZES"):
            with open(os.environ["FAKE_SIZES"] + ".%s" % os.environ["RANK"], "a") as file:
                file.write("%d %d %d %d %d\n" % (self.num_sms, num_nvl_bytes, num_rdma_bytes, num_qps_per_rank, low_latency_mode))

    @classmethod
    def set_num_sms(cls, number):
        cls.num_sms = number

    @staticmethod
    def get_low_latency_rdma_size_hint(tokens, hidden, ranks, experts):
        return 128 * experts * tokens

    def destroy(self):
        self._all(None)

    def _all(self, value):
        out = [None] * self.size
        dist.all_gather_object(out, value, self.group)
        return out

    def get_dispatch_layout(self, topk_idx, experts):
        tokens, top_k = topk_idx.shape
        each = experts // self.size
        per_rank, per_node, per_expert, inside = [0] * self.size, [0] * (self.size // _LOCAL), [0] * experts, []
        for t in range(tokens):
            chosen = topk_idx.data[t * top_k:(t + 1) * top_k]
            ranks = {e // each for e in chosen}
            for r in ranks:
                per_rank[r] += 1
            for n in {r // _LOCAL for r in ranks}:
                per_node[n] += 1
            for e in chosen:
                per_expert[e] += 1
            inside += [r in ranks for r in range(self.size)]
        whole = lambda data: torch.tensor(data, dtype=torch.int32)  # noqa: E731
        self.experts = experts
        nodes = whole(per_node) if self.over_nodes and _KIND != "one-node" else None
        return whole(per_rank), nodes, whole(per_expert), torch.Tensor(inside, (tokens, self.size), torch.bool), None

    def dispatch(self, x, handle, per_rank, per_node, in_rank, per_expert, topk_idx, weights):
        self.calls += 1
        if _fault("raises") and self.calls > 2:
            raise RuntimeError("DeepEP error: timeout (dispatch CPU)")
        if _fault("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        if _fault("hangs"):
            time.sleep(600)
        width, (tokens, top_k), each = x.shape[1], topk_idx.shape, self.experts // self.size
        rows = [(x.data[t * width:(t + 1) * width], topk_idx.data[t * top_k:(t + 1) * top_k],
                 weights.data[t * top_k:(t + 1) * top_k]) for t in range(tokens)]
        inside = in_rank.tolist()
        if self.over_nodes and per_node is not None:
            counts = per_node.tolist()
            _send_on_rail((sum(counts) - counts[self.rank // _LOCAL]) * width * 2)
        sent = [[(t, rows[t]) for t in range(tokens) if inside[t][r]] for r in range(self.size)]
        got = [from_rank[self.rank] for from_rank in self._all(sent)]
        flat = [(source, t, row) for source, those in enumerate(got) for t, row in those]
        if _fault("loses-row"):
            flat.pop()
        if _fault("swaps-rows"):
            flat[0], flat[1] = flat[1], flat[0]
        data = [value for _, _, row in flat for value in row[0]]
        if _fault("flips-bit"):
            data[-1] += 1.0
        mine = range(self.rank * each, (self.rank + 1) * each)
        ids = [e - mine[0] if e in mine else -1 for _, _, row in flat for e in row[1]]
        carried = [w if e in mine else 0.0 for _, _, row in flat for e, w in zip(row[1], row[2])]
        n = len(flat)
        handle = [(source, t) for source, t, _ in flat], tokens
        return (torch.Tensor(data, (n, width), x.dtype), torch.Tensor(ids, (n, top_k), torch.int64),
                torch.Tensor(carried, (n, top_k), torch.float32), [], handle, None)

    def combine(self, x, handle, topk_weights):
        places, tokens = handle
        width, top_k = x.shape[1], topk_weights.shape[1]
        back = [[] for _ in range(self.size)]
        for n, (source, t) in enumerate(places):
            back[source].append((t, x.data[n * width:(n + 1) * width], topk_weights.data[n * top_k:(n + 1) * top_k]))
        if self.over_nodes:
            there = {(s // _LOCAL, s, t) for s, t in places if s // _LOCAL != self.rank // _LOCAL}
            _send_on_rail(len(there) * width * 2)
        parts = [from_rank[self.rank] for from_rank in self._all(back)]
        total, carried = [0.0] * (tokens * width), [0.0] * (tokens * top_k)
        # Two levels: the sum of a node is rounded before it crosses.
        for node in range(0, self.size, _LOCAL if self.over_nodes else self.size):
            partial = {}
            for those in parts[node:node + (_LOCAL if self.over_nodes else self.size)]:
                for t, row, weights in those:
                    old = partial.setdefault(t, [0.0] * width)
                    partial[t] = [a + b for a, b in zip(old, row)]
                    for k, weight in enumerate(weights):
                        carried[t * top_k + k] += weight
            for t, row in partial.items():
                for i, value in enumerate(torch.Tensor(row, (width,), torch.float32).to(torch.bfloat16).data):
                    total[t * width + i] += value
        if _fault("wrong-combine"):
            total[-1] = total[-1] * 1.5 + 2.0
        if _fault("nan-combine"):
            total[0] = float("nan")
        return (torch.Tensor(total, (tokens, width), torch.float32).to(torch.bfloat16),
                torch.Tensor(carried, (tokens, top_k), torch.float32), None)

    def low_latency_dispatch(self, x, topk_idx, most, experts, use_fp8=True):
        (tokens, width), top_k, each = x.shape, topk_idx.shape[1], experts // self.size
        sent = [(x.data[t * width:(t + 1) * width], topk_idx.data[t * top_k:(t + 1) * top_k]) for t in range(tokens)]
        if self.over_nodes:
            here = range(self.rank // _LOCAL * _LOCAL * each, (self.rank // _LOCAL + 1) * _LOCAL * each)
            _send_on_rail(sum(e not in here for e in topk_idx.data) * (width + width // 32 + 16))
        got, room = self._all(sent), self.size * most
        values, scales = torch.zeros(each, room, width), torch.zeros(each, room, width // 128)
        count, info, ranges = [], torch.zeros(each, room, dtype=torch.int32), []
        for i in range(each):
            at = 0
            for those in got:
                begin = at
                for t, (row, chosen) in enumerate(those):
                    if self.rank * each + i in chosen:
                        for block in range(width // 128):
                            part = row[block * 128:(block + 1) * 128]
                            scale = max(1e-4, max(map(abs, part))) / 448
                            scales.data[(i * room + at) * (width // 128) + block] = scale
                            place = (i * room + at) * width + block * 128
                            values.data[place:place + 128] = [_e4m3(value / scale) for value in part]
                        info.data[i * room + at] = t
                        at += 1
                ranges.append(begin << 32 | (at - begin))
            count.append(at)
        handle = (info, torch.Tensor(ranges, (each, self.size), torch.int64), most, width, experts)
        return (values, scales), torch.tensor(count, dtype=torch.int32), handle, None, None

    def low_latency_combine(self, x, topk_idx, weights, handle):
        info, ranges, most, width, experts = handle
        each, room, top_k = experts // self.size, self.size * most, topk_idx.shape[1]
        back = [{} for _ in range(self.size)]
        for i in range(each):
            for source, packed in enumerate(ranges.tolist()[i]):
                for at in range(packed >> 32, (packed >> 32) + (packed & 0xFFFFFFFF)):
                    place = (i * room + at) * width
                    back[source][(info.data[i * room + at], self.rank * each + i)] = x.data[place:place + width]
        mine = {}
        for from_rank in self._all(back):
            mine.update(from_rank[self.rank])
        tokens = topk_idx.shape[0]
        total = [0.0] * (tokens * width)
        for t in range(tokens):
            for k in range(top_k):
                row = mine[(t, topk_idx.data[t * top_k + k])]
                for i in range(width):
                    total[t * width + i] += weights.data[t * top_k + k] * row[i]
        if _fault("wrong-combine"):
            total[0] += 100.0
        return torch.Tensor(total, (tokens, width), torch.float32).to(torch.bfloat16), None, None


def _e4m3(value):
    """Nearest of E4M3: three bits of fraction, exponents from -6 on."""
    if value == 0:
        return 0.0
    exponent = max(((struct.unpack("<I", struct.pack("<f", value))[0] >> 23) & 0xFF) - 127, -6)
    step = 2.0 ** (exponent - 3)
    return max(-448.0, min(448.0, round(value / step) * step))
