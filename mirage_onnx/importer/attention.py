"""Attention of ONNX, and of com.microsoft, where it may also project its input."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mirage_onnx.importer.causal import LARGEST, places
from mirage_onnx.importer.context import Context, const, shape_of
from mirage_onnx.importer.dot_products import (
  LEAST,
  Heads,
  Masks,
  attended,
  by_heads,
  by_rows,
  causal,
  heads_of,
  shaped,
  with_past,
)
from mirage_onnx.importer.key_masks import added_by
from mirage_onnx.importer.slicing import taken
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Tensor


def attention(c: Context) -> None:
  """Attention-23 to 26. A query that sees no key yields zero, as ONNX has it since 1.23."""
  if any(c.attribute(f"{side}_window_size", -1) != -1 for side in ("left", "right")):
    raise c.reject("a window of keys is not supported")
  counts = (c.attribute("q_num_heads", 0), *(c.attribute("kv_num_heads", 0),) * 2)
  q, k, v = (by_heads(c, c.tensor(i), n) for i, n in enumerate(counts))
  own = heads_of(c, q, *with_past(c, k, v, (4, 5)))
  masks = Masks()
  if c.switch("is_causal") and not c.has(6):
    past = shape_of(c.tensor(4))[2] if c.has(4) else 0
    if past and shape_of(q)[2] == 1 < shape_of(k)[2]:
      raise c.reject("ONNX hides keys from the one query, and ONNX Runtime does not")
    causal(c, own, past, masks)
  if c.has(3):
    _masked(c, own, masks)
  read = _ended(c, own, masks) if c.has(6) else own
  mode = c.attribute("qk_matmul_output_mode", 0)
  if c.uses(3) and mode == 2 and masks.seen:
    raise c.reject("the masked scores are an output")
  stages, y = attended(c, read, masks, c.fraction("softcap", 0.0))
  y = shaped(c, y, (*shape_of(q)[:3], shape_of(v)[3]))
  c.finish(by_rows(c, y) if len(shape_of(c.tensor(0))) == 3 else y)
  for position, x in ((1, own.k), (2, own.v), (3, stages[mode])):
    if c.uses(position):
      heads = q if position == 3 else k
      c.finish(shaped(c, x, (*shape_of(heads)[:2], *shape_of(x)[-2:])), position)


def _ended(c: Context, own: Heads, masks: Masks) -> Heads:
  """A run says how many keys of each of the batch there are (a cache that TensorScatter writes).

  Values of others count as zeros, whatever is there. With is_causal the last query sees the last of these.
  """
  batch, (queries, keys) = shape_of(own.q)[0], own.lengths
  if c.has(4):
    raise c.reject("nonpad_kv_seqlen beside a past")
  if c.switch("is_causal") and c.symbols.is_symbolic(queries):
    raise c.reject("how many keys a query sees shows only a run", "DYNAMIC_DIM")
  if c.symbols.is_symbolic(keys) or keys > LARGEST:
    raise c.reject("how many keys there are at most shows only a run", "DYNAMIC_DIM")
  lengths, ones = c.tensor(6), (1,) * (len(shape_of(own.q)) - 1)
  if shape_of(lengths) != (batch,):
    raise c.reject(f"lengths of {c.symbols.show(shape_of(lengths))}")
  place = c.reshape(c.implied(places(keys)), (*ones, keys))
  seen = c.elementwise("less", place, c.reshape(lengths, (batch, *ones)), dtype=DType.BOOL)
  masks.seen.append(seen)
  if c.switch("is_causal") and queries > 1:
    masks.seen.append(_up_to(c, place, lengths, queries))
  masks.blind = True
  rank, dtype = len(shape_of(own.v)), own.v.dtype
  column = c.transpose(seen, (*range(rank - 2), rank - 1, rank - 2))
  return replace(own, v=c.elementwise("select", column, own.v, const(0), dtype=dtype))


def _up_to(c: Context, place: Tensor, lengths: Tensor, queries: int) -> Tensor:
  """Whether query i sees the key at ``place`` [1, .., keys]: not behind i + its length - ``queries``."""
  ones = (1,) * (len(shape_of(place)) - 2)
  row = c.reshape(c.implied(places(queries)), (*ones, queries, 1))
  ahead = c.elementwise("sub", *(c.cast(x, DType.F32) for x in (place, row)))
  length = c.cast(c.reshape(lengths, (*shape_of(lengths), *ones, 1)), DType.F32)
  most = c.elementwise("sub", length, const(queries))
  return c.elementwise("less_equal", ahead, most, dtype=DType.BOOL)


def _masked(c: Context, own: Heads, masks: Masks) -> None:
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


def multi_head_attention(c: Context) -> None:
  """com.microsoft: a mask adds the value of its filter."""
  if c.has(8) or c.has(9):
    raise c.reject("past_sequence_length and cache_indirection are known only to a run")
  if c.uses(3):
    raise c.reject("the normalized scores are an output")
  parts = _parts(c)
  if c.has(3):
    if any(len(shape_of(p)) != 3 for p in parts):
      raise c.reject("a bias beside heads that are apart")
    parts = _biased(c, parts, c.tensor(3))
  q, k, v = (by_heads(c, p, c.attribute("num_heads")) for p in parts)
  _microsoft(c, q, k, v, mask=4, bias=5, past=(6, 7))


def _parts(c: Context) -> list[Tensor]:
  """Queries, keys and values, which may be beside each other: [batch, length, heads, 2 or 3, size].

  ONNX Runtime has these on GPUs only.
  """
  apart = [c.tensor(i) for i in range(3) if c.has(i)]
  if len(apart) == 3:
    return apart
  shape = shape_of(apart[-1])
  if c.has(2) or len(apart) + (shape[3] if len(shape) == 5 else 0) != 4:
    raise c.reject(f"of queries, keys and values there is {c.symbols.show(shape)}")
  if c.has(6):
    raise c.reject("a past beside keys and values in one tensor")
  batch, length, heads, count, size = shape
  found = (taken(c, apart[-1], 3, range(i, i + 1)) for i in range(count))
  return [*apart[:-1], *(c.reshape(x, (batch, length, heads * size)) for x in found)]


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
  q, k, v = (by_heads(c, c.cast(p, x.dtype), heads) for p in parts)
  _microsoft(c, q, k, v, mask=3, bias=5, past=(4,))


def _microsoft(
  c: Context, q: Tensor, k: Tensor, v: Tensor, mask: int, bias: int, past: tuple[int, ...]
) -> None:
  before = shape_of(c.tensor(past[0]))[-2] if c.has(past[0]) else 0
  own = heads_of(c, q, *with_past(c, k, v, past))
  masks = Masks()
  if c.switch("unidirectional"):
    if shape_of(q)[2] != shape_of(k)[2]:
      raise c.reject("unidirectional, with other lengths of queries and keys")
    causal(c, own, before, masks)
  if c.has(mask) and (more := added_by(c, c.tensor(mask), own, projecting=len(past) == 1)):
    masks.added.append(more)
  if c.has(bias):
    masks.added.append(c.widen(c.tensor(bias)))
  _, y = attended(c, own, masks)
  c.finish(by_rows(c, y))
  if len(past) == 2:
    for position, x in ((1, own.k), (2, own.v)):
      if c.uses(position):
        c.finish(x, position)
  elif c.uses(1):
    c.finish(c.concat([c.reshape(x, (1, *shape_of(x))) for x in (own.k, own.v)], 0), 1)


def _biased(c: Context, parts: Sequence[Tensor], bias: Tensor) -> list[Tensor]:
  ends = np.cumsum([shape_of(p)[-1] for p in parts]).tolist()
  own = (range(e - shape_of(p)[-1], e) for p, e in zip(parts, ends, strict=True))
  return [c.elementwise("add", p, taken(c, bias, 0, r)) for p, r in zip(parts, own, strict=True)]
