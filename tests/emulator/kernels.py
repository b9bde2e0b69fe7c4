"""What the tests of the emulator share: small kernels and random arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mirage_onnx.codegen.source import KernelSource

HEADER = '#include "ptx.cuh"\n'

#: Runs kernels of the test file by name, one after the other, on the tensors given by name.
Run = Callable[..., None]


def kernel(
    name: str,
    text: str,
    args: str,
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: int = 32,
    cluster: int = 1,
    smem: int = 0,
) -> KernelSource:
    return KernelSource(
        name, HEADER + text, grid, block, cluster, smem, tuple(args.split()), pdl=False
    )


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


POISONED = kernel(
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

# Two consecutive kernels of one sequence: the second reads what the first wrote.
FIRST_OF_TWO = kernel(
    "first_of_two",
    """
    PTX_DEVICE float change(float v) { return v * 2; }
    PTX_KERNEL(32) first_of_two(const float* x, float* t) {
      ptx::st_f32(t + ptx::lane(), change(ptx::ld_nc_f32(x + ptx::lane())));
    }""",
    "x t",
)
