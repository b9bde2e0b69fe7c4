"""Asynchronous copies: what is there after which wait, and every use before it."""

import numpy as np
import pytest

from tests.emulator.kernels import assert_wrong, body, normal, wrong

BLOCK = {"block": 64, "smem": 2048}
PAIR = {"block": 32, "grid": (2, 1, 1), "cluster": 2, "smem": 1024}
START = """
      int i = ptx::thread();
      float* s = ptx::smem<float>();
      unsigned* words = ptx::smem<unsigned>();
      ptx::U64* bar = reinterpret_cast<ptx::U64*>(s + 128);
"""
INIT = """
      if (i == 0) {
        ptx::mbarrier_init(bar, 1);
        ptx::fence_mbarrier_init();
      }
"""

FENCED = (
    START
    + """
      s[i] = x[i];
      ptx::fence_proxy_async();
      ptx::sync_block();
"""
)

WRONG = [
    wrong("in_flight", "no_wait", START + """
      ptx::cp_async_16(s + i * 4, x + i * 4);  // there
      ptx::cp_async_commit();
      y[i] = s[i * 4];  // here
    """, "use of an asynchronous result before its wait: read of 4 bytes at byte (0|1008) ",
        **BLOCK),
    wrong("in_flight", "no_commit", START + """
      ptx::cp_async_4(s + i, x + i);
      ptx::cp_async_wait<0>();
      y[i] = s[i];  // here
    """, "", **BLOCK),
    wrong("in_flight", "one_group_too_few", START + """
      for (int n = 0; n < 2; ++n) {
        ptx::cp_async_8(s + n * 128 + i * 2, x + n * 128 + i * 2);
        ptx::cp_async_commit();
      }
      ptx::cp_async_wait<1>();
      y[i] = s[i * 2];
      y[i] = s[128 + i * 2];  // here
    """, "", **BLOCK),
    wrong("in_flight", "overwritten", START + """
      ptx::cp_async_16(s + i * 4, x + i * 4);
      s[i * 4 + 3] = 0.0f;  // here
    """, "write of 4 bytes", **BLOCK),
    wrong("in_flight", "left_behind", START + """
      ptx::cp_async_16(s + i * 4, x + i * 4);  // here
      ptx::cp_async_commit();
    """, "exits with a cp_async that was not waited for", **BLOCK),
    wrong("race", "no_barrier_after_wait", START + """
      for (int k = 0; k < 4; ++k) s[i * 4 + k] = 0.0f;
      ptx::sync_block();
      ptx::cp_async_16(s + i * 4, x + i * 4);  // there
      ptx::cp_async_wait_all();
      y[i] = s[252 - i * 4];  // here
    """, "", **BLOCK),
    wrong("race", "copy_over_what_is_read", START + """
      s[i] = 1.0f;
      ptx::sync_block();
      y[i] = s[63 - i];  // there
      ptx::cp_async_4(s + i, x + i);  // here
      ptx::cp_async_wait_all();
    """, "", **BLOCK),
    wrong("out_of_bounds", "copy_past_the_end", START + """
      ptx::cp_async_16(s + i * 4, x + i * 4 + 4);  // here
      ptx::cp_async_wait_all();
    """, "byte 1024 of tensor 'x', which has 1024", **BLOCK),
    wrong("misaligned", "odd_source", START + "ptx::cp_async_16(s, x + i + 1);  // here",
        "global read of 16 bytes", block=1, smem=64),
    wrong("misaligned", "odd_target", START + "ptx::cp_async_8(s + 1, x);  // here",
        "shared write of 8 bytes", block=1, smem=64),
    wrong("misuse", "too_many_bytes", START + "ptx::cp_async_16_zfill(s, x, 17);  // here",
        "16 bytes, 17 from memory", block=1, smem=64),
    wrong("misaligned", "odd_size", START + INIT + "ptx::bulk_load(s, x, 24, bar);  // here",
        "24 bytes: a multiple of 16", block=1, smem=2048),
    wrong("in_flight", "bulk_no_wait", START + INIT + """
      ptx::sync_block();
      if (i == 0) {
        ptx::mbarrier_arrive_expect_tx(bar, 256);
        ptx::bulk_load(s, x, 256, bar);  // there
      }
      ptx::sync_block();
      y[i] = s[i];  // here
    """, "", **BLOCK),
    wrong("in_flight", "bulk_nothing_expected", START + INIT + """
      ptx::sync_block();
      if (i == 0) {
        ptx::mbarrier_arrive(bar);
        ptx::bulk_load(s, x, 256, bar);
      }
      ptx::wait(bar, 0);
      y[i] = s[i];  // here
    """, "", **BLOCK),
    wrong("in_flight", "waits_for_another", START + """
      if (i == 0) {
        ptx::mbarrier_init(bar, 1);
        ptx::mbarrier_init(bar + 1, 1);
        ptx::fence_mbarrier_init();
      }
      ptx::sync_block();
      if (i == 0) {
        ptx::mbarrier_arrive_expect_tx(bar, 128);
        ptx::bulk_load(s, x, 128, bar);
        ptx::mbarrier_arrive(bar + 1);
      }
      ptx::wait(bar + 1, 0);
      if (i < 32) y[i] = s[i];  // here
      ptx::wait(bar, 0);
    """, "", **BLOCK),
    wrong("in_flight", "no_wait_in_its_second_life", START + """
      for (int n = 0; n < 2; ++n) {
        if (i == 0) {
          ptx::mbarrier_init(bar, 1);
          ptx::fence_mbarrier_init();
          ptx::mbarrier_arrive_expect_tx(bar, 256);
          ptx::bulk_load(s + n * 64, x, 256, bar);
        }
        ptx::sync_block();
        if (n == 0 || i) ptx::wait(bar, 0);
        y[i] = s[n * 64 + i];  // here
        ptx::sync_block();
        if (i == 0) ptx::mbarrier_inval(bar);
      }
    """, "thread 0", **BLOCK),
    wrong("proxy", "unfenced_init", START + """
      if (i == 0) ptx::mbarrier_init(bar, 1);
      ptx::sync_block();
      if (i == 0) {
        ptx::mbarrier_arrive_expect_tx(bar, 256);
        ptx::bulk_load(s, x, 256, bar);  // here
      }
      ptx::wait(bar, 0);
    """, "may not see the mbarrier at byte 512", **BLOCK),
    wrong("proxy", "unfenced_store", START + """
      s[i] = x[i];  // there
      ptx::sync_block();
      if (i == 0) {
        ptx::bulk_store(y, s, 256);  // here
        ptx::bulk_commit();
        ptx::bulk_wait<0>();
      }
    """, "no fence_proxy_async follows its write by", **BLOCK),
    wrong("in_flight", "source_written_early", FENCED + """
      if (i == 0) {
        ptx::bulk_store(y, s, 256);  // there
        ptx::bulk_commit();
        s[1] = 2.0f;  // here
        ptx::bulk_wait<0>();
      }
    """, "may not have read yet", **BLOCK),
    wrong("in_flight", "target_read_early", FENCED + """
      if (i == 0) {
        ptx::bulk_store(y, s, 256);  // there
        ptx::bulk_commit();
        ptx::bulk_wait_read<0>();
        s[0] = ptx::ld_f32(y);  // here
        ptx::bulk_wait<0>();
      }
    """, "before its wait", **BLOCK),
    wrong("exit", "store_left_behind", FENCED + """
      if (i == 0) ptx::bulk_store(y, s, 256);  // here
      ptx::bulk_commit();
    """, "bulk_wait_read come", **BLOCK),
    wrong("exit", "load_left_behind", START + INIT + """
      ptx::sync_block();
      if (i == 0) ptx::mbarrier_expect_tx(bar, 256);
      if (i == 0) ptx::bulk_load(s, x, 256, bar);  // here
    """, "exits while this copy may still use its shared memory", **BLOCK),
    wrong("exit", "target_block_exits", START + INIT + """
      ptx::cluster_sync();
      if (i == 0 && ptx::cluster_rank() == 0) {
        ptx::mbarrier_arrive_expect_tx(bar, 256);
        ptx::bulk_load_multicast(s, x, 256, bar, 3);  // here
      }
      if (ptx::cluster_rank() == 0) ptx::wait(bar, 0);
    """, "block 1 of the cluster exits while this copy|block 1 of the cluster, which has exited",
        **PAIR),
    wrong("race", "source_changes", START + """
      if (i == 32) {
        ptx::cp_async_4(s, t);  // there
        ptx::cp_async_commit();
      }
      ptx::sync_block();
      if (i == 0) ptx::st_f32(t, 1.0f);  // here
      ptx::sync_warp();
      if (i == 32) ptx::cp_async_wait<0>();
    """, "", parameters="float* t", **BLOCK),
]  # fmt: skip

