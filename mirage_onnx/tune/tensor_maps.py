"""What the copy engine is told of a tensor, as the CUDA driver makes it."""

from typing import Any

from mirage_onnx.errors import MirageError
from mirage_onnx.ir.tensor_map import BOX_COLUMNS, TensorMap


def encoded(d: Any, of: TensorMap, at: int) -> Any:
  """The map of a tensor that begins at this address; ``d``: the driver's bindings.

  Raises:
      MirageError: NO_GPU, the driver makes none.
  """
  one, size = d.cuuint32_t, d.cuuint64_t
  code, made = d.cuTensorMapEncodeTiled(
    d.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, at + 2 * of.first,
    [size(of.columns), size(of.rows)], [size(2 * of.pitch)], [one(BOX_COLUMNS), one(of.box)],
    [one(1), one(1)], d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
    d.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
    d.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
    d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
  )  # fmt: skip
  if int(code) != 0:
    raise MirageError("NO_GPU", f"the CUDA driver says {code!r}")
  return made
