"""Runs an optimized model's kernels in the CPU emulator, through the real custom-op library.

The library opens ``callback_driver.cc`` as its CUDA driver; each launch comes back here with host
addresses and runs the kernel's generated text in the emulator. So the plan (argument order, grids,
workspace offsets), the stored weights and the text are all exercised, without a GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
from math import prod
from pathlib import Path

import numpy as np
import onnxruntime as ort

from mirage_onnx.custom_op.session import InferenceSession
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.pipeline import Run

_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.c_uint,
    ctypes.POINTER(ctypes.c_void_p),
)


def build_driver(folder: Path) -> Path:
    """Compile the driver; each caller gets its own copy, so callbacks do not meet."""
    path = folder / "callback_driver.so"
    source = Path(__file__).with_name("callback_driver.cc")
    command = ["g++", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return path


class EmulatedKernels:
    """The driver side: kernels of a pipeline run, by name."""

    def __init__(self, run: Run, driver: Path) -> None:
        found = {
            s.name: (s, c.region, o.compiled.candidate.ugraph)
            for c, o in run.chosen
            if o.compiled
            for s in o.compiled.sources
        }
        self.names = list(found)
        self.kernels = list(found.values())
        self.module = compile_kernels([s for s, _, _ in self.kernels])
        self.errors: list[str] = []
        self.launched: list[str] = []
        self._callback = _CALLBACK(self._launch)
        self._driver = ctypes.CDLL(str(driver))
        self._driver.test_set_callback(self._callback)

    def _launch(self, name, grid, block, cluster, smem, params) -> int:  # type: ignore[no-untyped-def]
        try:
            index = self.names.index(name.decode())
            source, region, graph = self.kernels[index]
            assert (tuple(grid[:3]), block, cluster) == (source.grid, source.block, source.cluster)
            assert smem == source.smem_bytes
            arrays = {}
            for i, tensor_name in enumerate(source.args):
                tensor = graph.tensor(tensor_name)
                count = prod(region.extents[a] for a in tensor.axes)
                pointer = ctypes.cast(params[i], ctypes.POINTER(ctypes.c_void_p))[0]
                raw = (ctypes.c_uint8 * (count * tensor.dtype.size_bytes)).from_address(pointer)
                view = np.frombuffer(raw, dtype=tensor.dtype.numpy)
                arrays[tensor_name] = view.reshape([region.extents[a] for a in tensor.axes])
            self.module.run(arrays, kernels=[index])
            self.launched.append(name.decode())
        except Exception as error:  # must not cross into C++
            self.errors.append(f"{name!r}: {error!r}")
            return 999
        return 0


def emulated_session(model: bytes, driver: Path) -> ort.InferenceSession:
    """A CPU session of ``model`` whose custom nodes run through ``driver``."""
    return InferenceSession(
        model, providers=["CPUExecutionProvider"], ep="host", driver=str(driver)
    )
