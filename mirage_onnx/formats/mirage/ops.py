"""What the operators of saved graphs compute, in the primitives of ``saved_draft``.

The table is from the paper's Table 1 and section 2 (arXiv 2405.05751); accumulators are the only
way out of the loop. For a tile x with last dimension n, over iterations t and with c chunks of
``reduction_dimx`` elements j in the last dimension:

    accum_nored             sum_t x                  accum_red_ld_sum    sum_t sum_n x
    accum_red_ld_mean       mean over t and n        accum_red_ld_rms    sqrt(mean of x^2)
    accum_redtox_ld_sum     y[j] = sum_t sum_c x[c, j]

A mean over iterations counts them, also where the loop cuts nothing that x depends on.
"""

from collections.abc import Callable
from fractions import Fraction

from mirage_onnx.formats.mirage.draft import DraftKernel

HALF = Fraction(1, 2)

#: (kernel, arguments) -> value
Rule = Callable[[DraftKernel, tuple[int, ...]], int]


def _last(k: DraftKernel, x: int) -> int:
  return len(k.values[x].dims) - 1


def _silu(k: DraftKernel, x: int) -> int:
  return k.fn("mul", x, k.fn("sigmoid", x))


def _gelu(k: DraftKernel, x: int) -> int:
  """x/2 (1 + erf(x / sqrt(2)))."""
  inner = k.fn("erf", k.fn("mul", x, k.powr(k.const(HALF, x), HALF)))
  return k.fn("mul", k.fn("mul", x, k.const(HALF, x)), k.fn("add", inner, k.const(1, x)))


def _rms_norm(k: DraftKernel, x: int) -> int:
  """x / sqrt(mean(x^2)) over the last dimension of the tile."""
  total = k.sum(k.fn("square", x), _last(k, x))
  mean = k.fn("div", total, k.extent(k.values[x].dims[-1], total))
  return k.fn("div", x, k.fn("sqrt", mean))


def _accumulated_sum(k: DraftKernel, x: int) -> int:
  return k.acc(k.sum(x, _last(k, x)))


def _accumulated_mean(k: DraftKernel, x: int) -> int:
  total, last = _accumulated_sum(k, x), k.values[x].dims[-1]
  if k.values[x].looped:
    return k.fn("div", total, k.extent((*k.loop, *last), total))
  iterations = k.acc(k.const(1, x))
  return k.fn("div", total, k.fn("mul", iterations, k.extent(last, total)))


def _accumulated_rms(k: DraftKernel, x: int) -> int:
  return k.fn("sqrt", _accumulated_mean(k, k.fn("square", x)))


def _accumulated_chunks(k: DraftKernel, x: int) -> int:
  return k.acc(k.sum(x, _last(k, x), k.chunk))


def _unary(rule: Callable[[DraftKernel, int], int]) -> tuple[int, Rule]:
  return 1, lambda k, args: rule(k, args[0])


def _function(op: str, arity: int) -> tuple[int, Rule]:
  return arity, lambda k, args: k.fn(op, *args)


def _reduction(dim: int, *, chunks: bool = False) -> tuple[int, Rule]:
  return 1, lambda k, args: k.sum(args[0], dim, k.chunk if chunks else 1)


#: Operators of both levels: name -> (arguments, rule).
COMMON: dict[str, tuple[int, Rule]] = {
  "matmul": (2, lambda k, args: k.matmul(*args)),
  **{op: _function(op, 1) for op in ("exp", "square", "sqrt", "sigmoid", "relu", "log")},
  **{op: _function(op, 2) for op in ("add", "sub", "mul", "div")},
  "silu": _unary(_silu),
  "gelu": _unary(_gelu),
  "rms_norm": _unary(_rms_norm),
  **{f"reduction_{d}": _reduction(d) for d in range(3)},
}
#: Operators of a block graph.
BLOCK: dict[str, tuple[int, Rule]] = {
  **COMMON,
  **{f"reduction_{d}_to_dimx": _reduction(d, chunks=True) for d in range(3)},
  "accum_nored": _unary(lambda k, x: k.acc(x)),
  "accum_red_ld_sum": _unary(_accumulated_sum),
  "accum_red_ld_mean": _unary(_accumulated_mean),
  "accum_red_ld_rms": _unary(_accumulated_rms),
  "accum_redtox_ld_sum": _unary(_accumulated_chunks),
}
