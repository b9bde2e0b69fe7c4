"""Happens-before: what each barrier orders, and what is reported where it is missing."""

import numpy as np
import pytest

from mirage_onnx.emulator import EmulationError, compile_kernels
from tests.emulator.kernels import assert_wrong, body, normal, wrong

BLOCK = {"block": 64, "smem": 512}
GRID = {"block": 32, "grid": (4, 1, 1)}
CLUSTER = {"block": 32, "grid": (2, 1, 1), "cluster": 2, "smem": 256}
HALVES = "const unsigned short* h, unsigned short* o"
COUNTER = "const float* x, float* y, unsigned* count"

WRONG = [
  wrong("race", "write_and_read",
    "data race: (read|write) of 4 bytes at byte [0-9]+ of shared memory, and nothing orders "
    "it after the (write|read) by thread [0-9]+", **BLOCK),
  wrong("race", "read_by_all_and_write", **BLOCK),
  wrong("race", "same_value", "write of 4 bytes at byte 0 .* after the write by thread (0|32)",
    **BLOCK),
  wrong("race", "shuffles_order_nothing", block=32, smem=512),
  wrong("race", "warp_barrier_is_too_small", "data race", **BLOCK),
  wrong("race", "arrival_does_not_acquire", **BLOCK),
  wrong("race", "half_word", r"write of 2 bytes at byte (80|81) of shared memory",
    parameters=HALVES, **BLOCK),
  wrong("race", "word_over_halves", parameters=HALVES, block=2, smem=512),
  wrong("race", "blocks_write_one_place", "byte 0 of tensor 'y', .* the write by",
    text="ptx::st_f32(y, x[0]);  // here", **GRID),
  wrong("race", "block_reads_what_another_wrote", r"the write by block \(0,0,0\), thread 0",
    **GRID),
  wrong("race", "count_without_release", parameters=COUNTER, block=1, grid=(4, 1, 1)),
  wrong("race", "count_without_acquire", parameters=COUNTER, block=1, grid=(4, 1, 1)),
  wrong("race", "fence_of_the_block", parameters=COUNTER, block=1, grid=(4, 1, 1)),
  wrong("race", "atomic_and_plain", parameters=COUNTER, block=1, grid=(2, 1, 1)),
  wrong("race", "remote_before_start", "may not have started: a cluster barrier comes first",
    **CLUSTER),
  wrong("race", "remote_read",
    r"block [01]'s shared memory.* the write by block|of shared memory.* the read by block",
    **CLUSTER),
  wrong("exit", "no_final_barrier", "block [01] of the cluster may exit before|which has exited",
    **CLUSTER),
  wrong("exit", "read_of_an_exited_block",
    "read of the shared memory of block 0 of the cluster, which has exited", **CLUSTER),
  wrong("uninitialised", "never_written",
    "thread 5, .*: read of 4 bytes at byte 20 of shared memory, which was never written",
    **BLOCK),
  wrong("uninitialised", "half_written", "byte (0|252) of shared memory", **BLOCK),
  wrong("uninitialised", "of_the_block_before", r"block \(1,0,0\)", block=32, grid=(2, 1, 1),
    smem=512),
  wrong("pdl", "write_before_grid_wait", "write of tensor 'y' before grid_wait", block=32,
    pdl=True),
]  # fmt: skip

CORRECT = [
  body("neighbour_bytes", parameters=HALVES, **BLOCK),
  body("after_grid_wait", block=64, pdl=True),
  body("reads_what_is_written", "ptx::grid_wait(); y[ptx::thread()] = t[ptx::thread()];",
    parameters="const float* t, float* y", block=64, pdl=True),
  body("reads_too_early", "float v = t[ptx::thread()]; ptx::grid_wait(); y[ptx::thread()] = v;",
    parameters="const float* t, float* y", block=64, pdl=True),
  body("waits_first", "ptx::grid_wait(); ptx::grid_trigger(); t[ptx::thread()] = 1;",
    parameters="float* t", block=64, pdl=True),
  body("triggers_first", "ptx::grid_trigger(); ptx::grid_wait(); t[ptx::thread()] = 1;",
    parameters="float* t", block=64, pdl=True),
  body("reads_h_ahead", "auto v = h[ptx::thread()]; ptx::grid_wait(); y[ptx::thread()] = v;",
    parameters="const unsigned short* h, float* y", block=64, pdl=True),
  body("writes_t", "t[ptx::thread()] = x[ptx::thread()];", parameters="const float* x, float* t",
    block=64),
  body("copies_two", "ptx::st_f32(y + ptx::thread(), ptx::ld_f32(t + ptx::thread()));",
    parameters="const float* t, float* y", block=2),
]  # fmt: skip
KERNELS = [case.source for case in WRONG] + CORRECT


