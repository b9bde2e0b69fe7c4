"""How far the rows of an output may be from what they have to be, and how far they are.

What is known of the original alone (the float64 values, the errors of rounding every step, norms, masks)
is worked out once per draw, since dozens of kernels are compared with it; rows are compared by all
cores, in parts that stay in their caches: with 25 million scores one comparison took a second.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from mirage_onnx.cores import available_cores

#: Elements that a core compares at once.
PART = 1 << 18
#: A class of fewer rows says little about what roundings may come to.
FEW = 16


@dataclass(frozen=True, slots=True)
class ExpectedRows:
  """The rows of one output: ``want`` and ``compared`` [rows, elements], the others [rows].

  ``compared`` says which elements count, ``allowed`` how large an L2 error may be,
  relative to ``norms``.
  """

  want: np.ndarray
  compared: np.ndarray
  norms: np.ndarray
  allowed: np.ndarray

  def errors(self, got: np.ndarray) -> np.ndarray:
    """The relative L2 error of every row; one that is NaN is infinite."""
    off = distances(got.reshape(self.want.shape), self.want, self.compared)
    return np.asarray(np.nan_to_num(off / self.norms, nan=np.inf))


def distances(x: np.ndarray, y: np.ndarray, compared: np.ndarray) -> np.ndarray:
  """The L2 distance of rows, where they are compared: [rows, elements] -> [rows]."""

  def part(at: slice) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
      off = np.where(compared[at], x[at].astype(np.float64) - y[at], 0.0)
    return np.asarray(np.sqrt(np.einsum("rn,rn->r", off, off)))

  return by_parts(part, *x.shape)


def by_parts(work: Callable[[slice], np.ndarray], rows: int, width: int) -> np.ndarray:
  """What ``work`` makes of all rows, some of them at a time."""
  step = max(1, PART // max(1, width))
  parts: Sequence[slice] = [slice(at, at + step) for at in range(0, rows, step)]
  if len(parts) < 2:
    return work(slice(0, rows))
  with ThreadPoolExecutor(min(available_cores(), len(parts))) as pool:
    return np.concatenate(list(pool.map(work, parts)))


def allowed_errors(
  off: np.ndarray, norms: np.ndarray, kinds: np.ndarray | None, classes: np.ndarray | None, slack: float
) -> np.ndarray:
  """Twice the relative error that rounding every step makes, and ``slack``: [rows].

  ``off``: the original's absolute errors. A row may be lucky in its few roundings, so what others like it
  have is no worse a measure: of one *class* (``hard_inputs.classes_of``) the largest absolute error, and
  where a class has few rows, of one *kind* the root mean square of relative errors. Rows of a class
  differ in how much of their terms cancels: 512 scores of equal keys with one query are one number,
  by chance a thousandth of its terms; then its relative errors are a thousand times those of others, and
  which of two roundings is the smaller one is chance.
  """
  base = off / norms
  few = np.ones(len(off), bool)
  least = base.copy()
  if classes is not None:
    _, index, counts = np.unique(classes, return_inverse=True, return_counts=True)
    most = np.zeros(len(counts))
    np.maximum.at(most, index, off)
    least, few = np.maximum(base, most[index] / norms), counts[index] < FEW
  for kind in np.unique(kinds[few]) if kinds is not None else ():
    own = kinds == kind
    least[own & few] = np.maximum(least[own & few], np.sqrt(np.square(base[own]).mean()))
  return np.asarray(2 * least + slack)
