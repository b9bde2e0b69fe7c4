"""The emulator's twin of the device header, and the device headers compiled with it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from mirage_onnx import emulator
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator.run import INCLUDE_DIRS


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
