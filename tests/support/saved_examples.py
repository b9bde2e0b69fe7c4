"""Small programs in the original's format, right ones, with their references.

Dimensions are often equal, so that a wrong map still fits, which only its values betray. The files
are ``saved/NAME`` of the packed texts.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import saved_references as references
from golden_texts import texts_of

from mirage_onnx.importer.kernel_graph import ProgramBuilder

_FILES = texts_of("saved")


@dataclass(frozen=True)
class Example:
  name: str
  reference: Callable[[], ProgramBuilder]

  def text(self):
    """The graphs as a file: one line per kernel operator."""
    return _FILES[self.name]

  def graphs(self):
    return json.loads(self.text())


def _functions():
  def build(g, x, y):
    e = g.gelu(g.sub(g.relu(x), y))
    return g.div(e, g.sqrt(g.reduction(g.square(e), 1)))

  return references.reference(build, (8, 8), (8, 8))


_ALL = (
  # One kernel with the norm's division after the product, in three sizes (the last: the fifth);
  # a kernel and a library product; library kernels only.
  Example("norm_linear", lambda: references.norm_linear((8, 8), (8, 8))),
  # One kernel; the last product in a kernel of the library.
  Example("gated", lambda: references.gated_mlp((8, 8), (8, 8))),
  # x a in every block, in one iteration; x a b, linear in x, added up with x w over the loop.
  Example("low_rank", lambda: references.lora((4, 8), (8, 8), (8, 4), (4, 8))),
  # Keys split over grid y and the loop, partial results side by side, a second kernel adds them,
  # in four forms; library kernels.
  Example("attention", lambda: references.attention((2, 8, 4), (2, 4, 32), (2, 32, 4))),
  # rms_norm(x + alpha (rms_norm(h) + x)), the last division in a library kernel in one.
  Example("residual_norm", lambda: references.norm_transformer((8, 8))),
  # gelu(relu(x) - y) / sum: functions and block reductions that no published file uses.
  Example("functions", _functions),
)
EXAMPLES = {e.name: e for e in _ALL}
