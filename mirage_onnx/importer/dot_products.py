"""Scaled dot products: softmax(scale Q K^T + mask) V, as operators of every kind share it.

Scores and their softmax are in fp32; what multiplies V has the type of Q. The score of a key that
is not seen is the least fp32, so the key weighs nothing beside one that is.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_onnx.importer.causal import LARGEST, causal_mask, places, places_of
from mirage_onnx.importer.context import Context, const, shape_of
from mirage_onnx.importer.reductions import exponentials
from mirage_onnx.importer.slicing import beside, taken
from mirage_onnx.ir import DType, Tensor

HALF = Fraction(1, 2)
#: The least number of fp32.
LEAST = const(-Fraction(((1 << 24) - 1) << 104))


@dataclass(frozen=True, slots=True)
class Heads:
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
class Masks:
  """``added`` to scores; ``seen``: which keys, all of these; ``blind``: perhaps none at all."""

  added: list[Tensor] = field(default_factory=list)
  seen: list[Tensor] = field(default_factory=list)
  blind: bool = False


def by_heads(c: Context, x: Tensor, heads: int) -> Tensor:
  if len(shape_of(x)) == 4:
    return x
  batch, length, wide = shape_of(x)
  if not heads or wide % heads:
    raise c.reject(f"{heads} heads of {wide} elements")
  return c.transpose(c.reshape(x, (batch, length, heads, wide // heads)), (0, 2, 1, 3))


def shaped(c: Context, x: Tensor, shape: tuple[int, ...]) -> Tensor:
  return x if shape_of(x) == shape else c.reshape(x, shape)


def by_rows(c: Context, x: Tensor) -> Tensor:
  batch, heads, length, size = shape_of(x)
  return c.reshape(c.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def with_past(c: Context, k: Tensor, v: Tensor, positions: tuple[int, ...]) -> tuple[Tensor, Tensor]:
  if not c.has(positions[0]):
    return k, v
  if len(positions) == 2:
    past = [c.tensor(p) for p in positions]
  else:
    both = c.tensor(positions[0])
    halves = (taken(c, both, 0, range(i, i + 1)) for i in range(2))
    past = [c.reshape(x, shape_of(both)[1:]) for x in halves]
  return beside(c, [past[0], k], 2), beside(c, [past[1], v], 2)


def heads_of(c: Context, q: Tensor, k: Tensor, v: Tensor) -> Heads:
  if q.dtype is DType.F64:
    raise c.reject("scores of f64 are not supported", "DTYPE")
  (batch, heads, length, size), own = shape_of(q), shape_of(k)[1]
  if shape_of(k)[:3] != shape_of(v)[:3] or heads % own:
    raise c.reject(f"{heads} heads of queries, {own} and {shape_of(v)[1]} of keys and values")
  if heads == own:
    return Heads(q, k, v, 1)
  q = c.reshape(q, (batch, own, heads // own, length, size))
  k, v = (c.reshape(x, (*shape_of(x)[:2], 1, *shape_of(x)[2:])) for x in (k, v))
  return Heads(q, k, v, heads // own)


def causal(c: Context, own: Heads, past: int, masks: Masks) -> None:
  queries, keys = own.lengths
  if any(map(c.symbols.is_symbolic, (queries, keys, past))):
    raise c.reject("how many keys a query sees shows only a run", "DYNAMIC_DIM")
  if past >= keys - 1:
    return
  if queries * keys > LARGEST:
    raise c.reject(f"a causal mask of {queries} x {keys} elements is not stored")
  masks.seen.append(c.implied(causal_mask(queries, keys, past)))


def places_along(c: Context, count: int) -> Tensor:
  """0, 1, 2, ... of so many keys, where a number may stand for what only a run knows."""
  if not c.symbols.is_symbolic(count):
    return c.implied(places(count))
  found = c.implied(places_of(c.symbols.text(count)))
  return replace(found, shape=(count,))


def scaled(c: Context, dots: Tensor, size: int) -> Tensor:
  """By the attribute, or the root of the size of a head."""
  scale = c.fraction("scale", 0.0)
  return c.elementwise("mul", dots, const(scale) if scale else const(Fraction(1, size), HALF))


def capped(c: Context, scores: Tensor, cap: Fraction) -> Tensor:
  """Bent so that none is beyond ``cap``, if that is not 0."""
  if not cap:
    return scores
  if cap < 0:
    raise c.reject(f"softcap is {float(cap)}")
  bent = c.elementwise("tanh", c.elementwise("div", scores, const(cap)))
  return c.elementwise("mul", bent, const(cap))


def attended(
  c: Context, own: Heads, masks: Masks, cap: Fraction = Fraction(0)
) -> tuple[list[Tensor], Tensor]:
  """Scores, those under ``cap``, those with what is added, and their softmax; the result."""
  rank, dtype = len(shape_of(own.q)), own.q.dtype
  assert dtype is not None
  turned = c.transpose(own.k, (*range(rank - 2), rank - 1, rank - 2))
  scores = scaled(c, c.matmul(own.q, turned, dtype=DType.F32), shape_of(own.q)[-1])
  stages = [scores]
  scores = capped(c, scores, cap)
  stages.append(scores)
  for x in masks.added:
    scores = c.elementwise("add", scores, x)
  stages.append(scores)
  seen = None
  for x in masks.seen:
    seen = c.elementwise("mul", seen, x, dtype=DType.BOOL) if seen else x
  if seen:
    scores = c.elementwise("select", seen, scores, LEAST, dtype=DType.F32)
  most, _, e, total = exponentials(c, scores, (rank - 1,))
  p = c.elementwise("div", e, total)
  y = c.matmul(c.cast(p, dtype), own.v)
  if seen and masks.blind:
    some = c.elementwise("less", LEAST, most, dtype=DType.BOOL)
    p, y = (c.elementwise("select", some, x, const(0), dtype=x.dtype) for x in (p, y))
  return [*stages, p], y
