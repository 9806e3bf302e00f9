"""Process groups over TCP: rank 0 serves, every all-gather is one round trip."""
import os
import threading
import time
from multiprocessing.connection import Client, Listener

_STATE = {}


def _serve(listener, world):
    rounds, lock = {}, threading.Lock()

    def hear(link):
        while True:
            try:
                key, ranks, rank, value = link.recv()
            except (EOFError, OSError):
                return
            with lock:
                got = rounds.setdefault(key, {})
                got[rank] = (value, link)
                if len(got) == len(ranks):
                    for _, to in got.values():
                        try:
                            to.send([got[r][0] for r in ranks])
                        except OSError:
                            pass
                    del rounds[key]

    for _ in range(world):
        threading.Thread(target=hear, args=(listener.accept(),), daemon=True).start()


def init_process_group(backend=None, timeout=None):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        listener = Listener(address, backlog=world)
        threading.Thread(target=_serve, args=(listener, world), daemon=True).start()
    end = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            _STATE["link"] = Client(address)
            break
        except OSError:
            if time.monotonic() > end:
                raise RuntimeError("rendezvous timed out") from None
            time.sleep(0.05)
    _STATE.update(rank=rank, world=tuple(range(world)), timeout=timeout.total_seconds(), rounds={})


def new_group(ranks, timeout=None, backend=None):
    return tuple(ranks)


def all_gather_object(out, value, group=None):
    ranks = group or _STATE["world"]
    number = _STATE["rounds"].get(ranks, 0)
    _STATE["rounds"][ranks] = number + 1
    _STATE["link"].send(((ranks, number), ranks, _STATE["rank"], value))
    if not _STATE["link"].poll(_STATE["timeout"]):
        raise RuntimeError("all_gather_object timed out")
    out[:] = _STATE["link"].recv()


def get_rank(group=None):
    return (group or _STATE["world"]).index(_STATE["rank"])