CORRECT = [
    body("ring", START + """
      for (int n = 0; n < 6; ++n) {  // two stages ahead of their use, in three buffers
        if (n == 0)
          for (int k = 0; k < 2; ++k) {
            ptx::cp_async_4(s + k * 64 + i, x + k * 32 + i);
            ptx::cp_async_commit();
          }
        ptx::cp_async_wait<1>();
        ptx::sync_block();
        if (n < 4) ptx::cp_async_4(s + (n + 2) % 3 * 64 + i, x + (n + 2) * 32 + i);
        ptx::cp_async_commit();
        y[n * 64 + i] = s[n % 3 * 64 + 63 - i];
      }
      ptx::cp_async_wait_all();
    """, **BLOCK),
    body("bulk_ring", START + """
      float* stage = s + 160;
      if (i == 0) {
        for (int k = 0; k < 4; ++k) ptx::mbarrier_init(bar + k, k < 2 ? 1 : 32);
        ptx::fence_mbarrier_init();
      }
      ptx::sync_block();
      if (i == 32)
        for (int n = 0; n < 5; ++n) {
          ptx::wait(bar + 2 + n % 2, (n / 2 + 1) & 1);
          ptx::mbarrier_arrive_expect_tx(bar + n % 2, 128);
          ptx::bulk_load(stage + n % 2 * 32, x + n * 32, 128, bar + n % 2);
        }
      if (i < 32)
        for (int n = 0; n < 5; ++n) {
          while (!ptx::mbarrier_try_wait(bar + n % 2, n / 2 & 1)) {}
          y[n * 32 + i] = stage[n % 2 * 32 + 31 - i];
          ptx::mbarrier_arrive(bar + 2 + n % 2);
        }
    """, **BLOCK),
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


def test_bulk_stages_of_a_ring(run):
    x, y = results(run, "bulk_ring")
    np.testing.assert_array_equal(y[:160].reshape(5, 32), x[:160].reshape(5, 32)[:, ::-1])
