"""A stand-in for torch: flat lists with shapes, and no more than deepep_bench.py uses."""
import itertools
import operator
import random as _random
import struct
import sys

from . import cuda, version  # noqa: F401

__version__ = "2.9.0a0+fake"
_RANDOM = _random.Random(0)


class dtype:
    def __init__(self, name, integer=False):
        self.name, self.integer = name, integer


float32, bfloat16, float8_e4m3fn = dtype("float32"), dtype("bfloat16"), dtype("float8_e4m3fn")
int64, int32, bool_ = dtype("int64", True), dtype("int32", True), dtype("bool", True)


def _bits(value, mask, half):
    if value != value:
        return value
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    word = (word + half + ((word >> (mask.bit_length())) & 1)) & ~mask & 0xFFFFFFFF
    return struct.unpack("<f", struct.pack("<I", word))[0]


def _cast(value, to):
    if to is bool_:
        return not not value  # `bool` is a dtype in this module
    if to.integer:
        return int(value)
    if to is bfloat16:
        return _bits(float(value), 0xFFFF, 0x7FFF)
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _count(shape):
    total = 1
    for size in shape:
        total *= size
    return total


def _strides(shape, out):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step if size != 1 else 0)
        step *= size
    return [0] * (len(out) - len(shape)) + strides


class Tensor:
    device = "cuda"

    def __init__(self, data, shape, kind):
        self.data, self.shape, self.dtype = data, tuple(shape), kind
        assert len(data) == _count(self.shape), (len(data), shape)

    def size(self, dim):
        return self.shape[dim]

    def to(self, kind):
        return Tensor([_cast(value, kind) for value in self.data], self.shape, kind)

    def view(self, *shape):
        if -1 in shape:
            rest = _count([size for size in shape if size != -1])
            shape = tuple(len(self.data) // rest if size == -1 else size for size in shape)
        return Tensor(self.data, shape, self.dtype)

    reshape = view

    def unsqueeze(self, dim):
        shape = list(self.shape)
        shape.insert(dim, 1)
        return Tensor(self.data, shape, self.dtype)

    def tolist(self):
        def nest(data, shape):
            if len(shape) == 1:
                return list(data)
            step = len(data) // shape[0] if shape[0] else 0
            return [nest(data[i * step:(i + 1) * step], shape[1:]) for i in range(shape[0])]
        return nest(self.data, self.shape) if self.shape else self.data[0]

    def item(self):
        assert len(self.data) == 1
        return self.data[0]

    def _with(self, other, call, kind=None):
        if not isinstance(other, Tensor):
            integer = isinstance(other, int)
            other = Tensor([other], (1,), self.dtype if integer or not self.dtype.integer else float32)
        rank = max(len(self.shape), len(other.shape))
        a, b = ((1,) * (rank - len(t.shape)) + t.shape for t in (self, other))
        for x, y in zip(a, b):
            assert x == y or 1 in (x, y), (self.shape, other.shape)
        shape = tuple(y if x == 1 else x for x, y in zip(a, b))
        if kind is None:
            order = (bool_, int32, int64, bfloat16, float32)
            kind = max(self.dtype, other.dtype, key=order.index)
        sa, sb = _strides(self.shape, shape), _strides(other.shape, shape)
        data = []
        for at in itertools.product(*map(range, shape)):
            i = sum(x * y for x, y in zip(at, sa))
            j = sum(x * y for x, y in zip(at, sb))
            data.append(_cast(call(self.data[i], other.data[j]), kind))
        return Tensor(data, shape, kind)

    def __getitem__(self, key):
        at, shape = self._places(key)
        return Tensor([self.data[i] for i in at], shape, self.dtype)

    def __setitem__(self, key, value):
        at, _ = self._places(key)
        values = value.data if isinstance(value, Tensor) else [value] * len(at)
        assert len(values) == len(at)
        for i, item in zip(at, values):
            self.data[i] = _cast(item, self.dtype)

    def _places(self, key):
        keys = list(key) if isinstance(key, tuple) else [key]
        keys += [slice(None)] * (len(self.shape) - len(keys))
        ranges, shape = [], []
        for one, size in zip(keys, self.shape):
            if isinstance(one, slice):
                ranges.append(range(*one.indices(size)))
                shape.append(len(ranges[-1]))
            else:
                ranges.append([range(size)[one]])
        steps, step = [], 1
        for size in reversed(self.shape):
            steps.insert(0, step)
            step *= size
        return [sum(x * y for x, y in zip(at, steps)) for at in itertools.product(*ranges)], tuple(shape)

    def _fold(self, dim, call, kind):
        if dim is None:
            return Tensor([_cast(call(self.data), kind)], (), kind)
        assert dim == len(self.shape) - 1
        width = self.shape[-1]
        rows = len(self.data) // width if width else _count(self.shape[:-1])
        return Tensor([_cast(call(self.data[i * width:(i + 1) * width]), kind) for i in range(rows)], self.shape[:-1], kind)

    def sum(self, dim=None):
        return self._fold(dim, sum, int64 if self.dtype.integer else float32)

    def all(self, dim=None):
        return self._fold(dim, all, bool_)

    def any(self, dim=None):
        return self._fold(dim, any, bool_)

    def abs(self):
        return Tensor([abs(value) for value in self.data], self.shape, self.dtype)

    def topk(self, k, dim):
        width, values, places = self.shape[1], [], []
        for i in range(self.shape[0]):
            row = self.data[i * width:(i + 1) * width]
            best = sorted(range(width), key=lambda j: -row[j])[:k]
            places += best
            values += [row[j] for j in best]
        shape = (self.shape[0], k)
        return Tensor(values, shape, self.dtype), Tensor(places, shape, int64)


for _name in ("add", "sub", "mul", "mod", "floordiv", "and_"):
    _call = getattr(operator, _name)
    setattr(Tensor, "__%s__" % _name.strip("_"), lambda self, other, call=_call: self._with(other, call))
for _name in ("eq", "ne", "le", "lt", "ge", "gt"):
    _call = getattr(operator, _name)
    setattr(Tensor, "__%s__" % _name, lambda self, other, call=_call: self._with(other, call, bool_))


def _made(shape, kind, value):
    return Tensor([_cast(value(), kind) for _ in range(_count(shape))], shape, kind)


def manual_seed(seed):
    _RANDOM.seed(seed)


def randn(*shape, device=None, dtype=float32):
    return _made(shape, dtype, lambda: _RANDOM.gauss(0, 1))


def rand(*shape, device=None, dtype=float32):
    return _made(shape, dtype, _RANDOM.random)


def randn_like(tensor):
    return randn(*tensor.shape, dtype=tensor.dtype)


def randint(low, high, shape, device=None, dtype=int64):
    return _made(shape, dtype, lambda: _RANDOM.randrange(low, high))


def zeros(*shape, device=None, dtype=float32):
    return _made(shape, dtype, lambda: 0)


def arange(end, device=None, dtype=int64):
    return Tensor(list(range(end)), (end,), dtype)


def tensor(data, device=None, dtype=int64):
    return Tensor([_cast(value, dtype) for value in data], (len(data),), dtype)


sys.modules[__name__].bool = bool_
