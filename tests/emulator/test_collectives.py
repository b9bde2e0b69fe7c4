"""Shuffles, barriers and clusters of the emulator against numpy."""

import numpy as np

from tests.emulator.kernels import kernel, normal

KERNELS = [
    kernel(
        "shuffles",
        """
    PTX_KERNEL(64) shuffles(const float* x, float* y) {
      float v = ptx::ld_nc_f32(x + ptx::thread());
      float s = v;
      for (int mask = 16; mask; mask >>= 1) s += ptx::shfl_xor(s, mask);
      ptx::st_f32(y + ptx::thread(), s);
      ptx::st_f32(y + 64 + ptx::thread(), ptx::shfl(v, (ptx::lane() * 7 + 3) & 31));
      ptx::st_f32(y + 128 + ptx::thread(), ptx::shfl_xor(v, 5));
    }""",
        "x y",
        block=64,
    ),
    kernel(
        "block_sum",  # the sum over a block through shared memory, warps of different speed
        """
    PTX_KERNEL(128) block_sum(const float* x, float* y) {
      float* s = ptx::smem<float>();
      float v = ptx::ld_nc_f32(x + ptx::block_x() * 128 + ptx::thread());
      for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < ptx::warp(); ++i) ptx::sync_warp();
        s[ptx::thread()] = v;
        ptx::sync_block();
        v = 0.0f;
        for (int i = 0; i < 128; ++i) v += s[(i + round) % 128];
        v *= 1.0f / 128;
        ptx::sync_block();
      }
      ptx::st_f32(y + ptx::block_x() * 128 + ptx::thread(), v);
    }""",
        "x y",
        grid=(3, 1, 1),
        block=128,
        smem=512,
    ),
    kernel(
        "cluster_exchange",
        """
    PTX_CLUSTER_KERNEL(64, 4) cluster_exchange(const float* x, float* y) {
      float* s = ptx::smem<float>();
      int i = ptx::thread(), b = ptx::block_x() + 8 * ptx::block_y();
      s[i] = ptx::ld_nc_f32(x + b * 64 + i);
      ptx::cluster_sync();
      float v = 0.0f;
      for (unsigned r = 0; r < 4; ++r) v += ptx::dsmem_ld(s + (i + 1) % 64, r);
      ptx::cluster_arrive();
      ptx::st_f32(y + b * 64 + i, v + ptx::cluster_rank() * 1000.0f);
      ptx::cluster_wait();
    }""",
        "x y",
        grid=(8, 2, 1),
        block=64,
        cluster=4,
        smem=256,
    ),
]


def test_shuffles(run):
    x = np.random.default_rng(1).integers(-9, 9, 64).astype(np.float32)
    y = np.zeros((3, 2, 32), np.float32)
    run("shuffles", x=x, y=y)
    lanes = x.reshape(2, 32)
    every = np.arange(32)
    np.testing.assert_array_equal(y[0], lanes.sum(1, keepdims=True).repeat(32, 1))
    np.testing.assert_array_equal(y[1], lanes[:, (every * 7 + 3) % 32])
    np.testing.assert_array_equal(y[2], lanes[:, every ^ 5])


def test_block_barrier(run):
    x = normal(3, 128)
    y = np.zeros_like(x)
    run("block_sum", x=x, y=y)
    np.testing.assert_allclose(y, x.mean(1, keepdims=True).repeat(128, 1), atol=1e-6)


def test_cluster_exchange(run):
    x = np.random.default_rng(3).integers(-99, 99, (2, 2, 4, 64)).astype(np.float32)
    y = np.zeros_like(x)
    run("cluster_exchange", x=x, y=y)
    want = np.roll(x.sum(2, keepdims=True), -1, 3) + 1000 * np.arange(4).reshape(4, 1)
    np.testing.assert_array_equal(y, want)
