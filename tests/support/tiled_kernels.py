"""Small block graphs for the tests of ``codegen/tiled``, and what the emulator makes of them."""

import re
from dataclasses import dataclass

import numpy as np
from golden_texts import PROGRAMS

from mirage_onnx.codegen.emit import text_of
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.ir import DType, KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.lower.forms import MMA, Form
from mirage_onnx.lower.steps import Held
from mirage_onnx.lower.tiled_graph import tiled_graph
from mirage_onnx.target import H200
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray

#: o0 = softmax(i1 i0^T) i2 with a running maximum; a1 are the keys.
ATTENTION = PROGRAMS["attention"]

#: o0 = rsqrt(mean(i0^2)) * (i0 i1^T), no loop.
NORM_LINEAR = PROGRAMS["norm_linear"]

#: o0 = i0 - max(i0) over rows: no contraction.
CENTRED = PROGRAMS["centred"]

#: o0 = i0 where i1 is true, else its square.
MASKED = PROGRAMS["masked"]

#: Partial sums over tiles of a1 in one kernel, their sum in the next.
PARTS = PROGRAMS["parts"]

#: o0 = ((i0 * i3) i1^T) i2^T + i4: a ring, a load of every iteration, a tile and a load behind the loop.
TWO_PRODUCTS = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i3 f16[a1] weight
tensor i1 f16[a2,a1] input
tensor i2 f16[a3,a2] input
tensor i4 f16[a3] weight
tensor o0 f32[a0,a3] output
kernel k0 grid=a0 cluster=- loop=a1
  %0 = load i0 imap=a0 cmap=- fmap=a1 : f16[a0,a1] loop shared
  %1 = load i3 imap=- cmap=- fmap=a1 : f16[a1] loop depth
  %2 = cast %0 : f32[a0,a1] loop A_frag
  %3 = cast %1 : f32[a1] loop depth
  %4 = mul %2 %3 : f32[a0,a1] loop A_frag
  %5 = cast %4 : f16[a0,a1] loop A_frag
  %6 = load i1 imap=- cmap=- fmap=a1 : f16[a2,a1] loop shared
  %7 = matmul[a1] %5 %6 : f32[a0,a2] loop C_frag
  %8 = acc_sum %7 : f32[a0,a2] post C_frag
  %9 = cast %8 : f16[a0,a2] post A_frag
  %10 = load i2 imap=- cmap=- fmap=- : f16[a3,a2] post shared
  %11 = matmul[a2] %9 %10 : f32[a0,a3] post C_frag
  %12 = load i4 imap=- cmap=- fmap=- : f16[a3] post column
  %13 = cast %12 : f32[a3] post column
  %14 = add %11 %13 : f32[a0,a3] post C_frag
  save o0 = %14 omap=a0
"""


def product(
  a = "a0,a1", b = "a2,a1", *, dtype = "f16", loop = True,
  layouts = ("shared", "shared"), second = "",
):  # fmt: skip
  """o0[a0, a2] = a contraction over a1 of tensors with their axes in these orders."""
  phase, cut = ("loop", "a1") if loop else ("post", "-")
  total = "  %3 = acc_sum %2 : f32[a0,a2] post C_frag\n" if loop else ""
  return (
    f"ugraph 1\ntensor i0 {dtype}[{a}] input\ntensor i1 {second or dtype}[{b}] weight\n"
    f"tensor o0 f32[a0,a2] output\nkernel k0 grid=a2,a0 cluster=- loop={cut}\n"
    f"  %0 = load i0 imap=-,a0 cmap=- fmap={cut} : {dtype}[{a}] {phase} {layouts[0]}\n"
    f"  %1 = load i1 imap=a2,- cmap=- fmap={cut} : {second or dtype}[{b}] {phase} {layouts[1]}"
    f"\n  %2 = matmul[a1] %0 %1 : f32[a0,a2] {phase} C_frag\n{total}"
    f"  save o0 = %{3 if loop else 2} omap=a2,a0\n"
  )


#: Some register.
HELD = Held(0, Form(MMA, (), (), ()))


def paths(graph):
  """The steps that a thread passes, with up to three iterations."""
  for iterations in range(4 if graph.body else 1):
    yield graph.before + graph.body * iterations + graph.after


@dataclass(frozen=True)
class Case:
  text: str
  params: tuple[KernelParams, ...]
  extents: dict[str, int]

  @property
  def graph(self):
    return parse_ugraph(self.text)

  def all_extents(self):
    return ugraph_extents(self.graph, self.params, self.extents)

  def threads(self, kernel=0):
    graph = self.graph
    return tiled_graph(graph, graph.kernels[kernel], self.params[kernel], self.all_extents(), H200)

  def plan(self, kernel=0):
    return self.threads(kernel).plan


def case(
  text, *tile, cluster = 1, loop_tile = 0, warps = 4, stages = 1,
  **extents,
):  # fmt: skip
  return Case(text, (KernelParams(tile, cluster, loop_tile, warps, stages),), extents)


def tiled_source(graph, kernel, params, extents, target=None):
  """The text of a kernel with tiles, whatever other kind it could be; tests replace this module's GPU."""
  target = target or H200
  return text_of(tiled_graph(graph, kernel, params, extents, target), target, kernel)


