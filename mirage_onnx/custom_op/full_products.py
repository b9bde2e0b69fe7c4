"""Products with weights of few bits as GPUs compute them, for a comparison on a CPU.

``accuracy_level`` of MatMulNBits lets onnxruntime's CPU kernels round activations to integers of 8 bits, of
which onnxruntime-genai's builder makes use for CPUs (4). The CUDA kernels have no such thing: they multiply
what they are given. Beside a kernel of ours a result of that rounding would be off by a percent.
"""

import mmap
from pathlib import Path

import onnx

from mirage_onnx.custom_op.model_nodes import Model, ModelFile
from mirage_onnx.importer.graph import nodes_of

_NAME = "accuracy_level"
#: What onnxruntime's CPU sessions make of DequantizeLinear beside products and its CUDA sessions do not: such
#: operators that round, and products of integers.
IN_FULL = {"session.qdq_matmulnbits_accuracy_level": "0", "session.disable_quant_qdq": "1"}


def in_full(model: Model, folder: str | None) -> tuple[Model, str | None]:
  """The model without that attribute, as bytes, and the folder of its data; what has none as it is."""
  if not _says(model):
    return model, folder
  file = ModelFile.read(model, folder)
  if not _cleared(file.proto):
    return model, folder
  return file.proto.SerializeToString(), file.external_folder or folder


def _says(model: Model) -> bool:
  """Whether the name is anywhere in the file."""
  if isinstance(model, bytes):
    return _NAME.encode() in model
  path = Path(model)
  if not path.stat().st_size:
    return False
  with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
    return content.find(_NAME.encode()) >= 0


def _cleared(proto: onnx.ModelProto) -> bool:
  """Takes the attribute away; whether there was one."""
  found = False
  for node in nodes_of(proto.graph, *proto.functions):
    if (node.domain, node.op_type) != ("com.microsoft", "MatMulNBits"):
      continue
    for at, attribute in reversed([*enumerate(node.attribute)]):
      if attribute.name == _NAME:
        del node.attribute[at]
        found = True
  return found