def tensors():
  return {
    "x": normal(64),
    "y": np.zeros(256, np.float32),
    "t": np.zeros(64, np.float32),
    "h": np.arange(64, dtype=np.uint16),
    "o": np.zeros(128, np.uint16),
    "count": np.zeros(1, np.uint32),
  }


@pytest.mark.parametrize("name", [case.source.name for case in WRONG])
def test_found(run, name):
  assert_wrong(run, WRONG, name, **tensors())


def go(run, *names):
  given = tensors()
  args = {a for kernel in KERNELS if kernel.name in names for a in kernel.args}
  run(*names, **{a: given[a] for a in args})
  return given


def test_bytes_have_their_own_histories(run):
  o = go(run, "neighbour_bytes")["o"]
  np.testing.assert_array_equal(o[:64], 2 * np.arange(63, -1, -1))


def test_dependent_launch(run):
  found = go(run, "after_grid_wait")
  np.testing.assert_array_equal(found["y"][:64], found["x"])
  found = go(run, "writes_t", "reads_what_is_written")
  np.testing.assert_array_equal(found["y"][:64], found["x"])
  go(run, "reads_too_early")  # nobody before it writes t
  with pytest.raises(EmulationError, match="read of tensor 't' before grid_wait") as caught:
    go(run, "writes_t", "reads_too_early")
  assert caught.value.kind == "pdl"


def test_dependent_launch_in_runs_of_one_kernel(module):
  early = [kernel.name for kernel in KERNELS].index("reads_too_early")
  with pytest.raises(EmulationError, match="read of tensor 't' before grid_wait"):
    module.run(tensors(), [early], written_before=["t", "of no kernel here"])


def test_who_triggers_behind_its_wait_is_the_only_one_still_running(module):
  waits, triggers, reads, too_early = (
    [kernel.name for kernel in KERNELS].index(name)
    for name in ("waits_first", "triggers_first", "reads_h_ahead", "reads_too_early")
  )
  module.run(tensors(), [waits, triggers, reads, reads], written_before=["h"])
  for chain in ([triggers, reads], [reads]):
    with pytest.raises(EmulationError, match="read of tensor 'h' before grid_wait"):
      module.run(tensors(), chain, written_before=["h"])
  with pytest.raises(EmulationError, match="read of tensor 't' before grid_wait"):
    module.run(tensors(), [waits, too_early])
  with pytest.raises(EmulationError, match="read of tensor 't' before grid_wait"):
    module.run(tensors(), [waits, triggers, too_early])


def test_reads_of_uninitialised_tensors():
  module = compile_kernels(KERNELS)
  names = [kernel.name for kernel in KERNELS]
  copy, write = names.index("copies_two"), names.index("writes_t")
  given = tensors()
  module.run(given, [copy])
  module.run(given, [write, copy], uninitialised=("t", "y"))
  with pytest.raises(EmulationError, match="byte 0 of tensor 't', which was never") as caught:
    module.run(given, [copy], uninitialised=("t",))
  assert caught.value.kind == "uninitialised"


def test_without_checks_races_run():
  module = compile_kernels(KERNELS, checks=False)
  given = tensors()
  module.run(given, [[kernel.name for kernel in KERNELS].index("write_and_read")])
  assert set(given["y"][32:64]) == {1, 2}  # what the other warp had written by then
