"""What touches registers of wgmma before they are waited for."""

import pytest

from mirage_onnx.compiler.machine.steps import MachineFlow, MachineStep, WgmmaStep
from mirage_onnx.compiler.machine.under_way import touched

S = MachineStep
ISSUED = S(("d",), product=WgmmaStep(8, ("a",), ("d",)), commits=True)
OTHER = S(("e",), product=WgmmaStep(8, ("b",), ("e",)), commits=True)


@pytest.mark.parametrize(
  "steps",
  [
    (ISSUED, S(ends=0), S(("a",)), S(("x",), reads=("d",))),
    (ISSUED, OTHER, S(ends=1), S(("a",))),
    (ISSUED, ISSUED, S(ends=0)),
    (S(("a",)), ISSUED, S(ends=0), S(to=(0,))),
    (ISSUED, S(("x",), reads=("a",)), S(ends=0)),
    (
      S(("d",), product=WgmmaStep(8, (), ("d",)), commits=True),
      S(to=(0,)),
    ),  # nothing ever waits, and it ends
  ],
)
def test_right(steps):
  assert touched(MachineFlow(steps)) is None


@pytest.mark.parametrize(
  ("steps", "what"),
  [
    ((ISSUED, S(("a",)), S(ends=0)), "a is written"),
    ((ISSUED, S(("d",)), S(ends=0)), "d is written"),
    ((ISSUED, S(("x",), reads=("d",))), "d is read"),
    ((ISSUED, OTHER, S(ends=1), S(("b",))), "b is written"),
    ((ISSUED, OTHER, S(ends=2), S(("a",))), "a is written"),
    ((ISSUED, *[OTHER] * 20, S(("a",))), "a is written"),
    ((S(("a",)), ISSUED, S(to=(0,))), "a is written"),
    ((ISSUED, S(("a",), product=WgmmaStep(8, ("c",), ("a",)), commits=True)), "a is written"),
  ],
)
def test_wrong(steps, what):
  assert what in touched(MachineFlow(steps))
