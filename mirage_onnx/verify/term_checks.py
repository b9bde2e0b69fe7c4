"""The step before the search, in production: are the terms of a region what its ONNX steps compute?

All that is proven of a candidate is proven against the terms. So that a wrong canonical form is
noticed, ``check_terms`` runs on every region that is searched or replaced, once for all of one form.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Region
from mirage_onnx.match.twins import Form, step_form
from mirage_onnx.verify import equivalence

Check = Callable[[Region, np.random.Generator], Rejection | None]


class TermChecks:
  """``check_terms`` once for every form; ``seed`` draws the inputs."""

  def __init__(self, check: Check | None = None, seed: int = 0) -> None:
    self._check, self._seed = check or equivalence.check_terms, seed
    self._known: dict[Form, Rejection | None] = {}

  def __call__(self, region: Region) -> Rejection | None:
    """Why the terms of ``region`` are not what its steps compute, or None."""
    form = step_form(region)
    if form not in self._known:
      self._known[form] = self._check(region, np.random.default_rng(self._seed))
    found = self._known[form]
    return found and replace(found, nodes=region.nodes)
