"""The correct kernels whose mutants are made: generated ones, and hand-written ones.

Inputs are drawn so that every element matters: values are distinct, sums are not near zero, and the
largest element of a row is its last.
"""

from dataclasses import replace

import numpy as np
from banded import ADDED, banded, banded_text
from mutant_run import Subject
from tiled_kernels import drawn_mask

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.ir import DType, parse_ugraph
from mirage_onnx.target import H200
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from tests.codegen.tiled.test_ring_feed_text import fed
from tests.codegen.tiled.test_warpgroup import ACROSS, GELU, NORM, PLAIN, attention, by_wgmma
from tests.support.block_graphs import Graphs
from tests.support.block_graphs import numbers as p
from tests.support.primitives import GROUPS

#: Of the largest output: rounding of a 16-bit result, and of fp32 sums in another order.
TOLERANCE = {DType.F16: 1e-3, DType.BF16: 8e-3, DType.F32: 2e-5}


#: graph of tests/codegen, extents of a0 a1 a2 a3, numbers
GENERATED = (
  ("scaled", (11, 200, 40), p(24, 16, w=1, s=3)),
  ("scaled:bf16", (11, 264, 40), p(32, 16, c=2, w=2, s=1)),
  ("small_third", (11, 360, 40, 12), p(32, 16, c=2, w=2, s=1)),
  ("pair", (5, 200, 24), p(32, 8, w=2, s=2)),
  ("rows", (3, 520, 0), p(1, w=2)),
  ("rows", (3, 77, 0), p(1, w=1)),
  ("rows_mixed", (2, 515, 3), p(1, 1, w=2)),
  ("layouts", (11, 264, 40), p(32, 16, c=2, w=2, s=1)),
  ("over_columns", (9, 200, 136), p(8, w=2, s=1)),
  ("depth_first", (3, 333, 40), p(16, 8)),
  ("batch", (3, 264, 24, 2), p(16, 8, 1)),
  ("chain", (5, 264, 24), p(16, 8)),
)


def generated():
  graphs = Graphs()
  for name, numbers, params in GENERATED:
    # A softmax does not depend on what is subtracted; a quotient by the maximum does.
    text = graphs.text(name).replace("%13 = sub %0 %12", "%13 = div %0 %12")
    graph = parse_ugraph(text)
    extents = {f"a{i}": n for i, n in enumerate(numbers)}
    rows = p(1, w=4)
    kernels = tuple(
      emit_kernel(graph, k, params if k.loop or len(graph.kernels) == 1 else rows, extents,
                  H200)
      for k in graph.kernels
    )  # fmt: skip
    tensors = graphs.inputs(graph, extents, np.random.default_rng(1))
    for t in graph.tensors:
      data = tensors[t.name].astype(np.float64)
      if t.role == "input" and t.axes[-1:] == ("a1",) and name == "rows":
        data -= 6.0  # a maximum below zero, and exp(x / max) of the order of ten
        data[..., -1] = -2.0
      if t.role == "input" and t.axes == ("a2",):
        data *= 0.3  # tanh is not hidden behind a maximum above one
      tensors[t.name] = data.astype(t.dtype.numpy)
    want = graphs.expected(graph, extents, tensors)
    expected = {t.name: (want[t.name], TOLERANCE[t.dtype]) for t in graph.tensors if t.name in want}
    written = [t.name for t in graph.tensors if t.role in ("output", "temp")]
    title = f"{name} {'x'.join(map(str, numbers))}"
    yield Subject(title, kernels, tensors, expected, written)


