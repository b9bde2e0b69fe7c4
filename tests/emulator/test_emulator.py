"""Each primitive of the emulator against numpy, and each kind of error it must report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mirage_onnx import emulator
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import EmulationError, Module
from mirage_onnx.emulator.run import INCLUDE_DIRS, Order
from mirage_onnx.errors import MirageError

BF16 = np.dtype(ml_dtypes.bfloat16)


HEADER = '#include "ptx.cuh"\n'
SOURCES: dict[str, KernelSource] = {}


def kernel(
    name: str,
    text: str,
    args: str,
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: int = 32,
    cluster: int = 1,
    smem: int = 0,
) -> None:
    SOURCES[name] = KernelSource(
        name, HEADER + text, grid, block, cluster, smem, tuple(args.split()), pdl=False
    )


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
)

MMA = """
    PTX_KERNEL(32) mma_{t}(const unsigned short* __restrict__ a, const unsigned short* b,
                           float* d) {{
      int g = ptx::lane() / 4, t = ptx::lane() % 4;
      float acc[4] = {{1.0f, 2.0f, 3.0f, 4.0f}};
      unsigned r[6];
      for (int i = 0; i < 4; ++i)
        r[i] = ptx::ld_nc_u32(a + (g + (i & 1) * 8) * 16 + 2 * t + (i >> 1) * 8);
      for (int i = 0; i < 2; ++i) {{
        unsigned lo = ptx::ld_nc_u16(b + (2 * t + i * 8) * 8 + g);
        unsigned hi = ptx::ld_nc_u16(b + (2 * t + i * 8 + 1) * 8 + g);
        r[4 + i] = lo | hi << 16;
      }}
      ptx::mma_16816_{t}(acc, r[0], r[1], r[2], r[3], r[4], r[5]);
      for (int i = 0; i < 4; ++i)
        ptx::st_f32(d + (g + (i >> 1) * 8) * 8 + 2 * t + (i & 1), acc[i]);
    }}"""
kernel("mma_f16", MMA.format(t="f16"), "a b d")
kernel("mma_bf16", MMA.format(t="bf16"), "a b d")

kernel(
    "widen",
    """
    PTX_KERNEL(256) widen(const unsigned short* x, float* f16, float* bf16, float* pairs) {
      int i = ptx::block_x() * 256 + ptx::thread();
      ptx::st_f32(f16 + i, ptx::f16_to_f32(ptx::ld_u16(x + i)));
      ptx::st_f32(bf16 + i, ptx::bf16_to_f32(ptx::ld_u16(x + i)));
      if (i % 2 == 0) {
        float v[4];
        ptx::unpack_f16(ptx::ld_u32(x + i), v[0], v[1]);
        ptx::unpack_bf16(ptx::ld_u32(x + i), v[2], v[3]);
        for (int k = 0; k < 4; ++k) ptx::st_f32(pairs + i * 2 + k, v[k]);
      }
    }""",
    "x f16 bf16 pairs",
    grid=(256, 1, 1),
    block=256,
)
kernel(
    "narrow",
    """
    PTX_KERNEL(256) narrow(const float* x, unsigned short* f16, unsigned short* bf16,
                           unsigned* pairs) {
      for (int i = ptx::block_x() * 256 + ptx::thread(); i < 1 << 20; i += 64 * 256) {
        float v = ptx::ld_f32(x + i);
        ptx::st_u16(f16 + i, ptx::f32_to_f16(v));
        ptx::st_u16(bf16 + i, ptx::f32_to_bf16(v));
        if (i % 2 == 0) {
          float w = ptx::ld_f32(x + i + 1);
          ptx::st_v2(pairs + i, {ptx::pack_f16(v, w), ptx::pack_bf16(v, w)});
        }
      }
    }""",
    "x f16 bf16 pairs",
    grid=(64, 1, 1),
    block=256,
)
kernel(
    "arithmetic",
    """
    PTX_KERNEL(32) arithmetic(const float* x, float* y) {
      float v = ptx::ld_nc_f32(x + ptx::lane()), u = ptx::ld_nc_f32(x + 31 - ptx::lane());
      float r[8] = {ptx::rcp(v), ptx::rsqrt(v), ptx::ex2(v), ptx::max_nan(v, u),
                    ptx::min_nan(v, u), expf(v), tanhf(v), erff(v)};
      for (int i = 0; i < 8; ++i) ptx::st_f32(y + i * 32 + ptx::lane(), r[i]);
    }""",
    "x y",
)
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
)
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
)
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
)
kernel(
    "poisoned",
    """
    PTX_KERNEL(32) poisoned(float* y) {
      float* s = ptx::smem<float>();
      ptx::st_f32(y + ptx::block_x() * 32 + ptx::lane(), s[ptx::lane()]);
      s[ptx::lane()] = 1.0f;
    }""",
    "y",
    grid=(2, 1, 1),
    smem=128,
)
kernel(
    "race",  # no barrier between the write and the read
    """
    PTX_KERNEL(64) race(float* y) {
      float* s = ptx::smem<float>();
      s[ptx::thread()] = 1.0f;
      ptx::st_f32(y + ptx::thread(), s[63 - ptx::thread()]);
    }""",
    "y",
    block=64,
    smem=256,
)
kernel(
    "own_array",  # 16-byte accesses to a thread's own array need an aligned stack
    """
    PTX_KERNEL(32) own_array(const void* x, void* y) {
      ptx::U4 v[4];
      for (int i = 0; i < 4; ++i) v[i] = ptx::ld_v4(static_cast<const ptx::U4*>(x) + i);
      int shift = static_cast<int>(ptx::shfl(static_cast<float>(ptx::lane()), 1));
      for (int i = 0; i < 4; ++i) ptx::st_v4(static_cast<ptx::U4*>(y) + i, v[(i + shift) % 4]);
    }""",
    "x y",
)
# Two consecutive kernels of one sequence: the second reads what the first wrote.
kernel(
    "first_of_two",
    """
    PTX_DEVICE float change(float v) { return v * 2; }
    PTX_KERNEL(32) first_of_two(const float* x, float* t) {
      ptx::st_f32(t + ptx::lane(), change(ptx::ld_nc_f32(x + ptx::lane())));
    }""",
    "x t",
)
kernel(
    "second_of_two",
    """
    PTX_DEVICE float change(float v) { return v + 1; }
    PTX_KERNEL(32) second_of_two(const float* t, float* y) {
      ptx::st_f32(y + ptx::lane(), change(ptx::ld_f32(t + ptx::lane())));
    }""",
    "t y",
)
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
)

# ---- kernels that must fail, with what the message must say --------------------------------------

FAILURES: dict[str, str] = {}


def failing(
    name: str,
    body: str,
    message: str,
    *,
    block: int = 64,
    cluster: int = 1,
    smem: int = 256,
    grid: tuple[int, int, int] = (2, 1, 1),
    x_type: str = "const float*",
) -> None:
    macro = f"PTX_CLUSTER_KERNEL({block}, {cluster})" if cluster > 1 else f"PTX_KERNEL({block})"
    kernel(
        name,
        f"{macro} {name}({x_type} x, float* y) {{ {body} }}",
        "x y",
        grid=grid,
        block=block,
        cluster=cluster,
        smem=smem,
    )
    FAILURES[name] = message


failing(
    "deadlock_barrier",
    "if (ptx::warp() == 0) ptx::sync_block();",
    r"deadlock in kernel deadlock_barrier: block \(0,0,0\) threads 0-31 wait at sync_block "
    r"\(32 of 64 arrived\); block \(0,0,0\) threads 32-63 exited",
)
failing(
    "deadlock_shuffle",
    "if (ptx::lane() != 9) ptx::shfl_xor(1.0f, 1); else ptx::sync_block();",
    r"thread 9 waits at sync_block.*; .*threads 10-31 wait at shfl_xor \(31 of 32 lanes arrived\)",
)
failing(
    "diverged",
    "if (ptx::lane() == 3) ptx::sync_warp(); else ptx::shfl(1.0f, 1);",
    r"block \(0,0,0\), thread (3|35): diverged warp: this lane is at sync_warp .* waits at shfl",
)
failing(
    "deadlock_cluster",
    "if (ptx::cluster_rank() == 0 && ptx::warp()) ptx::sync_block(); else ptx::cluster_sync();",
    r"threads 32-63 wait at sync_block.*block \(1,0,0\) threads 0-63 wait at cluster_wait "
    r"\(32 threads missing\)",
    cluster=2,
)
failing("cluster_misuse", "ptx::cluster_wait();", "cluster_wait without cluster_arrive")
failing(
    "oob_read",
    "ptx::ld_nc_f32(x + 64 + (ptx::block_x() * 64 + ptx::thread() == 67 ? 0 : -1));",
    r"block \(1,0,0\), thread 3: out-of-bounds read of 4 bytes at 0x\w+: byte 256 of tensor 'x', "
    "which has 256",
)
failing(
    "oob_write",
    "if (ptx::thread() == 5) ptx::st_v4(y - 4, {1, 2, 3, 4});",
    "thread 5: out-of-bounds write of 16 bytes at .* byte -16 of tensor 'y'",
)
failing("oob_vector", "ptx::ld_v4(y + 126 - 2);  ptx::ld_v2(y + 128);", "byte 512 of tensor 'y'")
failing(
    "write_to_const",
    "ptx::st_f32(const_cast<float*>(x), 0.0f);",
    "write of 4 bytes .* read-only tensor 'x'",
)
failing("misaligned", "ptx::ld_v4(x + 1);", "misaligned global read of 16 bytes")
failing("misaligned_write", "ptx::st_v2(y + 1, {0, 0});", "misaligned global write of 8 bytes")
failing(
    "dsmem_rank",
    "ptx::cluster_sync(); ptx::dsmem_ld(ptx::smem<float>(), 2); ptx::cluster_sync();",
    "cluster rank 2 in a cluster of 2",
    cluster=2,
)
failing(
    "dsmem_bounds",
    "ptx::dsmem_ld(ptx::smem<float>() + 64, 0);",
    "out-of-bounds shared read of 4 bytes at byte 256 of 256",
    cluster=2,
)
failing(
    "dsmem_exited",
    "if (ptx::cluster_rank()) { ptx::sync_block(); ptx::dsmem_ld(ptx::smem<float>(), 0); }",
    "read of the shared memory of block 0, which has exited",
    cluster=2,
)
failing(
    "plain_store_after",
    "if (ptx::thread() == 0) y[130] = 1.0f;",
    "plain store wrote outside tensor 'y', at its byte 520 of 512",
)
failing("plain_store_far", "y[5000] = 1.0f;", "wild access .* byte 20000 of tensor 'y', which has")
failing("null", "float* volatile p = nullptr; *p = 1.0f;", r"thread (0|63): wild access at 0x0$")
failing(
    "misaligned_smem",
    "ptx::U4* s = ptx::smem<ptx::U4>(); ptx::smem<ptx::U4>()[1] = ptx::ld_v4(x);"
    " ptx::st_v4(y, *reinterpret_cast<ptx::U4*>(ptx::smem<float>() + 1));",
    "misaligned 16-byte access",
)
failing(
    "smem_far",
    "ptx::smem<float>()[1024] = 1.0f;",
    "wild access at .* byte 4096 of the 256 of shared memory",
)
failing(
    "smem_near", "ptx::smem<float>()[64] = 1.0f;", r"shared memory was written at byte 25\d of 256"
)
failing(
    "division",
    "volatile int zero = 0; y[0] = ptx::thread() / zero;",
    r"arithmetic fault \(integer division by zero\)",
)
failing("trap", "if (ptx::thread() == 7) __builtin_trap();", "thread 7: trap")
failing(
    "stack",
    "volatile char much[1 << 17]; for (int i = (1 << 17) - 1; i >= 0; i -= 64) much[i] = 0;"
    " y[0] = much[ptx::thread()];",
    "stack of 65536 bytes is full",
)
failing(
    "endless", 'while (true) { asm volatile(""); }', "thread (0|63): no end after 1 s of CPU time"
)


@pytest.fixture(scope="module")
def module() -> Module:
    return emulator.compile_kernels(list(SOURCES.values()))


Run = Callable[..., None]


@pytest.fixture(params=["ascending", "descending"])
def run(module: Module, request: pytest.FixtureRequest) -> Run:
    order: Order = request.param
    names = list(SOURCES)

    def go(*kernels: str, **tensors: np.ndarray) -> None:
        module.run(tensors, [names.index(k) for k in kernels], order=order, timeout_s=1)

    return go


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_shuffles(run: Run) -> None:
    x = np.random.default_rng(1).integers(-9, 9, 64).astype(np.float32)
    y = np.zeros((3, 2, 32), np.float32)
    run("shuffles", x=x, y=y)
    lanes = x.reshape(2, 32)
    every = np.arange(32)
    np.testing.assert_array_equal(y[0], lanes.sum(1, keepdims=True).repeat(32, 1))
    np.testing.assert_array_equal(y[1], lanes[:, (every * 7 + 3) % 32])
    np.testing.assert_array_equal(y[2], lanes[:, every ^ 5])


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16], ids=["f16", "bf16"])
def test_mma(run: Run, dtype: np.dtype) -> None:
    a, b = normal(16, 16).astype(dtype), normal(16, 8, seed=1).astype(dtype)
    d = np.zeros((16, 8), np.float32)
    run("mma_f16" if dtype == np.float16 else "mma_bf16", a=a, b=b, d=d)
    want = np.empty((16, 8), np.float32)
    want[:8, 0::2], want[:8, 1::2], want[8:, 0::2], want[8:, 1::2] = 1, 2, 3, 4
    for k in range(16):  # the documented order: products exact, sums rounded, k ascending
        want += np.outer(a[:, k].astype(np.float32), b[k].astype(np.float32))
    np.testing.assert_array_equal(d, want)


def test_widening_is_exact_for_every_half(run: Run) -> None:
    x = np.arange(65536, dtype=np.uint16)
    f16, bf16 = np.zeros(65536, np.float32), np.zeros(65536, np.float32)
    pairs = np.zeros((32768, 2, 2), np.float32)
    run("widen", x=x, f16=f16, bf16=bf16, pairs=pairs)
    want = x.view(np.float16).astype(np.float32)
    nan = np.isnan(want)
    np.testing.assert_array_equal(f16.view(np.uint32)[~nan], want.view(np.uint32)[~nan])
    assert set(f16.view(np.uint32)[nan]) == {0x7FFFFFFF}
    np.testing.assert_array_equal(bf16.view(np.uint32), x.astype(np.uint32) << 16)
    np.testing.assert_array_equal(pairs[:, 0].view(np.uint32).ravel(), f16.view(np.uint32))
    np.testing.assert_array_equal(pairs[:, 1].view(np.uint32).ravel(), bf16.view(np.uint32))


def hard_floats() -> np.ndarray:
    """2^20 floats: random bits, every value between two halves, their neighbours, and specials."""
    rng = np.random.default_rng(2)
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float64)
    halves[-1] = 65536.0  # where infinity would be
    ties = ((halves[:-1] + halves[1:]) / 2).astype(np.float32).view(np.uint32)
    bties = (np.arange(0x7F80, dtype=np.uint32) << 16) + 0x8000
    near = np.concatenate([t + np.uint32(d) for t in (ties, bties) for d in (0, 1, 2**32 - 1)])
    special = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000])
    bits = np.concatenate([near, special]).astype(np.uint32)
    bits = np.concatenate([bits, bits | 0x80000000])
    rest = rng.integers(0, 2**32, 2**20 - bits.size, dtype=np.uint32)
    middle = rng.integers(0x33000000, 0x47900000, rest.size // 2, dtype=np.uint32)
    rest[: middle.size] = middle | (rest[: middle.size] & 0x80000000)
    return np.concatenate([bits, rest]).view(np.float32)


def test_narrowing_rounds_like_cvt_rn(run: Run) -> None:
    x = hard_floats()
    f16, bf16 = np.zeros(x.size, np.uint16), np.zeros(x.size, np.uint16)
    pairs = np.zeros((x.size // 2, 2), np.uint32)
    run("narrow", x=x, f16=f16, bf16=bf16, pairs=pairs)
    with np.errstate(over="ignore", invalid="ignore"):
        wants = {"f16": x.astype(np.float16), "bf16": x.astype(BF16)}
    for got, want, pair in ((f16, wants["f16"], 0), (bf16, wants["bf16"], 1)):
        bits = np.where(np.isnan(x), np.uint16(0x7FFF), want.view(np.uint16))
        np.testing.assert_array_equal(got, bits)
        np.testing.assert_array_equal(pairs[:, pair].copy().view(np.uint16), bits)


def test_arithmetic(run: Run) -> None:
    x = normal(32)
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -140.0, 130.0]
    x[31], x[30] = -0.0, 0.0
    y = np.zeros((8, 32), np.float32)
    run("arithmetic", x=x, y=y)
    wide, other = x.astype(np.float64), x[::-1]
    with np.errstate(all="ignore"):
        want = [1 / wide, 1 / np.sqrt(wide), np.exp2(wide)]
        want += [np.maximum(x, other), np.minimum(x, other), np.exp(wide), np.tanh(wide)]
        ex2 = want[2].astype(np.float32)
        want[2] = np.where(np.abs(ex2) < 2.0**-126, np.float32(0), ex2)
        for got, ref in zip(y, want, strict=False):
            np.testing.assert_allclose(got, ref.astype(np.float32), rtol=2e-7)
    assert np.signbit(y[3, 0]) == 0 and np.signbit(y[4, 0]) == 1  # max, min of +0 and -0


def test_block_barrier(run: Run) -> None:
    x = normal(3, 128)
    y = np.zeros_like(x)
    run("block_sum", x=x, y=y)
    np.testing.assert_allclose(y, x.mean(1, keepdims=True).repeat(128, 1), atol=1e-6)


def test_cluster_exchange(run: Run) -> None:
    x = np.random.default_rng(3).integers(-99, 99, (2, 2, 4, 64)).astype(np.float32)
    y = np.zeros_like(x)
    run("cluster_exchange", x=x, y=y)
    want = np.roll(x.sum(2, keepdims=True), -1, 3) + 1000 * np.arange(4).reshape(4, 1)
    np.testing.assert_array_equal(y, want)


def test_vector_accesses(run: Run) -> None:
    x = np.random.default_rng(4).integers(0, 2**32, (32, 4), dtype=np.uint32)
    y = np.zeros((32, 4, 4), np.uint32)
    run("vectors", x=x, y=y)
    np.testing.assert_array_equal(y[:, 0], x)
    want = np.tile(np.array([1, 2, 3, 4], np.uint32), (32, 1))
    want[:5], want[9] = x[:5], x[10]
    np.testing.assert_array_equal(y[:, 1], want)
    np.testing.assert_array_equal(y[:, 2], np.roll(x, 2, axis=1))
    np.testing.assert_array_equal(y[:, 3], x)


def test_arrays_of_a_thread(run: Run) -> None:
    x, y = np.arange(16, dtype=np.uint32).reshape(4, 4), np.zeros((4, 4), np.uint32)
    run("own_array", x=x, y=y)
    np.testing.assert_array_equal(y, np.roll(x, -1, axis=0))


def test_shared_memory_starts_as_nan_in_every_block(run: Run) -> None:
    y = np.zeros((2, 32), np.float32)
    run("poisoned", y=y)
    assert np.isnan(y).all()


def test_kernels_of_a_sequence_see_each_others_results(run: Run) -> None:
    x = normal(32)
    t, y = np.full(32, np.nan, np.float32), np.full(32, np.nan, np.float32)
    run("first_of_two", "second_of_two", x=x, t=t, y=y)
    np.testing.assert_array_equal(y, x * 2 + 1)


def test_streaming_kernel_is_right_and_fast(run: Run) -> None:
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


@pytest.mark.parametrize("name", list(FAILURES))
def test_errors_come_back_as_exceptions(run: Run, name: str) -> None:
    x, y = normal(64), np.zeros(128, np.float32)
    with pytest.raises(EmulationError) as caught:
        run(name, x=x, y=y)
    assert re.search(FAILURES[name], str(caught.value)), caught.value
    # The module still works after an error.
    t = np.zeros(32, np.float32)
    run("first_of_two", x=x[:32].copy(), t=t)
    np.testing.assert_array_equal(t, x[:32] * 2)


def test_read_only_arrays_cannot_be_written(module: Module) -> None:
    y = np.zeros((2, 32), np.float32)
    y.flags.writeable = False
    with pytest.raises(EmulationError, match="read-only tensor 'y'"):
        module.run({"y": y}, [list(SOURCES).index("poisoned")])


def test_a_race_depends_on_the_order_of_threads(module: Module) -> None:
    results = []
    for order in ("ascending", "descending"):
        y = np.zeros(64, np.float32)
        module.run({"y": y}, [list(SOURCES).index("race")], order=order)
        results.append(np.isnan(y))
    np.testing.assert_array_equal(results[0], np.arange(64) < 32)
    np.testing.assert_array_equal(results[1], np.arange(64) >= 32)


def test_a_text_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(emulator.run, "_cache_dir", lambda: tmp_path)
    emulator.compile_kernels([SOURCES["poisoned"]])
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]
    monkeypatch.setattr("subprocess.run", None)  # no compiler from here on
    emulator.run_kernel(SOURCES["poisoned"], {"y": np.zeros(64, np.float32)})


def test_arrays_under_two_names_are_one() -> None:
    both = KernelSource(
        "copy", HEADER + "PTX_KERNEL(1) copy(const float* x, float* y) { *y = *x + 1; }",
        (1, 1, 1), 1, 1, 0, ("x", "y"), pdl=False,
    )  # fmt: skip
    same = np.ones(1, np.float32)
    emulator.run_kernel(both, {"x": same, "y": same})
    assert same[0] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PTX_KERNEL(32) k(float* y) { oops(); }", r"does not compile:\nk.cu:2:.*oops"),
        (
            "PTX_KERNEL(64) k(float* y) {}",
            "launched with 32 threads in clusters of 1, compiled for 64",
        ),
        ("PTX_CLUSTER_KERNEL(32, 2) k(float* y) {}", "compiled for 32 in clusters of 2"),
        ("PTX_KERNEL(32) other(float* y) {}", "defines no PTX_KERNEL"),
        ("PTX_KERNEL(32) k(float* y, int n) {}", "1 arguments for 2 parameters"),
        ('#include "missing.cuh"\nPTX_KERNEL(32) k(float* y) {}', "no such device header"),
    ],
)
def test_bad_texts_are_refused(text: str, message: str) -> None:
    source = KernelSource("k", HEADER + text, (1, 1, 1), 32, 1, 0, ("y",), pdl=False)
    with pytest.raises(EmulationError, match=message):
        emulator.run_kernel(source, {"y": np.zeros(1, np.float32)})


def test_a_missing_tensor_is_named(module: Module) -> None:
    with pytest.raises(EmulationError, match="no tensor for the kernel arguments y"):
        module.run({}, [list(SOURCES).index("poisoned")])


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    emulator.run._compiler.cache_clear()
    try:
        with pytest.raises(MirageError) as caught:
            emulator.compile_kernels([SOURCES["poisoned"]])
        assert caught.value.code == "HOST_COMPILER_MISSING"
    finally:
        emulator.run._compiler.cache_clear()


def declared(path: Path) -> set[str]:
    """Every macro and every function head of a header, without comments and spacing."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    heads = re.findall(r"(?:PTX_DEVICE|static) ([^;{}()]+\([^{;]*?\))\s*\{", text)
    heads += re.findall(r"#define (\w+(?:\([^)]*\))?)", text)
    return {re.sub(r"\s+", " ", head) for head in heads}


def test_twin_declares_all_that_the_device_header_does() -> None:
    host, device = (declared(folder / "ptx.cuh") for folder in INCLUDE_DIRS)
    assert "U4 ld_stream_v4(const void* from)" in device
    assert "PTX_CLUSTER_KERNEL(threads, size)" in device
    assert len(device) > 50
    assert device - host == set()


def test_all_device_headers_compile_for_the_host() -> None:
    names = sorted(path.name for path in INCLUDE_DIRS[1].glob("*.cuh"))
    text = "".join(f'#include "{name}"\n' for name in ["ptx.cuh", "vector.cuh", *names])
    text += """
    PTX_KERNEL(64) all_headers(const float* x, float* y) {
      float sum = block_reduce<Sum, 2>(ptx::ld_nc_f32(x + ptx::thread()), ptx::smem<float>());
      ptx::st_f32(y + ptx::thread(), sum);
    }"""
    source = KernelSource("all_headers", text, (1, 1, 1), 64, 1, 8, ("x", "y"), pdl=False)
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    emulator.run_kernel(source, {"x": x, "y": y})
    assert (y == x.sum()).all()
