"""mbarriers: their rules, phases and counts, and who knows what after a wait."""

import numpy as np
import pytest

from tests.emulator.kernels import assert_wrong, body, normal, wrong

BLOCK = {"block": 64, "smem": 1024}
PAIR = {"block": 32, "grid": (2, 1, 1), "cluster": 2, "smem": 1024}
START = """
      int i = ptx::thread();
      float* s = ptx::smem<float>();
      ptx::U64* bar = reinterpret_cast<ptx::U64*>(s + 128);
"""


def init(count):
    return START + f"if (i == 0) ptx::mbarrier_init(bar, {count});\n ptx::sync_block();\n"


WRONG = [
    wrong("barrier", "never_initialised", START + "ptx::wait(bar, 0);  // here",
        "wait: no mbarrier was initialised at byte 512 of the shared memory of block 0", **BLOCK),
    wrong("race", "init_not_synchronised", START + """
      if (i == 0) ptx::mbarrier_init(bar, 32);  // there
      ptx::shfl(1.0f, 0);
      ptx::mbarrier_arrive(bar);  // here
    """, "", block=32, smem=1024),
    wrong("barrier", "init_twice", START + """
      ptx::mbarrier_init(bar, 1);
      ptx::mbarrier_init(bar, 1);  // here
    """, "byte 512 already holds an mbarrier", block=1, smem=1024),
    wrong("barrier", "used_after_inval", START + """
      ptx::mbarrier_init(bar, 1);
      ptx::mbarrier_inval(bar);
      ptx::mbarrier_arrive(bar);  // here
    """, "no mbarrier was initialised", block=1, smem=1024),
    wrong("misuse", "count_of_zero", START + "ptx::mbarrier_init(bar, 0);  // here", "0 arrivals",
        block=1, smem=1024),
    wrong("misuse", "parity_of_two", init(64) + """
      ptx::mbarrier_arrive(bar);
      ptx::wait(bar, 2);  // here
    """, "parity of a phase is 0 or 1, not 2", **BLOCK),
    wrong("misaligned", "odd_place", START + """
      ptx::mbarrier_init(reinterpret_cast<ptx::U64*>(s + 1), 1);  // here
    """, "shared write of 8 bytes at 0x4", block=1, smem=1024),
    wrong("barrier", "one_arrival_too_many", init(64) + """
      if (i == 0) ptx::mbarrier_expect_tx(bar, 16);
      ptx::mbarrier_arrive(bar);
      ptx::sync_block();
      if (i == 7) ptx::mbarrier_arrive(bar);  // here
    """, "one arrival too many; mbarrier at byte 512: phase 0, 64 of 64 arrivals, 16 bytes to come",
        **BLOCK),
    wrong("deadlock", "one_arrival_too_few", init(64) + """
      if (i) ptx::mbarrier_arrive(bar);
      ptx::wait(bar, 0);  // here
    """, r"threads 0-63 wait at wait, line .* \(mbarrier at byte 512: phase 0, 63 of 64 arrivals, "
        r"0 bytes to come\)", **BLOCK),
    wrong("deadlock", "bytes_that_never_come", init(1) + """
      if (i == 0) ptx::mbarrier_arrive_expect_tx(bar, 64);
      ptx::wait(bar, 0);  // here
    """, r"phase 0, 1 of 1 arrivals, 64 bytes to come", **BLOCK),
    wrong("deadlock", "a_phase_too_far", init(64) + """
      ptx::mbarrier_arrive(bar);
      ptx::wait(bar, 0);
      ptx::wait(bar, 1);  // here
    """, "phase 1, 0 of 64 arrivals", **BLOCK),
    wrong("deadlock", "polls_for_ever", init(65) + """
      ptx::mbarrier_arrive(bar);
      while (!ptx::mbarrier_try_wait(bar, 0)) {}  // here
    """, "threads 0-63 wait at mbarrier_try_wait", **BLOCK),
    wrong("barrier", "too_many_bytes_expected", init(1) + """
      ptx::mbarrier_expect_tx(bar, (1 << 20) - 1);
      ptx::mbarrier_expect_tx(bar, 1);  // here
    """, "1048576 bytes, more than", block=1, smem=1024),
    wrong("race", "arrived_before_the_write", init(32) + """
      if (ptx::warp() == 0) {
        ptx::mbarrier_arrive(bar);
        s[i] = 1.0f;  // there
      } else {
        ptx::wait(bar, 0);
        s[i - 32] = 2.0f;  // here
      }
    """, "", **BLOCK),
    wrong("race", "stale_parity", init(64) + """
      if (ptx::warp() == 0) {
        s[i] = 1.0f;  // there
        ptx::mbarrier_arrive(bar);
      } else {
        ptx::wait(bar, 1);  // the phase before the first: passes at once
        s[i - 32] = 2.0f;  // here
      }
    """, "", **BLOCK),
    wrong("out_of_bounds", "arrive_at_no_block", init(1) + """
      ptx::cluster_sync();
      ptx::mbarrier_arrive_remote(bar, 2);  // here
    """, "cluster rank 2", **PAIR),
    wrong("exit", "remote_arrival_unseen", init(64) + """
      ptx::cluster_sync();
      if (ptx::cluster_rank()) ptx::mbarrier_arrive_remote(bar, 0);  // here
    """, "block 0 of the cluster", **PAIR),
]  # fmt: skip

CORRECT = [
    body("reused_memory", START + """
      for (int n = 0; n < 3; ++n) {
        if (i == 0) ptx::mbarrier_init(bar, 64);
        ptx::sync_block();
        s[i] = x[i] * n;
        ptx::mbarrier_arrive(bar);
        ptx::wait(bar, 0);
        y[n * 64 + i] = s[63 - i];
        ptx::sync_block();
        if (i == 0) ptx::mbarrier_inval(bar);
        if (i == 0) *reinterpret_cast<float*>(bar) = 0.0f;
      }
    """, **BLOCK),
]  # fmt: skip
KERNELS = [case.source for case in WRONG] + CORRECT


@pytest.mark.parametrize("name", [case.source.name for case in WRONG])
def test_found(run, name):
    assert_wrong(run, WRONG, name, x=normal(64), y=np.zeros(320, np.float32))


def test_memory_after_inval(run):
    x, y = normal(64), np.zeros(320, np.float32)
    run("reused_memory", x=x, y=y)
    np.testing.assert_array_equal(
        y[:192].reshape(3, 64), x[::-1] * np.arange(3, dtype="f4")[:, None]
    )