def drawn_mask(tensor, extents, rng):
  """Nine of ten elements of its band, and every eleventh row sees nothing; of a sharp one the band itself."""
  rows, columns = (extents[a] for a in tensor.axes)
  distance = np.arange(columns)[None, :] - np.arange(rows)[:, None]
  seen, added = tensor.band.covers(distance), 0.0
  if not tensor.band.sharp:
    seen &= rng.random((rows, columns)) < 0.9
    seen[3::11] = False
    added = 0.0 if tensor.dtype is DType.BOOL else rng.standard_normal(seen.shape)
  mask = seen if tensor.dtype is DType.BOOL else np.where(seen, added, float(tensor.band.outside))
  return mask.astype(tensor.dtype.numpy)  # or a GPU is given the bytes of other numbers


def drawn(case, rng):
  """(What a launch is given, NaN where it writes; what the interpreter is): the same numbers."""
  given, read, extents = {}, {}, case.all_extents()
  for t in case.graph.tensors:
    shape = tuple(extents[a] for a in t.axes)
    if t.role in ("input", "weight"):
      x = rng.standard_normal(shape)
      x = x > 0 if t.dtype is DType.BOOL else x
      x = drawn_mask(t, extents, rng) if t.band else x
      given[t.name] = np.asarray(x).astype(t.dtype.numpy)
      read[t.name] = NamedArray(given[t.name].astype(np.float64)[None], t.axes)
    else:
      given[t.name] = np.full(shape, np.nan).astype(t.dtype.numpy)
  return given, read


def near(cases, bound=2e-3, seed=7, ulps=0):
  """In the emulator, of the interpreter."""
  found = errors(cases, seed, ulps)
  assert [e for e in found if not e < bound] == [], found


def errors(cases, seed, ulps=0):
  """The largest error of every case, relative to its largest output if that is above 1."""
  named = [Case(re.sub(r"\bk(\d)\b", rf"c{n}k\1", c.text), c.params, c.extents) for n, c in enumerate(cases)]
  sources, owners = [], []
  for number, c in enumerate(named):
    graph = c.graph
    for kernel, params in zip(graph.kernels, c.params, strict=True):
      sources.append(tiled_source(graph, kernel, params, c.all_extents()))
      owners.append(number)
  module = compile_kernels(sources, ulps=ulps)
  rng, found = np.random.default_rng(seed), []
  for number, c in enumerate(named):
    graph, (tensors, inputs) = c.graph, drawn(c, rng)
    module.run(tensors, [i for i, owner in enumerate(owners) if owner == number])
    wanted = interpret_ugraph(Rounded(), graph, c.params, c.extents, inputs)
    worst = 0.0
    for t in graph.tensors:
      if t.role == "output":
        want = wanted[t.name].aligned(t.axes)[0].astype(np.float64)
        gap = np.abs(tensors[t.name].astype(np.float64) - want).max()
        scale = max(1.0, float(np.abs(want).max()))
        worst = max(worst, float(gap) / scale if np.isfinite(gap) else np.inf)
    found.append(worst)
  return found
