"""A model as its types define it: rounded after every node, which onnxruntime's CPU provider is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mirage_onnx.custom_op.model_nodes import Model, ModelFile
from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.custom_op.widen import has_halves, is_too_wide, rounded, widened_values
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort


class Defined:
  """The original as its types define it, in fp32 (``widen.rounded``), opened when it is first run.

  Where that cannot be run, the original in onnxruntime stands for it.
  """

  def __init__(self, model: Model, left: ort.InferenceSession | None = None) -> None:
    self._model, self._left = model, left
    self._session: ort.InferenceSession | None = None
    self._opened = False

  def __call__(self, feeds: Mapping[str, np.ndarray]) -> bool:
    """Whether every output is finite."""
    found = self.run(feeds)
    return bool(found) and all(np.isfinite(x).all() for x in found.values() if x.dtype.kind in "fV")

  def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs; in fp32, if they are of 16 bits."""
    if not self._opened:
      self._opened, self._session = True, self._open()
    if self._session is not None:
      return run_session(self._session, widened_values(feeds))
    if self._left is None:
      return {}
    return widened_values(run_session(self._left, feeds))

  def _open(self) -> ort.InferenceSession | None:
    file = ModelFile.read(self._model)
    if is_too_wide(file.proto) or not has_halves(file.proto):
      return None
    wide = rounded(file.proto, file.folder).SerializeToString()
    try:
      return open_session(wide, How("cpu", ep="none"), file.external_folder)
    except MirageError as error:
      if error.code != "SESSION_FAILED":
        raise
      return None
