"""A pass of Olive (``olive-ai``): ``MirageSuperoptimize`` after the passes that export, convert and quantize.

Olive finds passes through the file that ``olive run --package-config`` names: examples/olive has one.
"""

from pathlib import Path
from typing import Any

from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam
from olive.resource_path import LocalFile, LocalFolder

from mirage_onnx.api import optimize


class MirageSuperoptimize(Pass):
  """Regions of a model become kernels (``mirage_onnx.optimize``); the model's attributes say which.

  The result needs the library ``mirage_onnx.get_library_path()`` in its sessions to run the kernels, and
  runs without it as the original does.
  """

  @classmethod
  def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
    return {
      "target": PassConfigParam(
        type_=str, default_value=None, description="h200, or local: the present GPU, where kernels are timed"
      ),
      "budget_s": PassConfigParam(type_=float, default_value=300.0, description="seconds for the whole pass"),
      "margin": PassConfigParam(
        type_=float, default_value=0.2, description="least predicted gain of a region"
      ),
      "shapes": PassConfigParam(
        type_=dict, default_value=None, description="sizes of dynamic dimensions: {'batch': [1, 8]}"
      ),
      "check": PassConfigParam(
        type_=bool, default_value=True, description="run what is written in onnxruntime"
      ),
    }

  def _run_for_config(
    self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
  ) -> ONNXModelHandler:
    given: Any = config
    path = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
    result = optimize(
      model.model_path, path, target=given.target, budget_s=given.budget_s, margin=given.margin,
      shapes=given.shapes, external="copy", check=given.check,
    )  # fmt: skip
    said = {name: result.report[name] for name in ("target", "model", "found", "checked")}
    attributes = {**(model.model_attributes or {}), "mirage_onnx": said}
    if any(path.parent.glob(f"{path.name}.*.data")):
      folder = LocalFolder({"path": path.parent})
      return ONNXModelHandler(folder, onnx_file_name=path.name, model_attributes=attributes)
    return ONNXModelHandler(LocalFile({"path": path}), model_attributes=attributes)
