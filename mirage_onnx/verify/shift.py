"""Is every exponential of a candidate shifted by the maximum, where the region's is?

exp(x - c) / sum(exp(x - c)) is the same function for every c, but a c below the maximum overflows,
a c far above it leaves 0/0. In float64, on each of the hostile inputs:

  * no argument of an exp goes above its bound: 0, or what the region's own exp arguments (over
    comparable axes) reach, or what the interval analysis proves where a maximum was left out;
  * the outputs are those of the region: relative L2 <= ``TOLERANCE``, finite at the same elements.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import Region, RegionTensor, UGraph, is_part_axis
from mirage_onnx.ir import interval as iv
from mirage_onnx.ir import term as t
from mirage_onnx.verify.adversarial import CASES, adversarial_inputs, even_instantiation
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.range_check import proven_exponents
from mirage_onnx.verify.reduced import Instantiation
from mirage_onnx.verify.term_bounds import Fact, measured

#: Relative L2 distance of an output on one case.
TOLERANCE = 1e-6
#: exp(80) and the sum of a row of them fit fp32.
SAFE_EXPONENT = 80.0
#: exp(1e-3) is 1.001: float64 noise of logits near 1e8 that two kernels compute in other orders.
NOISE = 1e-3


@dataclass(frozen=True, slots=True)
class ShiftRecord:
  """``largest``: exp op -> the largest argument it saw on any case, and its bound there."""

  largest: Mapping[str, tuple[float, float]]


class _Watched(Float64):
  """Float64 that keeps, per exp op and case, the largest argument. The op's name has its site."""

  def __init__(self, runs: int) -> None:
    super().__init__(runs)
    self.arguments: dict[str, np.ndarray] = {}

  def elementwise(self, op: str, *args: np.ndarray) -> np.ndarray:
    name, _, site = op.partition("@")
    if site:
      x = args[0].reshape(args[0].shape[0], -1)
      top = np.fmax.reduce(x, axis=1, initial=-np.inf)
      seen = self.arguments.get(site, np.full(self.rows, -np.inf))
      self.arguments[site] = np.fmax(seen, top)
    return super().elementwise(name, *args)


def exp_sites(graph: UGraph) -> dict[str, tuple[str, int]]:
  """The exp ops of a µGraph: name for messages -> (kernel, index)."""
  return {
    f"%{n} of kernel {k.name}": (k.name, n)
    for k in graph.kernels
    for n, op in enumerate(k.ops)
    if op.op == "exp"
  }


def check_shift(region: Region, graph: UGraph, seed: int = 0) -> ShiftRecord | Rejection:
  """The record of a candidate whose exponentials are safe, else SHIFT_NOT_MAX.

  ``graph`` is well-formed and has been proven equal to ``region`` (``verify``).
  """
  try:
    return _check(region, graph, np.random.default_rng([seed, 0x736866]))
  except RejectionError as e:
    return e.rejection
  except ValueError as e:
    return Rejection("NOT_EQUIVALENT", f"ill-formed: {e}")


