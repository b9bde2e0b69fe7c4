"""Plans that offer what they may come to, so that other processes can begin it.

The walk takes nodes in the order of their floors, so a unit on the frontier is needed unless the
walk ends before it gets there. Nothing here decides anything about the walk itself.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage_onnx.superopt.choices import Counts
from mirage_onnx.superopt.plans import Plans, Push, Run, _Open
from mirage_onnx.superopt.unit_worker import Job
from mirage_onnx.superopt.units import Units

#: Told a floor of the plan that needs a job, and the job.
Offer = Callable[[float, Job], None]


class ForeseenPlans(Plans):
    """``Plans`` that offer every job on the frontier."""

    def __init__(self, units: Units, run: Run, counts: Counts, offer: Offer) -> None:
        super().__init__(units, run, counts)
        self._offer = offer

    def _open_groups(self, node: _Open, push: Push) -> None:
        super()._open_groups(node, self._offering(push))

    def _open_reads(self, node: _Open, push: Push) -> None:
        super()._open_reads(node, self._offering(push))

    def _offering(self, push: Push) -> Push:
        def offer_and_push(floor_us: float, node: _Open) -> None:
            if node.reads is not None:
                self._offer(floor_us, (node.group, node.reads))
            else:
                for roles in self.units.roles(node.group):
                    self._offer(floor_us, (node.group, roles))
            push(floor_us, node)

        return offer_and_push
