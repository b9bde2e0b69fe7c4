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
START = "int i = ptx::thread(); float* s = ptx::smem<float>();"

WRONG = [
    wrong("race", "write_and_read", f"""{START}
      s[i] = 1.0f;
      ptx::sync_block();
      if (ptx::warp())
        y[i] = s[63 - i];  // here
      else
        s[i] = 2.0f;  // there
    """, "data race: (read|write) of 4 bytes at byte [0-9]+ of shared memory, and nothing orders "
        "it after the (write|read) by thread [0-9]+", **BLOCK),
    wrong("race", "read_by_all_and_write", f"""{START}
      s[i] = 1.0f;
      ptx::sync_block();
      float sum = 0;
      if (i != 17)
        sum = s[0];  // there
      else
        s[0] = 2.0f;  // here
      y[i] = sum;
    """, "", **BLOCK),
    wrong("race", "same_value", """
      if (ptx::lane() == 0) ptx::smem<float>()[0] = 1.0f;  // here
    """, "write of 4 bytes at byte 0 .* after the write by thread (0|32)", **BLOCK),
    wrong("race", "shuffles_order_nothing", f"""{START}
      s[i] = 1.0f;
      float v = ptx::shfl(1.0f, 0);
      y[i] = s[i ^ 1] + v;  // here
    """, "", block=32, smem=512),
    wrong("race", "warp_barrier_is_too_small", f"""{START}
      s[i] = 0.0f;
      ptx::sync_block();
      if (ptx::warp()) s[i] = 1.0f;  // there
      ptx::sync_warp();
      if (!ptx::warp()) y[i] = s[i ^ 32];  // here
    """, "data race", **BLOCK),
    wrong("race", "arrival_does_not_acquire", f"""{START}
      s[i] = 0.0f;
      ptx::sync_block();
      if (ptx::warp()) {{
        s[i] = 1.0f;
        ptx::bar_sync(3, 64);
      }} else {{
        ptx::bar_arrive(3, 64);
        y[i] = s[i + 32];
      }}
    """, "", **BLOCK),
    wrong("race", "half_word", """
      unsigned short* s = ptx::smem<unsigned short>();
      s[ptx::thread()] = 1;
      o[ptx::thread()] = s[ptx::thread()];
      ptx::sync_warp();
      if (ptx::thread() == 8) s[40] = 2;
    """, r"write of 2 bytes at byte (80|81) of shared memory", parameters=HALVES, **BLOCK),
    wrong("race", "word_over_halves", """
      unsigned short* s = ptx::smem<unsigned short>();
      s[ptx::thread()] = 1;
      ptx::sync_warp();
      if (ptx::thread())
        s[1] = 2;  // there
      else
        o[0] = ptx::smem<unsigned>()[0];  // here
    """, "", parameters=HALVES, block=2, smem=512),
    wrong("race", "blocks_write_one_place", "ptx::st_f32(y, x[0]);  // here",
        "byte 0 of tensor 'y', .* the write by", **GRID),
    wrong("race", "block_reads_what_another_wrote", """
      if (ptx::block_x() == 0) ptx::st_f32(y + ptx::thread(), 1.0f);  // there
      if (ptx::block_x() == 3 && ptx::ld_f32(y) > 0) y[64] = 1.0f;  // here
    """, r"the write by block \(0,0,0\), thread 0", **GRID),
    wrong("race", "count_without_release", """
      ptx::st_f32(y + ptx::block_x(), 1.0f);  // there
      ptx::sync_block();
      if (ptx::atom_add_u32<ptx::Order::Acquire>(count, 1) == 3) y[10] = ptx::ld_f32(y);  // here
    """, "", parameters=COUNTER, block=1, grid=(4, 1, 1)),
    wrong("race", "count_without_acquire", """
      ptx::st_f32(y + ptx::block_x(), 1.0f);
      if (ptx::atom_add_u32<ptx::Order::Release>(count, 1) == 3) y[10] = ptx::ld_f32(y);  // here
    """, "", parameters=COUNTER, block=1, grid=(4, 1, 1)),
    wrong("race", "fence_of_the_block", """
      ptx::st_f32(y + ptx::block_x(), 1.0f);
      ptx::fence_cta();
      bool last = ptx::atom_add_u32<ptx::Order::Relaxed>(count, 1) == 3;
      ptx::fence_gpu();
      if (last) y[10] = ptx::ld_f32(y);  // here
    """, "", parameters=COUNTER, block=1, grid=(4, 1, 1)),
    wrong("race", "atomic_and_plain", """
      if (ptx::block_x() == 1) count[0] = 0;  // here
      ptx::atom_add_u32<ptx::Order::AcqRel>(count, 1);  // there
    """, "", parameters=COUNTER, block=1, grid=(2, 1, 1)),
    wrong("race", "remote_before_start", """
      ptx::dsmem_st(ptx::smem<float>() + ptx::thread(), ptx::cluster_rank() ^ 1, 1.0f);  // here
      ptx::cluster_sync();
    """, "may not have started: a cluster barrier comes first", **CLUSTER),
    wrong("race", "remote_read", f"""{START}
      s[i] = 1.0f;
      ptx::cluster_sync();
      s[i] = 2.0f;
      float v = ptx::dsmem_ld(s + i, ptx::cluster_rank() ^ 1);
      ptx::cluster_sync();
      y[ptx::block_x() * 32 + i] = v;
    """, r"block [01]'s shared memory.* the write by block|of shared memory.* the read by block",
        **CLUSTER),
    wrong("exit", "no_final_barrier", f"""{START}
      s[i] = 1.0f;
      ptx::cluster_sync();
      y[ptx::block_x() * 32 + i] = ptx::dsmem_ld(s + i, ptx::cluster_rank() ^ 1);  // here
    """, "block [01] of the cluster may exit before|which has exited", **CLUSTER),
    wrong("exit", "read_of_an_exited_block", f"""{START}
      s[i] = 1.0f;
      ptx::cluster_sync();
      if (ptx::cluster_rank()) {{
        for (int n = 0; n < 40; ++n) ptx::sync_block();
        ptx::dsmem_ld(s + i, 0);  // here
      }}
    """, "read of the shared memory of block 0 of the cluster, which has exited", **CLUSTER),
    wrong("uninitialised", "never_written", f"""{START}
      if (i != 5) s[i] = 1.0f;
      y[i] = s[i];  // here
    """, "thread 5, .*: read of 4 bytes at byte 20 of shared memory, which was never written",
        **BLOCK),
    wrong("uninitialised", "half_written", """
      reinterpret_cast<unsigned short*>(ptx::smem<float>())[ptx::thread() * 2 + 1] = 1;
      y[ptx::thread()] = ptx::smem<float>()[ptx::thread()];  // here
    """, "byte (0|252) of shared memory", **BLOCK),
    wrong("uninitialised", "of_the_block_before", f"""{START}
      if (ptx::block_x() == 0) s[i] = 1.0f;
      y[ptx::block_x() * 32 + i] = s[i];  // here
    """, r"block \(1,0,0\)", block=32, grid=(2, 1, 1), smem=512),
    wrong("pdl", "write_before_grid_wait", """
      y[ptx::thread()] = 1.0f;  // here
      ptx::grid_wait();
    """, "write of tensor 'y' before grid_wait", block=32, pdl=True),
]  # fmt: skip