def _check(region: Region, graph: UGraph, rng: np.random.Generator) -> ShiftRecord | Rejection:
  sizes = even_instantiation(graph, region)
  inputs = {
    name: NamedArray(data, next(i.axes for i in region.inputs if i.name == name))
    for name, data in adversarial_inputs(region, sizes.extents, rng).items()
  }
  domain = _Watched(len(CASES))
  got = interpret_ugraph(domain, _labelled(graph), sizes.params, sizes.extents, inputs)
  allowed = _allowed(region, graph, sizes, inputs)
  record = {}
  for site, bound in allowed.items():
    # An exp that no iteration reached has no argument.
    seen = domain.arguments.get(site, np.full(len(CASES), -np.inf))
    if (high := seen > bound + NOISE).any():
      case = int(np.argmax(high))
      reason = (
        f"exp {site} gets {seen[case]:.4g} on '{CASES[case]}' inputs, where the region's "
        f"stay at or below {bound[case]:.4g}: it is not shifted by the maximum of its row, "
        "and nothing else bounds it"
      )
      return Rejection("SHIFT_NOT_MAX", reason)
    case = int(np.argmax(seen))
    record[site] = (float(seen[case]), float(bound[case]))
  want = interpret_terms(Float64(len(CASES)), region.terms, inputs, sizes.extents)
  for output, value in zip(region.outputs, want, strict=True):
    x = _full(value, output, sizes.extents)
    y = got[output.name].aligned(output.axes)
    for number, case_name in enumerate(CASES):
      if (found := _difference(output.name, x[number], y[number])) is not None:
        where = f"on '{case_name}' inputs {found}"
        if not allowed:
          return Rejection("NOT_EQUIVALENT", where)
        shifts = " and ".join(allowed)
        return Rejection("SHIFT_NOT_MAX", f"{where}; the shift of exp {shifts} is wrong")
  return ShiftRecord(record)


def _labelled(graph: UGraph) -> UGraph:
  """The graph with every exp op named after its site, which ``_Watched`` reads."""
  kernels = tuple(
    replace(
      k,
      ops=tuple(
        replace(o, op=f"exp@%{n} of kernel {k.name}") if o.op == "exp" else o for n, o in enumerate(k.ops)
      ),
    )
    for k in graph.kernels
  )
  return replace(graph, kernels=kernels)


def _allowed(
  region: Region, graph: UGraph, sizes: Instantiation, inputs: Mapping[str, NamedArray]
) -> dict[str, np.ndarray]:
  """Exp op -> [case], the bound of its arguments."""
  sites = exp_sites(graph)
  if not sites:
    return {}
  own = [n for n in t.walk(region.terms) if n.op == "exp"]
  values = interpret_terms(
    Float64(len(CASES)), [n.args[0] for n in own], inputs, sizes.extents
  )  # fmt: skip
  with np.errstate(invalid="ignore"):
    tops = [np.fmax.reduce(v.data.reshape(len(CASES), -1), axis=1) for v in values]
  facts = {
    i.name: measured(inputs[i.name].data[0], i.axes) if i.is_weight else Fact(iv.REALS) for i in region.inputs
  }
  proven = proven_exponents(graph, sizes.extents, facts)
  result = {}
  for site, (kernel, index) in sites.items():
    ops = next(k.ops for k in graph.kernels if k.name == kernel)
    axes = {a for a in ops[index].axes if not is_part_axis(a)}
    bound = np.zeros(len(CASES))
    for n, top in zip(own, tops, strict=True):
      if set(n.axes) <= axes or axes <= set(n.axes):
        bound = np.fmax(bound, top)
    safe = proven.get((kernel, index), np.inf)
    result[site] = np.maximum(bound, safe if safe <= SAFE_EXPONENT else -np.inf)
  return result


def _full(value: NamedArray, output: RegionTensor, extents: Mapping[str, int]) -> np.ndarray:
  data = value.aligned(output.axes)
  return np.broadcast_to(data, (data.shape[0], *(extents[a] for a in output.axes)))


def _difference(name: str, x: np.ndarray, y: np.ndarray) -> str | None:
  """Why ``y`` is not ``x``, or None; what is not finite has no value to compare."""
  defined = np.isfinite(x)
  if (bad := defined != np.isfinite(y)).any():
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{name}{list(at)} is {y[at]:.4g}, it should be {x[at]:.4g}"
  # In units of the largest: the square of an exponential may be beyond float64.
  unit = float(np.abs(x[defined]).max(initial=0.0)) or 1.0
  clean, other = x[defined] / unit, y[defined] / unit
  norm = float(np.linalg.norm(clean))
  with np.errstate(over="ignore"):
    error = float(np.linalg.norm(other - clean)) / norm if norm > 0 else 0.0
  return f"{name} differs by {error:.1e} (relative L2)" if error > TOLERANCE else None
