"""Kernels that must fail without any race: bounds, alignment, divergence, deadlocks, faults."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mirage_onnx.emulator import KINDS, EmulationError, compile_kernels
from tests.emulator.kernels import FIRST_OF_TWO, assert_wrong, body, normal, wrong

TWO = {"block": 64, "grid": (2, 1, 1), "smem": 256}
PAIR = {**TWO, "cluster": 2}

WRONG = [
  wrong("deadlock", "missing_warp",
    r"block \(0,0,0\) threads 0-31 wait at sync_block, line \d+ `ptx::sync_block\(\);  // here"
    r"` \(32 of 64 arrived\); block \(0,0,0\) threads 32-63 exited", **TWO),
  wrong("deadlock", "missing_lane",
    r"thread 9 waits at sync_block.*; .*threads 10-31 wait at shfl_xor.*"
    r"\(31 of 32 lanes arrived\)", **TWO),
  wrong("diverged", "diverged",
    r"block \(0,0,0\), thread (3|35), line .*: diverged warp: this lane is at sync_warp .* "
    "waits at shfl", **TWO),
  wrong("deadlock", "missing_block",
    r"threads 32-63 wait at sync_block.*block \(1,0,0\) threads 0-63 wait at cluster_wait.*"
    r"\(32 threads missing\)", **PAIR),
  wrong("barrier", "wait_first", "without cluster_arrive", text="ptx::cluster_wait();  // here",
    **PAIR),
  wrong("barrier", "arrive_twice", "twice without cluster_wait",
    text="ptx::cluster_arrive(); ptx::cluster_arrive();", **PAIR),
  wrong("barrier", "counts_differ", r"barrier 2 of (96|64) threads, but others came for (96|64)",
    block=96),
  wrong("misuse", "no_such_barrier", "barrier 16 does not exist", text="ptx::bar_sync(16, 64);",
    **TWO),
  wrong("misuse", "half_a_warp", "48 threads are not whole warps", text="ptx::bar_sync(1, 48);",
    **TWO),
  wrong("misuse", "too_many", "96 threads in a block of 64", text="ptx::bar_arrive(1, 96);",
    **TWO),
  wrong("out_of_bounds", "read_past_the_end",
    r"block \(1,0,0\), thread 3, line .*: out-of-bounds read of 4 bytes: byte 256 of tensor "
    "'x', which has 256", **TWO),
  wrong("out_of_bounds", "write_before",
    "thread 5, line .*: out-of-bounds write of 16 bytes: byte -16 of tensor 'y'", **TWO),
  wrong("out_of_bounds", "vector_past", "byte 512 of tensor 'y'", text="ptx::ld_v2(y + 128);",
    **TWO),
  wrong("read_only", "const_pointer", r"write of 4 bytes to the read-only tensor 'x' \(byte 0\)",
    text="ptx::st_f32(const_cast<float*>(x), 0.0f);  // here", **TWO),
  wrong("read_only", "plain_const", text="const_cast<float*>(x)[ptx::thread()] = 0.0f;  // here",
    **TWO),
  wrong("misaligned", "vector", "misaligned global read of 16 bytes", text="ptx::ld_v4(x + 1);",
    **TWO),
  wrong("misaligned", "pair", "global write of 8 bytes", text="ptx::st_v2(y + 1, {0, 0});",
    **TWO),
  wrong("misaligned", "plain_vector", "thread 0, .*: misaligned shared write of 16 bytes at 0x4",
    **TWO),
  wrong("out_of_bounds", "no_such_rank", "cluster rank 2 in a cluster of 2", **PAIR),
  wrong("out_of_bounds", "remote_past", "out-of-bounds shared read of 4 bytes at byte 256 of 256",
    text="ptx::dsmem_ld(ptx::smem<float>() + 64, 0);", **PAIR),
  wrong("out_of_bounds", "plain_past", "write of 4 bytes: byte 520 of tensor 'y', which has 512",
    text="if (ptx::thread() == 0) y[130] = 1.0f;  // here", **TWO),
  wrong("out_of_bounds", "null", r"thread (0|63), .*at 0x0: no tensor of this kernel is there",
    text="float* volatile p = nullptr; *p = 1.0f;  // here", **TWO),
  wrong("out_of_bounds", "shared_past", r"shared write of 4 bytes at byte (256|508) of 256",
    text="ptx::smem<float>()[64 + ptx::thread()] = 1.0f;  // here", **TWO),
  wrong("out_of_bounds", "shared_before", "shared write of 4 bytes at byte -(4|256) of 256",
    **TWO),
  wrong("fault", "division", r"arithmetic fault \(integer division by zero\)", **TWO),
  wrong("fault", "trap", r"thread 7, .*: trap", text="if (ptx::thread() == 7) __builtin_trap();",
    **TWO),
  wrong("fault", "stack", "stack of 65536 bytes is full", **TWO),
  wrong("timeout", "endless", "no end after 1 s of CPU time",
    text='while (true) { asm volatile(""); }  // here', **TWO),
]  # fmt: skip
KERNELS = [FIRST_OF_TWO, *(case.source for case in WRONG)]

# What is still noticed without records of memory.
UNCHECKED = {
  "missing_lane": ("deadlock", r"\(31 of 32 lanes arrived\)"),
  "read_past_the_end": ("out_of_bounds", "byte 256 of tensor 'x'"),
  "plain_past": ("out_of_bounds", "plain store wrote outside tensor 'y', at its byte 520 of 512"),
  "null": ("fault", r"wild access at 0x0$"),
  "plain_far": ("fault", "wild access .* byte 20000 of tensor 'y', which has"),
  "shared_past": ("out_of_bounds", r"shared memory was written at byte 256 of 256"),
  "shared_far": ("fault", "wild access at .* byte 4096 of the 256 of shared memory"),
}
FAR = [
  body("plain_far", "y[5000] = 1.0f;", **TWO),
  body("shared_far", "ptx::smem<float>()[1024] = 1.0f;", **TWO),
]


@pytest.mark.parametrize("name", [case.source.name for case in WRONG])
def test_errors_come_back_as_exceptions(run, name):
  x, y = normal(64), np.zeros(128, np.float32)
  error = assert_wrong(run, WRONG, name, x=x, y=y)
  assert error.block is not None and error.thread is not None
  # The module still works after an error.
  t = np.zeros(32, np.float32)
  run("first_of_two", x=x[:32].copy(), t=t)
  np.testing.assert_array_equal(t, x[:32] * 2)


def test_without_checks_bounds_and_faults_are_noticed():
  kernels = [*KERNELS, *FAR]
  module = compile_kernels(kernels, checks=False)
  names = [kernel.name for kernel in kernels]
  for name, (kind, message) in UNCHECKED.items():
    with pytest.raises(EmulationError, match=message) as caught:
      module.run({"x": normal(64), "y": np.zeros(128, np.float32)}, [names.index(name)])
    assert caught.value.kind == kind


def test_every_kind_is_provoked():
  from tests.emulator import test_async, test_mbarriers, test_races

  found = {c.kind for t in (test_async, test_mbarriers, test_races) for c in t.WRONG}
  found |= {case.kind for case in WRONG}
  assert found | {"compile"} == set(KINDS)  # "compile": test_compilation.py


@pytest.mark.parametrize("mib", [0, 24, 128, 512, 3000])
def test_little_address_space_is_an_error_or_enough(mib):
  """However little is left, the kernel runs, or the launch says that there is no memory; nothing dies."""
  program = (
    "import resource, sys, numpy as np\n"
    "from mirage_onnx.emulator import EmulationError, compile_kernels\n"
    "from tests.emulator.kernels import FIRST_OF_TWO\n"
    "module = compile_kernels([FIRST_OF_TWO])\n"
    "used = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
    "resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20),) * 2)\n"
    "x, t = np.ones(32, np.float32), np.zeros(32, np.float32)\n"
    "for _ in range(2):\n"
    "  try:\n"
    "    module.run({'x': x, 't': t}, [0])\n"
    "    print('ran', t[0])\n"
    "  except (EmulationError, MemoryError) as error:\n"
    "    print('memory' in str(error), error)\n"
  )
  done = subprocess.run(
    [sys.executable, "-c", program, str(mib)],
    capture_output=True, text=True, cwd=Path(__file__).parents[2],
    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
  )  # fmt: skip
  lines = done.stdout.splitlines()
  assert (done.returncode, len(lines)) == (0, 2), done.stderr[-800:]
  assert all(line.startswith("ran 2.0" if mib == 3000 else ("ran 2.0", "True ")) for line in lines), lines
  assert mib > 24 or lines[0].startswith("True "), lines
