"""Predictions for a GPU on which our kernels were not measured: what another one's say, doubted.

Only products of few rows are predicted, whose time on every GPU is reading, and a region has to win by
``LEAST_MARGIN``. Where ONNX Runtime's times were not measured either, those on the measured GPU are scaled
by the least of the ratios of bandwidth, tensor cores and lanes: none of its kernels is slower by less, so a
region never looks more worth replacing than it is. One thing is certain beside that: a product with a weight
reads the weight.
"""

from mirage_onnx.target import TARGETS, Rated, Target
from mirage_onnx.targets import table_path

#: A share of a region's time: twice the margin of a GPU on which both sides were measured.
LEAST_MARGIN = 0.4
#: Rows of a product up to which reading its weight is all of its time.
MOST_ROWS = 16


def measured_like(target: Target) -> Target | None:
  """The GPU whose measurements are scaled for ``target``; None where nothing is predicted so."""
  if target.rated is Rated.DATASHEET and target.name in TARGETS:
    return TARGETS.get(target.ranked_by)
  return None


def known_like(target: Target) -> Target | None:
  """The GPU whose kernels say what is predicted for ``target``, which has rates or times of its own.

  None where it is measured itself, or of an architecture and a size only.
  """
  if table_path(f"{target.name}_known").is_file():
    return None
  return TARGETS.get(target.ranked_by) if target.name in TARGETS or target.table else None


def least_margin(target: Target, margin: float) -> float:
  """The margin by which a prediction for ``target`` has to win, where ``margin`` is asked for."""
  return margin if known_like(target) is None else max(margin, LEAST_MARGIN)


def scaled_us(us: float, measured: Target, target: Target) -> float:
  """The least that a kernel of ONNX Runtime takes on ``target`` which takes ``us`` on ``measured``."""
  ratio = min(
    measured.stream_tbps / target.stream_tbps,
    measured.mma_tflops / target.mma_tflops,
    _lanes(measured) / _lanes(target),
  )
  return target.launch_us + max(0.0, us - measured.launch_us) * ratio


def product_us(us: float, k: int, n: int, measured: Target, target: Target) -> float:
  """The same of a product with a k x n weight of 16-bit numbers."""
  read_us = target.launch_us + 2 * k * n / (target.stream_tbps * 1e6)
  return max(read_us, scaled_us(us, measured, target))


def _lanes(target: Target) -> float:
  return target.multiprocessors * target.lanes * target.cycles_per_us
