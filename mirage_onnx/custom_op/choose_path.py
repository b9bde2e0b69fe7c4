"""Where ``verify`` runs a model's kernels if it is not told: on a GPU, else in the emulator."""

from mirage_onnx.custom_op.model_nodes import Model, ModelFile
from mirage_onnx.custom_op.runtime import import_onnxruntime
from mirage_onnx.custom_op.session import CUDA_PROVIDER
from mirage_onnx.custom_op.target_view import own_suffix, suffixes_of
from mirage_onnx.emulator.toolchain import has_host_compiler
from mirage_onnx.errors import MirageError
from mirage_onnx.tune.device import present_target

NO_COMPILER = "install g++ (or set CXX) to run the kernels in the CPU emulator"


def choose_path(model: Model, provider: str | None, emulate: bool | None) -> tuple[str, bool, str]:
  """(provider, whether to emulate, what would let the kernels run if neither does).

  ``provider``: ``cpu``, ``cuda`` or None, which is cuda where onnxruntime has it and the GPU is
  one that the model has kernels for. ``emulate`` None: wherever the provider is cpu, there
  are kernels, and there is a C++ compiler.

  Raises:
      MirageError: OPTION_INVALID for emulation in the CUDA provider, and those of
          ``ModelFile.read``.
  """
  if provider == "cuda" and emulate:
    raise MirageError("OPTION_INVALID", "the emulator runs in the CPU provider")
  if provider == "cuda":
    return "cuda", False, ""
  suffixes = suffixes_of(ModelFile.read(model).proto)
  if provider is None and emulate is None and _has_gpu_for(suffixes):
    return "cuda", False, ""
  if emulate is not None:
    return "cpu", emulate, ""
  if not suffixes or has_host_compiler():
    return "cpu", bool(suffixes), ""
  return "cpu", False, NO_COMPILER


def _has_gpu_for(suffixes: tuple[str, ...]) -> bool:
  if CUDA_PROVIDER not in import_onnxruntime().get_available_providers():
    return False
  present = present_target()
  return present is not None and (not suffixes or own_suffix(present, suffixes) != "")
