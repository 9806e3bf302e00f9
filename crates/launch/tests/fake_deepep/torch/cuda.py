"""Events read the clock of the host; the GPU is a name."""
import os
import time
from types import SimpleNamespace

nccl = SimpleNamespace(version=lambda: (2, 27, 7))


class Event:
    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return float(os.environ["FAKE_MS"]) if os.environ.get("FAKE_MS") else (end.at - self.at) * 1000.0


def device_count():
    return int(os.environ.get("FAKE_GPUS", "8"))


def set_device(index):
    # Work on a GPU; a run that is refused must never come here.
    if os.environ.get("FAKE_TOUCHED"):
        open(os.environ["FAKE_TOUCHED"], "a").close()


def get_device_properties(index):
    return SimpleNamespace(name="NVIDIA H200")


def synchronize():
    pass
