"""The optimized model where nobody knows the library: its function bodies run, against the original.

Where kernels run the bodies do not, and they are text of the file like all else: onnxruntime takes them on
another machine. Checked on every input: what a body does with small numbers, or with zeros, is text, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mirage_onnx.custom_op.measure import KnownOriginal, Measure
from mirage_onnx.custom_op.model_nodes import Model
from mirage_onnx.custom_op.model_run import How, check_signatures, open_session, run_session
from mirage_onnx.custom_op.steps import SessionStep, Tell
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort


class BodyCheck:
  """The bodies of a model, run as ``how`` says, without the library; opened when they are first asked for."""

  def __init__(self, model: Model, like: ort.InferenceSession, how: How, tell: Tell) -> None:
    self._model, self._like, self._how, self._tell = model, like, how, tell
    self._session: ort.InferenceSession | None = None
    self._failures: dict[str, str] = {}

  def run(
    self,
    feeds: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    measure: Measure,
    known: KnownOriginal,
  ) -> None:
    """Compare all outputs on one input of the model; ``wanted``: the original's."""
    if "" in self._failures:
      return
    self._tell(SessionStep.BODIES, known.kind)
    try:
      if self._session is None:
        session = open_session(self._model, self._how)
        check_signatures(self._like, session)
        self._session = session
      found = run_session(self._session, feeds)
    except MirageError as error:
      self._failures[""] = f"{error.code}: the function bodies: {error.detail}"
      return
    for name, want in wanted.items():
      one = measure(name, want, found[name], known)
      if not one.passed and name not in self._failures:
        why = one.reason or f"its error is {one.needed_rtol:.2g}, not {one.rtol:.2g}"
        line = f"SOURCE_MISMATCH: without the library output {name!r} differs on input {known.kind!r}: {why}"
        self._failures[name] = line

  @property
  def failures(self) -> tuple[str, ...]:
    """Which outputs the bodies make otherwise than the original, or why they could not be run."""
    return tuple(self._failures.values())
