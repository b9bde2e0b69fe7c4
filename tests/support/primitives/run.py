"""Runs the cases: in the emulator, or on the GPU that is there.

``python -m tests.support.primitives.run OUT.npz`` writes what the emulator computes, in a process
that opens no CUDA driver.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

from mirage_onnx import emulator
from mirage_onnx.compiler.compile import compile_cubin
from tests.support.primitives import GROUPS

INCLUDE = '#include "ptx.cuh"\n'


def compile_for_host(cases):
  return emulator.compile_kernels([k for case in cases for k in case.kernels])


def emulate(module, case, order="ascending"):
  tensors = case.tensors()
  for name in tensors.keys() - case.outputs.keys():
    tensors[name].flags.writeable = False
  names = [kernel.name for kernel in module.kernels]
  module.run(tensors, [names.index(k.name) for k in case.kernels], order=order)
  return {name: tensors[name] for name in case.outputs}


def device_text(cases):
  bodies = [k.text.removeprefix(INCLUDE) for case in cases for k in case.kernels]
  return INCLUDE + "\n".join(bodies)


def run_on_gpu(gpu, cases, *, repeats):
  """Case -> the outputs of each of its ``repeats`` runs, every one from fresh tensors."""
  cubin = compile_cubin(device_text(cases), gpu.target, name="primitives")
  found = {}
  for case in cases:
    found[case.name] = []
    with gpu.scope():
      functions = [gpu.load(cubin, k.name, k.smem_bytes) for k in case.kernels]
      for _ in range(repeats):
        tensors = case.tensors()
        at = {name: gpu.put(x) for name, x in tensors.items()}
        for function, kernel in zip(functions, case.kernels, strict=True):
          _launch(gpu, function, kernel, [at[a] for a in kernel.args])
        found[case.name].append({n: gpu.get(at[n], tensors[n].shape, tensors[n].dtype) for n in case.outputs})
  return found


def _launch(gpu, function, kernel, arguments):
  """With the kernel's attributes: its cluster, and whether it may overlap its predecessor."""
  d = gpu.d
  config = d.CUlaunchConfig()
  config.gridDimX, config.gridDimY, config.gridDimZ = kernel.grid
  config.blockDimX, config.blockDimY, config.blockDimZ = kernel.block, 1, 1
  config.sharedMemBytes = kernel.smem_bytes
  config.hStream = gpu.stream
  attributes = []
  if kernel.cluster > 1:
    a = d.CUlaunchAttribute()
    a.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    a.value.clusterDim.x, a.value.clusterDim.y, a.value.clusterDim.z = kernel.cluster, 1, 1
    attributes.append(a)
  if kernel.pdl:
    a = d.CUlaunchAttribute()
    a.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    a.value.programmaticStreamSerializationAllowed = 1
    attributes.append(a)
  config.attrs, config.numAttrs = attributes, len(attributes)
  values = (ctypes.c_uint64 * len(arguments))(*arguments)
  pointers = np.array([ctypes.addressof(values) + 8 * i for i in range(len(arguments))], dtype=np.uint64)
  code = d.cuLaunchKernelEx(config, function, pointers.ctypes.data, 0)[0]
  if int(code) != 0:
    raise RuntimeError(f"launch of {kernel.name}: {code!r}")


def save_emulated(to):
  found = {}
  for cases in GROUPS.values():
    module = compile_for_host(cases)
    for case in cases:
      for name, x in emulate(module, case).items():
        found[f"{case.name}.{name}"] = x
  np.savez(to, **found)


if __name__ == "__main__":
  save_emulated(Path(sys.argv[1]))
