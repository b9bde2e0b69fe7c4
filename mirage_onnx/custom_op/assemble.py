"""From chosen regions to a bundle: plan, number the plans, store each image once.

Regions of one key share kernels; a plan is shared by the instances whose function bodies agree too
(the rewriter tells by a digest of the body).
"""

from collections.abc import Sequence

from mirage_onnx.codegen.candidates import Compiled
from mirage_onnx.custom_op.bundle import Bundle
from mirage_onnx.custom_op.launch_plan import Planned, plan_candidate
from mirage_onnx.custom_op.plan import InputSpec
from mirage_onnx.custom_op.provenance import record
from mirage_onnx.ir.region import Region
from mirage_onnx.target import Target


class BundleBuilder:
  """Collects cubins and plans; equal ones are stored once."""

  def __init__(self, target: Target, limit: int | None = None) -> None:
    self._target = target
    self._limit = limit
    self._cubins: dict[bytes, int] = {}
    self._plans: dict[tuple[str, str, str], int] = {}
    self._provenance: list[dict[str, object]] = []

  def add(
    self,
    region: Region,
    compiled: Compiled,
    body_key: str,
    operands: Sequence[InputSpec] = (),
    target: Target | None = None,
  ) -> tuple[int, Planned] | None:
    """The number of the plan of this region instance, and the plan; ``operands``: of its body.

    ``target``: what ``compiled`` is for, if it is another than the builder's.

    None, and nothing is stored, where it would be one plan more than ``limit``.
    """
    cubins = dict(self._cubins)
    ids = [cubins.setdefault(c.image, len(cubins)) for c in compiled.cubins]
    planned = plan_candidate(region, compiled.candidate, compiled.sources, ids, operands)
    target = target or self._target
    key = (planned.plan.to_text(), body_key, target.name)
    if key not in self._plans:
      if self._limit is not None and len(self._plans) >= self._limit:
        return None
      self._cubins = cubins
      self._plans[key] = len(self._plans)
      self._provenance.append(record(region, compiled, target, planned.interface))
    return self._plans[key], planned

  def bundle(self) -> Bundle:
    plans = sorted(self._plans.items(), key=lambda p: p[1])
    return Bundle(tuple(self._cubins), tuple(t for (t, _, _), _ in plans), tuple(self._provenance))
