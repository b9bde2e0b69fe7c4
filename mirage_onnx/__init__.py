"""mirage-onnx: superoptimizes regions of ONNX models and runs them as verified CUDA kernels.

The public names are loaded when first used, so that ``import mirage_onnx`` costs nothing:

    result = mirage_onnx.optimize("model.onnx", "fast.onnx", target="h200")
    session = mirage_onnx.InferenceSession("fast.onnx", providers=["CUDAExecutionProvider"])

``mirage_onnx.verify`` is the package that proves µGraphs; called, it compares two models, as
``mirage_onnx.api.verify`` does.
"""

import importlib
import os

#: onnxruntime sends telemetry on Linux from 1.29 on unless this says no before it is imported: models are
#: their owners' business. Who wants it sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"

#: Public name -> the module that defines it.
_PUBLIC = {
  "InferenceSession": "mirage_onnx.custom_op",
  "MirageError": "mirage_onnx.errors",
  "OptimizedGraph": "mirage_onnx.graphs.optimized",
  "Result": "mirage_onnx.api",
  "bench": "mirage_onnx.api",
  "bfloat16": "mirage_onnx.importer.kernel_graph",
  "diff": "mirage_onnx.api",
  "explain": "mirage_onnx.api",
  "float16": "mirage_onnx.importer.kernel_graph",
  "float32": "mirage_onnx.importer.kernel_graph",
  "get_library_path": "mirage_onnx.custom_op",
  "inspect": "mirage_onnx.api",
  "launches": "mirage_onnx.custom_op",
  "new_graph": "mirage_onnx.graphs.kernel_graph",
  "new_kernel_graph": "mirage_onnx.graphs.kernel_graph",
  "optimize": "mirage_onnx.api",
  "reduce": "mirage_onnx.api",
  "register": "mirage_onnx.custom_op",
  "report_page": "mirage_onnx.api",
  "superoptimize": "mirage_onnx.graphs.kernel_graph",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
  if name in ("api", "verify"):
    return importlib.import_module(f"mirage_onnx.{name}")
  if name not in _PUBLIC:
    raise AttributeError(f"module 'mirage_onnx' has no attribute {name!r}")
  value = getattr(importlib.import_module(_PUBLIC[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *_PUBLIC, "verify"})