CORRECT = [
    body("neighbour_bytes", """
      unsigned short* s = ptx::smem<unsigned short>();
      unsigned char* b = ptx::smem<unsigned char>() + 256;
      int i = ptx::thread();
      s[i] = h[i];
      b[i] = static_cast<unsigned char>(i);
      ptx::st_u16(o + 64 + i, s[i]);
      ptx::sync_block();
      ptx::st_u16(o + i, static_cast<unsigned short>(s[63 - i] + b[63 - i]));
      unsigned both = ptx::smem<unsigned>()[i / 2];
      ptx::sync_block();
      if (i % 2 == 0) ptx::smem<unsigned>()[i / 2] = both;
    """, parameters=HALVES, **BLOCK),
    body("after_grid_wait", """
      float v = x[ptx::thread()];
      if (ptx::warp() == 0) ptx::grid_wait();
      ptx::sync_block();
      y[ptx::thread()] = v;
    """, block=64, pdl=True),
    body("reads_what_is_written", "ptx::grid_wait(); y[ptx::thread()] = t[ptx::thread()];",
        parameters="const float* t, float* y", block=64, pdl=True),
    body("reads_too_early", "float v = t[ptx::thread()]; ptx::grid_wait(); y[ptx::thread()] = v;",
        parameters="const float* t, float* y", block=64, pdl=True),
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