FEW = replace(H200, multiprocessors=2)
#: A mask that lanes read, and iterations that the block votes about.
HIDDEN = banded_text("..0 else -65504", ADDED, kind="f16")
#: Kernels with wgmma: what is contracted, and how.
BESIDE = {
  "product": by_wgmma(PLAIN, 64, 64, warps=4, a0=77, a1=456, a2=104),
  "product of two warpgroups": by_wgmma(PLAIN, 64, 128, stages=3, a0=130, a1=384, a2=64),
  "product across": by_wgmma(ACROSS, 64, 64, warps=4, stages=3, a0=64, a1=328, a2=64),
  "product of a norm": by_wgmma(NORM, 64, 64, warps=4, stages=3, a0=77, a1=328, a2=64),
  "product fed": by_wgmma(PLAIN, 64, 64, warps=4, stages=3, teams=1, a0=140, a1=456, a2=104),
  "product of two teams": by_wgmma(
    PLAIN, 64, 64, warps=4, stages=3, teams=2, sharing=2, a0=512, a1=264, a2=64
  ),
  "product stored late": by_wgmma(PLAIN, 128, 128, stages=3, teams=1, late=1, a0=300, a1=328, a2=264),
  "functions beside a product": by_wgmma(GELU, 128, 128, stages=3, teams=1, late=2, a0=300, a1=328, a2=264),
  "two products": attention(64, 64, 3, a1=376, a3=77),
  "two products fed": fed(banded(HIDDEN, 128, 64, 3, a0=1, a1=264, a3=200)),
  "two products of a band": banded(banded_text("..0 else 0"), 64, 64, 2, a0=1, a1=264, a3=200),
}
#: What goes wrong beside the threads only, and in the ring; masks are made twice there (rows that are not
#: there are zeros, too), so of those most mutants would be no mistakes.
BESIDE_KINDS = (
  "product wait gone", "product waits for less", "product fence gone", "product commit gone", "product depth",
  "product dropped", "depth across", "swizzle", "another row of a tile", "another stage", "copies ahead",
  "fence gone", "copy wait gone", "copy waits for less", "commit gone", "block barrier gone",
  "place in a tile", "vote gone", "floor", "seen", "turn",
  "mbarrier wait gone", "mbarrier arrive gone", "mbarrier init gone", "mbarrier count", "transaction bytes",
  "named barrier gone", "cluster barrier gone", "warp arrives nowhere", "another round",
  "another place of the ring", "a lane for its warp",
  "box", "own piece of a box", "shared with none",
)  # fmt: skip


def beside():
  """As the interpreter computes it."""
  for title, case in BESIDE.items():
    graph, every, rng = case.graph, case.all_extents(), np.random.default_rng(1)
    tensors = {
      t.name: rng.standard_normal([every[a] for a in t.axes]).astype(t.dtype.numpy) for t in graph.tensors
    }
    for t in graph.tensors:
      if t.band:
        tensors[t.name] = drawn_mask(t, every, rng)
    drawn = [t for t in graph.tensors if t.role in ("input", "weight")]
    inputs = {t.name: NamedArray(tensors[t.name].astype(np.float64)[None], t.axes) for t in drawn}
    found = interpret_ugraph(Rounded(), graph, case.params, case.extents, inputs)
    (out,) = (t for t in graph.tensors if t.role == "output")
    want = found[out.name].aligned(out.axes)[0].astype(np.float64)
    target = FEW if case.params[0].teams else H200  # so that blocks have several parts
    source = emit_kernel(graph, graph.kernels[0], case.params[0], every, target)
    yield Subject(
      title, (source,), tensors, {out.name: (want, 2 * TOLERANCE[out.dtype])}, [out.name], BESIDE_KINDS
    )


#: Groups of tests/support/primitives that are programs, not tables of values.
PROGRAMS = ("sync", "copies", "memory", "matrix")


def handwritten():
  for group in PROGRAMS:
    for case in GROUPS[group]:
      yield _subject(case)


def _subject(case):
  """What the correct program computes in the emulator is what its mutants must not."""
  tensors = case.tensors()
  module = compile_kernels(case.kernels)
  got = {name: x.copy() for name, x in tensors.items()}
  module.run(got)
  expected = {name: (got[name], 0.0) for name in case.outputs}
  return Subject(case.name, case.kernels, tensors, expected)
