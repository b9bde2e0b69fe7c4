"""What a chip does beside reading memory, measured: its L2, its tensor cores by type, its barriers.

Each is a slope: one kernel with so many turns of its loop and with several times as many, so that neither the
launch nor the first turns count. ``l2_tbps``: all multiprocessors read the same third of L2, past L1.
``mma_tflops``: ``mma.m16n8k16`` out of registers, four independent sums a warp, by the operands' type.
``barrier_us``: a block of 256 threads writes shared memory, meets, and reads what another thread wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
  from mirage_onnx.tune.device import Gpu

SAMPLES = 7
#: Operands of tensor cores, as the device headers call them.
TYPES = ("f16", "bf16")
#: Turns of the loops: few, and many.
_READS, _PRODUCTS, _BARRIERS = (4, 20), (256, 2048), (64, 1024)
#: Threads of a block, and blocks of a multiprocessor, that keep tensor cores and L2 busy.
_THREADS, _BLOCKS = 256, 4
#: Products of a turn of a warp: rows x columns x depth, as many sums as are independent.
_SUMS, _PRODUCT_FLOPS = 4, 2 * 16 * 8 * 16

READ = """
extern "C" __global__ void read_again(const uint4* data, unsigned count, unsigned turns, unsigned* out) {
    unsigned step = gridDim.x * blockDim.x, acc = 0;
    for (unsigned turn = 0; turn < turns; ++turn)
#pragma unroll 4
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
            uint4 v;
            asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(data + i));
            acc ^= v.x ^ v.y ^ v.z ^ v.w;
        }
    if (acc == 0x9e3779b9u) *out = acc;  // never true in practice: keeps the reads
}
"""
_PRODUCT = """
#include "ptx.cuh"
extern "C" __global__ void products(unsigned turns, float* out) {
    float sum[SUMS][4] = {};
    unsigned a = threadIdx.x, b = 0x3c003c00u;
    for (unsigned turn = 0; turn < turns; ++turn)
#pragma unroll
        for (int s = 0; s < SUMS; ++s) ptx::mma_16816_TYPE(sum[s], a, a, a, a, b, b);
#pragma unroll
    for (int s = 1; s < SUMS; ++s) sum[0][0] += sum[s][0];
    if (sum[0][0] == 1.2345e30f) *out = sum[0][0];
}
"""
_BARRIER = """
extern "C" __global__ void barriers(unsigned turns, unsigned* out) {
    __shared__ unsigned met[2][THREADS];
    unsigned value = threadIdx.x;
    for (unsigned turn = 0; turn < turns; ++turn) {
        met[turn & 1][threadIdx.x] = value;
        __syncthreads();
        value = met[turn & 1][(value + 33) % THREADS] + 1;
    }
    if (value == 0x9e3779b9u) *out = value;
}
"""


class ChipRates(msgspec.Struct, frozen=True):
  """``mma_tflops``: type of the operands -> what its instruction reaches."""

  l2_tbps: float
  mma_tflops: dict[str, float]
  barrier_us: float


def measure_chip(gpu: Gpu) -> ChipRates:
  """Less than a second, and the compilation of four short kernels."""
  with gpu.scope():
    return ChipRates(
      round(l2_tbps(gpu), 3),
      {kind: round(tensor_tflops(gpu, kind), 1) for kind in TYPES},
      round(barrier_us(gpu), 4),
    )


def l2_tbps(gpu: Gpu) -> float:
  """TB/s of reads that L2 answers: a third of it, the same number of reads for every thread."""
  each = gpu.target.multiprocessors * _BLOCKS * _THREADS * 16
  size = each * max(1, gpu.target.l2_bytes // 3 // each)
  data, out = gpu.put(np.random.default_rng(0).integers(0, 2**32, size // 4, dtype=np.uint32)), gpu.empty(4)
  turn_us = _slope_us(gpu, READ, "read_again", _READS, lambda turns: [data, size // 16, turns, out])
  return size / turn_us / 1e6


def tensor_tflops(gpu: Gpu, kind: str) -> float:
  """TFLOP/s of the instruction with operands of one type."""
  out = gpu.empty(4)
  turn_us = _slope_us(gpu, product_text(kind), "products", _PRODUCTS, lambda turns: [turns, out])
  warps = gpu.target.multiprocessors * _BLOCKS * _THREADS // 32
  return warps * _SUMS * _PRODUCT_FLOPS / turn_us / 1e6


def product_text(kind: str) -> str:
  """Of the kernel that multiplies operands of one type."""
  return _PRODUCT.replace("TYPE", kind).replace("SUMS", str(_SUMS))


def barrier_text() -> str:
  """Of the kernel whose blocks meet."""
  return _BARRIER.replace("THREADS", str(_THREADS))


def barrier_us(gpu: Gpu) -> float:
  """Microseconds of a barrier with its way through shared memory."""
  out = gpu.empty(4)
  return _slope_us(gpu, barrier_text(), "barriers", _BARRIERS, lambda turns: [turns, out], blocks=1)


def _slope_us(
  gpu: Gpu,
  text: str,
  name: str,
  turns: tuple[int, int],
  arguments: Callable[[int], Sequence[int]],
  blocks: int = _BLOCKS,
) -> float:
  """Microseconds of one more turn."""
  from mirage_onnx.compiler.compile import compile_cubin  # here: reading rates needs no code generator

  kernel = gpu.load(compile_cubin(text, gpu.target, name=name), name)
  grid = (gpu.target.multiprocessors * blocks, 1, 1)

  def replay(count: int) -> Callable[[], None]:
    return gpu.capture(lambda: gpu.launch(kernel, grid, _THREADS, arguments(count)))

  few, many = np.median(gpu.time_us([replay(n) for n in turns], SAMPLES), axis=1)
  return float(many - few) / (turns[1] - turns[0])
