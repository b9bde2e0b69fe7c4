"""mbarriers: their rules, phases and counts, and who knows what after a wait."""

import numpy as np
import pytest

from tests.emulator.kernels import assert_wrong, body, normal, wrong

BLOCK = {"block": 64, "smem": 1024}
PAIR = {"block": 32, "grid": (2, 1, 1), "cluster": 2, "smem": 1024}

WRONG = [
  wrong("barrier", "never_initialised",
    "wait: no mbarrier was initialised at byte 512 of the shared memory of block 0", **BLOCK),
  wrong("race", "init_not_synchronised", block=32, smem=1024),
  wrong("barrier", "init_twice", "byte 512 already holds an mbarrier", block=1, smem=1024),
  wrong("barrier", "used_after_inval", "no mbarrier was initialised", block=1, smem=1024),
  wrong("misuse", "count_of_zero", "0 arrivals", block=1, smem=1024),
  wrong("misuse", "parity_of_two", "parity of a phase is 0 or 1, not 2", **BLOCK),
  wrong("misaligned", "odd_place", "shared write of 8 bytes at 0x4", block=1, smem=1024),
  wrong("barrier", "one_arrival_too_many",
    "one arrival too many; mbarrier at byte 512: phase 0, 64 of 64 arrivals, 16 bytes to come",
    **BLOCK),
  wrong("deadlock", "one_arrival_too_few",
    r"threads 0-63 wait at wait, line .* \(mbarrier at byte 512: phase 0, 63 of 64 arrivals, "
    r"0 bytes to come\)", **BLOCK),
  wrong("deadlock", "bytes_that_never_come", r"phase 0, 1 of 1 arrivals, 64 bytes to come",
    **BLOCK),
  wrong("deadlock", "a_phase_too_far", "phase 1, 0 of 64 arrivals", **BLOCK),
  wrong("deadlock", "polls_for_ever", "threads 0-63 wait at mbarrier_try_wait", **BLOCK),
  wrong("barrier", "too_many_bytes_expected", "1048576 bytes, more than", block=1, smem=1024),
  wrong("race", "arrived_before_the_write", **BLOCK),
  wrong("race", "stale_parity", **BLOCK),
  wrong("out_of_bounds", "arrive_at_no_block", "cluster rank 2", **PAIR),
  wrong("exit", "remote_arrival_unseen", "block 0 of the cluster", **PAIR),
]  # fmt: skip

CORRECT = [
  body("reused_memory", **BLOCK),
]  # fmt: skip
KERNELS = [case.source for case in WRONG] + CORRECT


@pytest.mark.parametrize("name", [case.source.name for case in WRONG])
def test_found(run, name):
  assert_wrong(run, WRONG, name, x=normal(64), y=np.zeros(320, np.float32))


def test_memory_after_inval(run):
  x, y = normal(64), np.zeros(320, np.float32)
  run("reused_memory", x=x, y=y)
  np.testing.assert_array_equal(y[:192].reshape(3, 64), x[::-1] * np.arange(3, dtype="f4")[:, None])
