"""From chosen regions to a bundle: plan, number the plans, store each image once.

Regions of one key share kernels; a plan is shared by the instances whose function bodies agree too
(the rewriter tells by a digest of the body).
"""

from collections.abc import Sequence

from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.custom_op.bundle import Bundle
from mirage_onnx.custom_op.launch_plan import Planned
from mirage_onnx.custom_op.plan import InputSpec
from mirage_onnx.custom_op.provenance import record
from mirage_onnx.ir.region import Region
from mirage_onnx.target import Target

#: Plans for one GPU only have the numbers below this: so many names has the library for them
#: (``kOwnOps``), as a session pays for each.
OWN_POOL = 16


class BundleBuilder:
  """Collects cubins and plans; equal ones are stored once.

  ``numbers``: of the first, the second ... plan, in place of 0, 1, ...: ``own_first`` of a builder to which
  the same was added.
  """

  def __init__(self, target: Target, limit: int | None = None, numbers: Sequence[int] = ()) -> None:
    self._target = target
    self._limit = limit
    self._numbers = numbers
    self._own = set[int]()
    self._cubins: dict[bytes, int] = {}
    self._plans: dict[tuple[str, str, str], int] = {}
    self._provenance: list[dict[str, object]] = []

  def add(
    self,
    region: Region,
    compiled: Compiled,
    draft: Planned,
    body_key: str,
    operands: Sequence[InputSpec] = (),
    target: Target | None = None,
  ) -> int | None:
    """The number of the plan of this region instance; ``draft``: the plan, ``operands``: of its body.

    ``target``: what ``compiled`` is for, if it is another than the builder's.

    None, and nothing is stored, where it would be one plan more than ``limit``, or one more of kernels for
    one GPU only than have names.
    """
    cubins = dict(self._cubins)
    ids = [cubins.setdefault(c.image, len(cubins)) for c in compiled.cubins]
    planned = draft.placed(ids, operands)
    target = target or self._target
    key = (planned.plan.to_text(), body_key, target.name)
    if key not in self._plans:
      is_own, place = "_" in target.suffix, len(self._plans)
      if (self._limit is not None and place >= self._limit) or (is_own and len(self._own) >= OWN_POOL):
        return None
      self._cubins = cubins
      self._plans[key] = self._numbers[place] if place < len(self._numbers) else place
      self._own |= {place} if is_own else set()
      self._provenance.append(record(region, compiled, target, planned.interface))
    return self._plans[key]

  def own_first(self) -> tuple[int, ...]:
    """Numbers with which plans for one GPU only come before those for all of an architecture."""
    order = sorted(range(len(self._plans)), key=lambda place: place not in self._own)
    return tuple(order.index(place) for place in range(len(order)))

  def bundle(self) -> Bundle:
    plans = sorted((number, text, i) for i, ((text, _, _), number) in enumerate(self._plans.items()))
    return Bundle(
      tuple(self._cubins), tuple(t for _, t, _ in plans), tuple(self._provenance[i] for *_, i in plans)
    )
