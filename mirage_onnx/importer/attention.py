"""Scaled dot products: softmax(scale Q K^T + mask) V, of ONNX and of com.microsoft.

Scores and their softmax are in fp32; what multiplies V has the type of Q. The score of a key that
is not seen is the least fp32, so the key weighs nothing beside one that is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from mirage_onnx.importer.causal import LARGEST, causal_mask
from mirage_onnx.importer.context import Context, const, shape_of
from mirage_onnx.importer.slicing import beside, taken
from mirage_onnx.ir import DType, Tensor

HALF = Fraction(1, 2)
#: The least number of fp32.
LEAST = const(-Fraction(((1 << 24) - 1) << 104))


@dataclass(frozen=True, slots=True)
class _Heads:
    """Q, K and V by (batch, heads, length, size); a head of K and V serves ``shared`` of Q.

    Where that is several, all have one dimension more behind the heads.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    shared: int

    @property
    def lengths(self) -> tuple[int, int]:
        return shape_of(self.q)[-2], shape_of(self.k)[-2]


@dataclass(slots=True)
class _Masks:
    """``added`` to scores; ``seen``: which keys, all of these; ``blind``: perhaps none at all."""

    added: list[Tensor] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    blind: bool = False


def attention(c: Context) -> None:
    """Attention-23 to 26. A query that sees no key yields zero, as ONNX has it since 1.23."""
    if c.has(6):
        raise c.reject("nonpad_kv_seqlen ends the keys where only a run knows")
    if any(c.attribute(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
        raise c.reject("a window of keys is not supported")
    counts = (c.attribute("q_num_heads", 0), *(c.attribute("kv_num_heads", 0),) * 2)
    q, k, v = (_by_heads(c, c.tensor(i), n) for i, n in enumerate(counts))
    own = _heads(c, q, *_with_past(c, k, v, (4, 5)))
    masks = _Masks()
    if c.attribute("is_causal", 0):
        past = shape_of(c.tensor(4))[2] if c.has(4) else 0
        if past and shape_of(q)[2] == 1 < shape_of(k)[2]:
            raise c.reject("ONNX hides keys from the one query, and ONNX Runtime does not")
        _causal(c, own, past, masks)
    if c.has(3):
        _masked(c, own, masks)
    mode = c.attribute("qk_matmul_output_mode", 0)
    if c.uses(3) and mode == 2 and masks.seen:
        raise c.reject("the masked scores are an output")
    stages, y = _attended(c, own, masks, c.fraction("softcap", 0.0))
    y = _shaped(c, y, (*shape_of(q)[:3], shape_of(v)[3]))
    c.finish(_by_rows(c, y) if len(shape_of(c.tensor(0))) == 3 else y)
    for position, x in ((1, own.k), (2, own.v), (3, stages[mode])):
        if c.uses(position):
            heads = q if position == 3 else k
            c.finish(_shaped(c, x, (*shape_of(heads)[:2], *shape_of(x)[-2:])), position)


def multi_head_attention(c: Context) -> None:
    """com.microsoft: a mask adds the value of its filter."""
    if c.has(8) or c.has(9):
        raise c.reject("past_sequence_length and cache_indirection are known only to a run")
    if c.uses(3):
        raise c.reject("the normalized scores are an output")
    if not (c.has(1) and c.has(2)):
        raise c.reject("queries, keys and values in one tensor are not supported")
    parts = [c.tensor(i) for i in range(3)]
    if c.has(3):
        if any(len(shape_of(p)) != 3 for p in parts):
            raise c.reject("a bias beside heads that are apart")
        parts = _biased(c, parts, c.tensor(3))
    q, k, v = (_by_heads(c, p, c.attribute("num_heads")) for p in parts)
    _microsoft(c, q, k, v, mask=4, bias=5, past=(6, 7))


def fused_attention(c: Context) -> None:
    """com.microsoft's Attention, which projects its input first; ``past`` has K and V."""
    if c.has(6) or c.attribute("past_present_share_buffer", 0) or c.attribute("do_rotary", 0):
        raise c.reject("do_rotary and a shared past are not supported")
    if not c.has(2) or (c.has(4) and c.has(5)):
        raise c.reject("ONNX Runtime takes none without a bias, or with past and attention_bias")
    x, weights = c.tensor(0), c.tensor(1)
    wide = shape_of(weights)[1]
    sizes = c.attribute("qkv_hidden_sizes") or (wide // 3,) * 3
    if sum(sizes) != wide:
        raise c.reject(f"{wide} columns of weights, of them {list(sizes)}")
    ends = np.cumsum(sizes).tolist()
    columns = (range(end - n, end) for n, end in zip(sizes, ends, strict=True))
    parts = [c.matmul(x, taken(c, weights, 1, r), dtype=DType.F32) for r in columns]
    parts = _biased(c, parts, c.widen(c.tensor(2)))
    assert x.dtype is not None
    heads = c.attribute("num_heads")
    q, k, v = (_by_heads(c, c.cast(p, x.dtype), heads) for p in parts)
    _microsoft(c, q, k, v, mask=3, bias=5, past=(4,))


def group_query_attention(c: Context) -> None:
    raise c.reject("seqlens_k ends the keys, and the new ones begin, where only a run knows")


def _microsoft(
    c: Context, q: Tensor, k: Tensor, v: Tensor, mask: int, bias: int, past: tuple[int, ...]
) -> None:
    before = shape_of(c.tensor(past[0]))[-2] if c.has(past[0]) else 0
    own = _heads(c, q, *_with_past(c, k, v, past))
    masks = _Masks()
    if c.attribute("unidirectional", 0):
        if shape_of(q)[2] != shape_of(k)[2]:
            raise c.reject("unidirectional, with other lengths of queries and keys")
        _causal(c, own, before, masks)
    if c.has(mask):
        masks.added.append(_filter(c, c.tensor(mask), own))
    if c.has(bias):
        masks.added.append(c.widen(c.tensor(bias)))
    _, y = _attended(c, own, masks)
    c.finish(_by_rows(c, y))
    if len(past) == 2:
        for position, x in ((1, own.k), (2, own.v)):
            if c.uses(position):
                c.finish(x, position)
    elif c.uses(1):
        c.finish(c.concat([c.reshape(x, (1, *shape_of(x))) for x in (own.k, own.v)], 0), 1)


def _filter(c: Context, mask: Tensor, own: _Heads) -> Tensor:
    """What an integer mask of (batch, keys) adds: the filter's value to keys whose mask is 0."""
    batch, keys = shape_of(own.q)[0], own.lengths[1]
    if mask.dtype is not DType.I32 or shape_of(mask) != (batch, keys):
        shown = c.symbols.show(shape_of(mask))
        raise c.reject(f"a mask {mask.dtype} of {shown}, not i32 of (batch, keys)")
    value = const(c.fraction("mask_filter_value", -10000.0))
    hidden = c.elementwise("less_equal", mask, const(0), dtype=DType.BOOL)
    more = c.elementwise("mul", c.cast(hidden, DType.F32), value)
    return c.reshape(more, (batch, 1, 1, keys))


def _biased(c: Context, parts: Sequence[Tensor], bias: Tensor) -> list[Tensor]:
    ends = np.cumsum([shape_of(p)[-1] for p in parts]).tolist()
    own = (range(e - shape_of(p)[-1], e) for p, e in zip(parts, ends, strict=True))
    return [c.elementwise("add", p, taken(c, bias, 0, r)) for p, r in zip(parts, own, strict=True)]


def _by_heads(c: Context, x: Tensor, heads: int) -> Tensor:
    if len(shape_of(x)) == 4:
        return x
    batch, length, wide = shape_of(x)
    if not heads or wide % heads:
        raise c.reject(f"{heads} heads of {wide} elements")
    return c.transpose(c.reshape(x, (batch, length, heads, wide // heads)), (0, 2, 1, 3))


def _shaped(c: Context, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x if shape_of(x) == shape else c.reshape(x, shape)


def _by_rows(c: Context, x: Tensor) -> Tensor:
    batch, heads, length, size = shape_of(x)
    return c.reshape(c.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def _with_past(
    c: Context, k: Tensor, v: Tensor, positions: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    if not c.has(positions[0]):
        return k, v
    if len(positions) == 2:
        past = [c.tensor(p) for p in positions]
    else:
        both = c.tensor(positions[0])
        halves = (taken(c, both, 0, range(i, i + 1)) for i in range(2))
        past = [c.reshape(x, shape_of(both)[1:]) for x in halves]
    return beside(c, [past[0], k], 2), beside(c, [past[1], v], 2)


def _heads(c: Context, q: Tensor, k: Tensor, v: Tensor) -> _Heads:
    if q.dtype is DType.F64:
        raise c.reject("scores of f64 are not supported", "DTYPE")
    (batch, heads, length, size), own = shape_of(q), shape_of(k)[1]
    if shape_of(k)[:3] != shape_of(v)[:3] or heads % own:
        raise c.reject(f"{heads} heads of queries, {own} and {shape_of(v)[1]} of keys and values")
    if heads == own:
        return _Heads(q, k, v, 1)
    q = c.reshape(q, (batch, own, heads // own, length, size))
    k, v = (c.reshape(x, (*shape_of(x)[:2], 1, *shape_of(x)[2:])) for x in (k, v))
    return _Heads(q, k, v, heads // own)


def _causal(c: Context, own: _Heads, past: int, masks: _Masks) -> None:
    queries, keys = own.lengths
    if any(map(c.symbols.is_symbolic, (queries, keys, past))):
        raise c.reject("how many keys a query sees shows only a run", "DYNAMIC_DIM")
    if past >= keys - 1:
        return
    if queries * keys > LARGEST:
        raise c.reject(f"a causal mask of {queries} x {keys} elements is not stored")
    masks.seen.append(c.implied(causal_mask(queries, keys, past)))


def _masked(c: Context, own: _Heads, masks: _Masks) -> None:
    """The mask of ONNX: of truth values, or added, where what is infinite hides a key."""
    x = c.tensor(3)
    if shape_of(x)[-1] != own.lengths[1]:
        raise c.reject(f"the mask has {shape_of(x)[-1]} of {own.lengths[1]} keys")
    shape = (1,) * (4 - len(shape_of(x))) + shape_of(x)
    if own.shared > 1:
        heads = (1, 1) if shape[1] == 1 else (shape[1] // own.shared, own.shared)
        x = c.reshape(x, (shape[0], *heads, *shape[2:]))
    known = c.known(3)
    if x.dtype is not DType.BOOL:
        x = c.widen(x)
        if known is not None and np.isfinite(known).all():
            masks.added.append(x)
            return
        masks.added.append(c.elementwise("max", x, LEAST))
        x = c.elementwise("less_equal", LEAST, x, dtype=DType.BOOL)
        seeing = known > -np.inf if known is not None else None
    else:
        seeing = known
    masks.blind = bool(masks.seen) or seeing is None or not seeing.any(-1).all()
    masks.seen.append(x)


def _attended(
    c: Context, own: _Heads, masks: _Masks, cap: Fraction = Fraction(0)
) -> tuple[list[Tensor], Tensor]:
    """Scores, those under ``cap``, those with what is added, and their softmax; the result."""
    rank, dtype = len(shape_of(own.q)), own.q.dtype
    assert dtype is not None
    turned = c.transpose(own.k, (*range(rank - 2), rank - 1, rank - 2))
    dots = c.matmul(own.q, turned, dtype=DType.F32)
    scale, size = c.fraction("scale", 0.0), const(Fraction(1, shape_of(own.q)[-1]), HALF)
    scores = c.elementwise("mul", dots, const(scale) if scale else size)
    stages = [scores]
    if cap:
        bent = c.elementwise("tanh", c.elementwise("div", scores, const(cap)))
        scores = c.elementwise("mul", bent, const(cap))
    stages.append(scores)
    for x in masks.added:
        scores = c.elementwise("add", scores, x)
    stages.append(scores)
    seen = None
    for x in masks.seen:
        seen = c.elementwise("mul", seen, x, dtype=DType.BOOL) if seen else x
    if seen:
        scores = c.elementwise("select", seen, scores, LEAST, dtype=DType.F32)
    most = c.reduce("rmax", scores, (rank - 1,))
    e = c.elementwise("exp", c.elementwise("sub", scores, most))
    p = c.elementwise("div", e, c.reduce("sum", e, (rank - 1,)))
    y = c.matmul(c.cast(p, dtype), own.v)
    if seen and masks.blind:
        some = c.elementwise("less", LEAST, most, dtype=DType.BOOL)
        p, y = (c.elementwise("select", some, x, const(0), dtype=x.dtype) for x in (p, y))
    return [*stages, p], y
