"""Asynchronous copies: what is there after which wait, and every use before it."""

import numpy as np
import pytest

from tests.emulator.kernels import assert_wrong, body, normal, wrong

BLOCK = {"block": 64, "smem": 2048}
PAIR = {"block": 32, "grid": (2, 1, 1), "cluster": 2, "smem": 1024}

#: A warp copies; a thread of the other has the copy engine store what has come.
COPIED = """
  float* s = ptx::smem<float>();
  ptx::U64* bar = ptx::smem<ptx::U64>() + 128;
  if (ptx::thread() == 0) ptx::mbarrier_init(bar, 32);
  ptx::sync_block();
  if (ptx::warp() == 1) {
    ptx::cp_async_16(s + ptx::lane() * 4, x + ptx::lane() * 4);
    ptx::cp_async_mbarrier_arrive(bar);
  }
  if (ptx::thread() == 0) {
    ptx::wait(bar, 0);
    FENCE
    ptx::bulk_store(y, s, 512);  // here
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
"""

WRONG = [
  wrong("in_flight", "no_wait",
    "use of an asynchronous result before its wait: read of 4 bytes at byte (0|1008) ",
    **BLOCK),
  wrong("in_flight", "no_commit", **BLOCK),
  wrong("in_flight", "one_group_too_few", **BLOCK),
  wrong("in_flight", "overwritten", "write of 4 bytes", **BLOCK),
  wrong("in_flight", "left_behind", "exits with a cp_async that was not waited for", **BLOCK),
  wrong("race", "no_barrier_after_wait", **BLOCK),
  wrong("race", "copy_over_what_is_read", **BLOCK),
  wrong("out_of_bounds", "copy_past_the_end", "byte 1024 of tensor 'x', which has 1024", **BLOCK),
  wrong("misaligned", "odd_source", "global read of 16 bytes", block=1, smem=64),
  wrong("misaligned", "odd_target", "shared write of 8 bytes", block=1, smem=64),
  wrong("misuse", "too_many_bytes", "16 bytes, 17 from memory", block=1, smem=64),
  wrong("misaligned", "odd_size", "24 bytes: a multiple of 16", block=1, smem=2048),
  wrong("in_flight", "bulk_no_wait", **BLOCK),
  wrong("in_flight", "bulk_nothing_expected", **BLOCK),
  wrong("in_flight", "waits_for_another", **BLOCK),
  wrong("in_flight", "no_wait_in_its_second_life", "thread 0", **BLOCK),
  wrong("proxy", "unfenced_init", "may not see the mbarrier at byte 512", **BLOCK),
  wrong("proxy", "unfenced_store", "no fence_proxy_async follows its write by", **BLOCK),
  wrong("proxy", "unfenced_copy", "no fence_proxy_async follows its write by",
    text=COPIED.replace("FENCE", ""), **BLOCK),
  wrong("in_flight", "source_written_early", "may not have read yet", **BLOCK),
  wrong("in_flight", "target_read_early", "before its wait", **BLOCK),
  wrong("exit", "store_left_behind", "bulk_wait_read come", **BLOCK),
  wrong("exit", "load_left_behind", "exits while this copy may still use its shared memory",
    **BLOCK),
  wrong("exit", "target_block_exits",
    "block 1 of the cluster exits while this copy|block 1 of the cluster, which has exited",
    **PAIR),
  wrong("race", "source_changes", parameters="float* t", **BLOCK),
]  # fmt: skip

#: A warp copies for the other; what the first barrier says is there, whether the second has said so or not.
TWO_ARRIVALS = """
  float* s = ptx::smem<float>();
  ptx::U64* bars = ptx::smem<ptx::U64>() + 128;
  if (ptx::thread() == 0) {
    ptx::mbarrier_init(bars, 32);
    ptx::mbarrier_init(bars + 1, 32);
  }
  ptx::sync_block();
  const int lane = ptx::lane();
  if (ptx::warp() == 1) {
    ptx::cp_async_16(s + lane * 4, x + lane * 4);
    ptx::cp_async_mbarrier_arrive(bars);
    ptx::cp_async_16(s + 128 + lane * 4, x + 128 + lane * 4);
    ptx::cp_async_mbarrier_arrive(bars + 1);
  } else {
    ptx::wait(bars, 0);
    y[lane] = s[127 - lane];
    ptx::wait(bars + 1, 0);
    y[32 + lane] = s[255 - lane];
  }
"""

CORRECT = [
  body("fenced_copy", COPIED.replace("FENCE", "ptx::fence_proxy_async();"), **BLOCK),
  body("ring", **BLOCK),
  body("two_arrivals", TWO_ARRIVALS, **BLOCK),
  body("bulk_ring", **BLOCK),
]  # fmt: skip
KERNELS = [case.source for case in WRONG] + CORRECT


def tensors():
  return {"x": normal(256), "y": np.zeros(512, np.float32), "t": np.ones(4, np.float32)}


@pytest.mark.parametrize("name", [case.source.name for case in WRONG])
def test_found(run, name):
  assert_wrong(run, WRONG, name, **tensors())


def results(run, name):
  given = tensors()
  run(name, x=given["x"], y=given["y"])
  return given["x"], given["y"]


def test_stages_of_a_ring(run):
  x, y = results(run, "ring")
  want = np.stack([x[n * 32 : n * 32 + 64][::-1] for n in range(6)])
  np.testing.assert_array_equal(y[:384].reshape(6, 64), want)


def test_arrivals_of_a_thread_come_in_their_order(run):
  x, y = results(run, "two_arrivals")
  np.testing.assert_array_equal(y[:64], np.concatenate([x[96:128][::-1], x[224:][::-1]]))


def test_what_threads_have_copied_is_stored(run):
  x, y = results(run, "fenced_copy")
  np.testing.assert_array_equal(y[:128], x[:128])


def test_bulk_stages_of_a_ring(run):
  x, y = results(run, "bulk_ring")
  np.testing.assert_array_equal(y[:160].reshape(5, 32), x[:160].reshape(5, 32)[:, ::-1])
