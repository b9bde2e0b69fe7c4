"""What cuBLASLt's heuristics offer for a product, each as something to call: the fastest is the peer.

``torch.matmul`` takes the first of them. With ``bias`` and ``gelu`` (its form by tanh) these are in the
product's epilogue, and ``residual`` is what the product is added to.
"""

import ctypes
from functools import partial

#: Names of cublas_api.h, cublasLt.h and library_types.h.
_F32_COMPUTE, _R_32F, _TYPES = 68, 0, {"f16": 2, "bf16": 14}
_TRANSA, _EPILOGUE, _BIAS_POINTER = 3, 7, 8
_MOST_WORKSPACE = 1
_BIAS, _GELU_BIAS = 4, 36
_WORKSPACE_BYTES = 64 << 20


class _Found(ctypes.Structure):
  _fields_ = (
    ("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
    ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
  )  # fmt: skip


def _library():
  for version in (13, 12):
    try:
      return ctypes.CDLL(f"libcublasLt.so.{version}")
    except OSError:
      continue
  raise OSError("no libcublasLt")


def _ok(status):
  if status:
    raise RuntimeError(f"cuBLASLt: status {status}")


def ways(torch, x, w, out, stream, *, bias=None, gelu=False, residual=None, most=8):
  """Calls that make ``out`` = x w^T (and what follows), of the ``most`` first of the heuristics.

  x, w and out are tensors of torch in rows, of one type; ``stream`` is a number.
  """
  lib, handle = _library(), ctypes.c_void_p()
  _ok(lib.cublasLtCreate(ctypes.byref(handle)))
  kind = {torch.float16: _TYPES["f16"], torch.bfloat16: _TYPES["bf16"]}[x.dtype]
  (rows, depth), columns = x.shape, w.shape[0]
  description = ctypes.c_void_p()
  _ok(lib.cublasLtMatmulDescCreate(ctypes.byref(description), _F32_COMPUTE, _R_32F))

  def tell(attribute, value):
    _ok(lib.cublasLtMatmulDescSetAttribute(
      description, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
    ))  # fmt: skip

  tell(_TRANSA, ctypes.c_int32(1))
  if bias is not None:
    tell(_EPILOGUE, ctypes.c_int32(_GELU_BIAS if gelu else _BIAS))
    tell(_BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))

  def layout(height, width):
    found = ctypes.c_void_p()
    sizes = (ctypes.c_uint64(height), ctypes.c_uint64(width), ctypes.c_int64(height))
    _ok(lib.cublasLtMatrixLayoutCreate(ctypes.byref(found), kind, *sizes))
    return found

  # It counts by columns, so what it multiplies is the transposed: w^T first.
  of_w, of_x, of_y = layout(depth, columns), layout(depth, rows), layout(columns, rows)
  preference, size = ctypes.c_void_p(), ctypes.c_size_t(_WORKSPACE_BYTES)
  _ok(lib.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
  _ok(lib.cublasLtMatmulPreferenceSetAttribute(
    preference, _MOST_WORKSPACE, ctypes.byref(size), ctypes.c_size_t(ctypes.sizeof(size))
  ))  # fmt: skip
  found, count = (_Found * most)(), ctypes.c_int()
  _ok(lib.cublasLtMatmulAlgoGetHeuristic(
    handle, description, of_w, of_x, of_y, of_y, preference, most, found, ctypes.byref(count)
  ))  # fmt: skip
  room = torch.empty(_WORKSPACE_BYTES, device="cuda", dtype=torch.uint8)
  one, many = ctypes.c_float(1), ctypes.c_float(0 if residual is None else 1)
  added = out if residual is None else residual

  def run(at):
    _ok(lib.cublasLtMatmul(
      handle, description, ctypes.byref(one), ctypes.c_void_p(w.data_ptr()), of_w,
      ctypes.c_void_p(x.data_ptr()), of_x, ctypes.byref(many), ctypes.c_void_p(added.data_ptr()), of_y,
      ctypes.c_void_p(out.data_ptr()), of_y, ctypes.byref(found[at].algo), ctypes.c_void_p(room.data_ptr()),
      ctypes.c_size_t(_WORKSPACE_BYTES), ctypes.c_void_p(stream),
    ))  # fmt: skip

  return [partial(run, at) for at in range(count.value) if not found[at].state]
