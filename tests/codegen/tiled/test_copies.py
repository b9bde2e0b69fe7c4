"""Kernels that copy, contract and reduce odd tiles, run in the emulator against the interpreter."""

import pytest
from tiled_kernels import (
  ATTENTION,
  CENTRED,
  MASKED,
  NORM_LINEAR,
  PARTS,
  Case,
  case,
  near,
  product,
  tiled_source,
)

from mirage_onnx.ir import DType, KernelParams
from mirage_onnx.lower.steps import Copy, Fetch, Read

DTYPES = ("f16", "bf16", "f32")


def test_axis_orders_and_types():
  """Rows of a tile lie along the depth or across it, in chunks of 16 bytes or not."""
  near(
    [
      case(product(a, b, dtype=t), 16, 16, loop_tile=16, warps=2, stages=s, a0=20, a1=k, a2=n)
      for t in DTYPES
      for a, b in (("a0,a1", "a2,a1"), ("a1,a0", "a1,a2"))
      for k, n, s in ((48, 24, 3), (37, 9, 1))
    ]
  )


def test_steps_that_begin_inside_a_chunk():
  """Their rows are not copied by 16 bytes, though those of the tensor are aligned."""
  numbers = {"warps": 1, "stages": 2, "a0": 16, "a1": 48, "a2": 16}
  near([case(product(), 16, 16, loop_tile=n, **numbers) for n in (12, 20)])


def test_partial_sums_of_two_kernels():
  first = [KernelParams((8, 4), warps=1), KernelParams((64, 16), warps=4)]
  near(
    [
      Case(PARTS, (p, KernelParams((2,), warps=2)), {"a0": 7, "a1": k, "a2": 10})
      for p in first
      for k in (20, 64)
    ]
  )


def test_clusters_and_online_maxima():
  near(
    [
      case(ATTENTION, 8, 1, cluster=c, loop_tile=16, warps=w, stages=s,
           a0=2, a1=n, a2=16, a3=11, a4=24)
      for c, w, s, n in ((1, 1, 1, 50), (2, 2, 2, 40), (4, 4, 3, 17), (4, 1, 2, 3))
    ]
  )  # fmt: skip


def test_no_loop_and_no_contraction():
  near(
    [case(NORM_LINEAR, 16, t, warps=w, a0=5, a1=k, a2=40) for t, w, k in
     ((1, 1, 24), (5, 4, 33), (8, 2, 160))]
    + [case(CENTRED, t, warps=w, a0=a, a1=n) for t, w, a, n in
       ((1, 4, 3, 1), (2, 2, 3, 37), (4, 1, 1, 300), (64, 4, 64, 9))]
  )  # fmt: skip


def test_truth_values_are_read_one_by_one():
  """Shared memory does not hold them; registers do, however many a lane reads."""
  text = MASKED.replace("LAYOUT", "vector")
  wide = case(text, 64, warps=1, a0=64, a1=80)
  steps = wide.threads().steps
  assert not [s for s in steps.after if isinstance(s, (Copy, Read)) and s.index == 1]
  near([case(text, 2, warps=2, a0=5, a1=19), wide])


def test_truth_values_stay_out_of_shared_memory():
  """No copy moves a byte at a time faster than a load does."""
  c = case(MASKED.replace("LAYOUT", "shared"), 2, a0=5, a1=19)
  loads = [i for i, op in enumerate(c.graph.kernels[0].ops) if op.dtype is DType.BOOL]
  steps = c.threads().steps
  kinds = [type(s) for s in (*steps.before, *steps.after) if getattr(s, "index", -1) in loads]
  assert loads and kinds == [Fetch]
  near([c])


@pytest.mark.parametrize(("layout", "kind"), [("shared", Copy), ("vector", Fetch)])
def test_the_layout_of_a_load_is_honoured(layout, kind):
  text = CENTRED.replace("f32[a0,a1] post vector\n  %1", f"f32[a0,a1] post {layout}\n  %1")
  steps = case(text, 3, warps=1, a0=4, a1=40).threads().steps
  assert [type(s) for s in steps.after if s.index == 0 and isinstance(s, (Copy, Fetch))] == [kind]


#: Sums of rows of a3 (of many a lane reads each where it uses it), times a ring.
IN_PLACE = """ugraph 1
tensor i0 f32[a0,a2,a3] input
tensor i1 f16[a0,a2,a4] input
tensor o0 f16[a0,a4] output
kernel k0 grid=a0,a4 cluster=- loop=a2
  %0 = load i0 imap=a0,- cmap=- fmap=a2 : f32[a0,a2,a3] loop column
  %1 = sum[a3] %0 : f32[a0,a2] loop depth
  %2 = cast %1 : f16[a0,a2] loop depth
  %3 = load i1 imap=a0,a4 cmap=- fmap=a2 : f16[a0,a2,a4] loop shared
  %4 = matmul[a2] %2 %3 : f32[a0,a4] loop column
  %5 = acc_sum %4 : f32[a0,a4] post column
  %6 = cast %5 : f16[a0,a4] post column
  save o0 = %6 omap=a0,a4
"""


def in_place(reads):
  """128 columns of 32 rows of a ring: 512 chunks by 128 threads."""
  return case(IN_PLACE, 1, 128, loop_tile=32, warps=4, stages=2, a0=3, a2=96, a3=reads, a4=128)


def source(c):
  return tiled_source(c.graph, c.graph.kernels[0], c.params[0], c.all_extents()).text


@pytest.mark.parametrize(("reads", "at_once"), [(4, True), (32, False)])
def test_a_ring_is_copied_at_once_but_beside_loads_read_in_place(reads, at_once):
  text, looped = source(in_place(reads)), "for (int e = ptx::thread(); e < 512; e += 128)"
  assert text.count("for (int n = 0; n < 4; ++n)") == 2 * at_once
  assert text.count(looped) == 2 * (not at_once)


def test_right_at_once_and_in_turns():
  near([in_place(4), in_place(32)])


def test_many_chunks_and_what_no_loop_moves_go_in_turns():
  """A tile of nine chunks a thread; the rows of a norm, without a loop."""
  many = case(product("a0,a1", "a1,a2"), 288, 16, loop_tile=32, warps=4, stages=2, a0=20, a1=64, a2=288)
  assert "e < 1152; e += 128)" in source(many)
  assert "e += 64)" in source(case(NORM_LINEAR, 16, 8, warps=2, a0=5, a1=160, a2=40))
