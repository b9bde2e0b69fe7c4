"""Global, shared and local memory of the emulator, and whole kernels that use them."""

import time

import numpy as np
import pytest

from mirage_onnx import emulator
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import EmulationError
from tests.emulator.kernels import FIRST_OF_TWO, HEADER, POISONED, kernel, normal

KERNELS = [
    kernel(
        "vectors",
        """
    PTX_KERNEL(32) vectors(const void* x, void* y) {
      const char* from = static_cast<const char*>(x) + ptx::lane() * 16;
      char* to = static_cast<char*>(y) + ptx::lane() * 64;
      ptx::U4 v = ptx::ld_stream_v4(from), w = {1, 2, 3, 4};
      ptx::grid_wait();
      ptx::st_v4(to, v);
      ptx::ld_stream_v4_if(w, from, ptx::lane() < 5);
      ptx::ld_nc_v4_if(w, from + 16, ptx::lane() == 9);
      ptx::ld_v4_if(w, static_cast<const char*>(x) + (1 << 20), false);
      ptx::st_v4(to + 16, w);
      ptx::U2 p = ptx::ld_nc_v2(from + 8), q = ptx::ld_v2(from);
      ptx::st_v4(to + 32, {p.x, p.y, q.x, q.y});
      ptx::st_v4(to + 48, ptx::ld_v4(from));
      ptx::grid_trigger();
    }""",
        "x y",
    ),
    kernel(
        "own_array",  # 16-byte accesses to a thread's own array need an aligned stack
        """
    PTX_KERNEL(32) own_array(const void* x, void* y) {
      ptx::U4 v[4];
      for (int i = 0; i < 4; ++i) v[i] = ptx::ld_v4(static_cast<const ptx::U4*>(x) + i);
      int shift = static_cast<int>(ptx::shfl(static_cast<float>(ptx::lane()), 1));
      ptx::U4* to = static_cast<ptx::U4*>(y) + ptx::lane() * 4;
      for (int i = 0; i < 4; ++i) ptx::st_v4(to + i, v[(i + shift) % 4]);
    }""",
        "x y",
    ),
    kernel(
        "second_of_two",
        """
    PTX_DEVICE float change(float v) { return v + 1; }
    PTX_KERNEL(32) second_of_two(const float* t, float* y) {
      ptx::st_f32(y + ptx::lane(), change(ptx::ld_f32(t + ptx::lane())));
    }""",
        "t y",
    ),
    kernel(
        "streaming",  # y[8, n] = x[8, k] w[n, k]^T: the shape of the generated kernels
        """
    PTX_KERNEL(128) streaming(const unsigned short* x, const unsigned short* w,
                              unsigned short* y) {
      float* s = ptx::smem<float>();
      int g = ptx::lane() / 4, t = ptx::lane() % 4, n0 = ptx::block_x() * 16;
      float acc[4] = {0, 0, 0, 0};
      for (int k = ptx::warp() * 32; k < 256; k += 128) {
        ptx::U4 a = ptx::ld_stream_v4(w + (n0 + g) * 256 + k + 8 * t);
        ptx::U4 c = ptx::ld_stream_v4(w + (n0 + g + 8) * 256 + k + 8 * t);
        ptx::U4 b = ptx::ld_nc_v4(x + g * 256 + k + 8 * t);
        ptx::mma_16816_f16(acc, a.x, c.x, a.y, c.y, b.x, b.y);
        ptx::mma_16816_f16(acc, a.z, c.z, a.w, c.w, b.z, b.w);
      }
      for (int i = 0; i < 4; ++i) s[i * 128 + ptx::thread()] = acc[i];
      ptx::sync_block();
      if (ptx::warp() == 0)
        for (int i = 0; i < 4; ++i) {
          float v = 0;
          for (int j = 0; j < 4; ++j) v += s[i * 128 + j * 32 + ptx::lane()];
          int n = n0 + g + (i >> 1) * 8, m = 2 * t + (i & 1);
          ptx::st_u16(y + m * 256 + n, ptx::f32_to_f16(v));
        }
    }""",
        "x w y",
        grid=(16, 1, 1),
        block=128,
        smem=2048,
    ),
    FIRST_OF_TWO,
]


def test_vector_accesses(run):
    x = np.random.default_rng(4).integers(0, 2**32, (32, 4), dtype=np.uint32)
    y = np.zeros((32, 4, 4), np.uint32)
    run("vectors", x=x, y=y)
    np.testing.assert_array_equal(y[:, 0], x)
    want = np.tile(np.array([1, 2, 3, 4], np.uint32), (32, 1))
    want[:5], want[9] = x[:5], x[10]
    np.testing.assert_array_equal(y[:, 1], want)
    np.testing.assert_array_equal(y[:, 2], np.roll(x, 2, axis=1))
    np.testing.assert_array_equal(y[:, 3], x)


def test_arrays_of_a_thread(run):
    x, y = np.arange(16, dtype=np.uint32).reshape(4, 4), np.zeros((32, 4, 4), np.uint32)
    run("own_array", x=x, y=y)
    np.testing.assert_array_equal(y, np.tile(np.roll(x, -1, axis=0), (32, 1, 1)))


def test_shared_memory_starts_as_nan_in_every_block():
    y = np.zeros((2, 32), np.float32)
    emulator.run_kernel(POISONED, {"y": y}, checks=False)  # with checks, reading it is an error
    assert np.isnan(y).all()


def test_read_only_arrays_cannot_be_written(module):
    x, t = normal(32), np.zeros(32, np.float32)
    t.flags.writeable = False
    with pytest.raises(EmulationError, match="read-only tensor 't'") as caught:
        module.run({"x": x, "t": t}, [KERNELS.index(FIRST_OF_TWO)])
    assert caught.value.kind == "read_only"


def test_kernels_of_a_sequence_see_each_others_results(run):
    x = normal(32)
    t, y = np.full(32, np.nan, np.float32), np.full(32, np.nan, np.float32)
    run("first_of_two", "second_of_two", x=x, t=t, y=y)
    np.testing.assert_array_equal(y, x * 2 + 1)


def test_streaming_kernel_is_right_and_fast(run):
    x, w = normal(8, 256).astype(np.float16), normal(256, 256, seed=1).astype(np.float16)
    x.flags.writeable = False
    y = np.full((8, 256), np.nan, np.float16)
    start = time.perf_counter()
    run("streaming", x=x, w=w, y=y)
    elapsed = time.perf_counter() - start
    np.testing.assert_allclose(
        y.astype(np.float64), x.astype(np.float64) @ w.T.astype(np.float64), rtol=2e-3, atol=2e-3
    )
    assert elapsed < 0.5


def test_arrays_under_two_names_are_one():
    both = KernelSource(
        "copy", HEADER + "PTX_KERNEL(1) copy(const float* x, float* y) { *y = *x + 1; }",
        (1, 1, 1), 1, 1, 0, ("x", "y"), pdl=False,
    )  # fmt: skip
    same = np.ones(1, np.float32)
    emulator.run_kernel(both, {"x": same, "y": same})
    assert same[0] == 2
