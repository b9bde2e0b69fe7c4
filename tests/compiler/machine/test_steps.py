"""Blocks and natural loops of a list of steps."""

from mirage_onnx.compiler.machine.steps import MachineFlow, MachineStep, WgmmaStep

S = MachineStep
#: 0; outer from 1: inner 2 to 3, with a way round from 4 back to 3 that stands behind it; 5 leaves.
NESTED = [S(), S(), S(to=(6,)), S(to=(2,)), S(to=(1,)), S(falls=False), S(to=(3,), falls=False)]


def test_loops_by_dominators():
  """A jump to an earlier place is no loop of its own where something else leads to that place, too."""
  flow = MachineFlow(NESTED)
  starts = {flow.blocks[x.head][0]: {flow.blocks[b][0] for b in x.blocks} for x in flow.loops}
  assert starts == {1: {1, 2, 3, 4, 6}, 2: {2, 3, 6}}
  assert [flow.blocks[x.head][0] for x in flow.loops_of(6)] == [2, 1]
  assert flow.loops_of(5) == flow.loops_of(0) == []


def test_registers_of_products_and_what_is_copied_into_them():
  steps = [S(("b",), "c"), S(("a",), "b"), S(product=WgmmaStep(8, ("a",), ("d",))), S(("e",), "f")]
  assert MachineFlow(steps).registers_of_products == {"a", "b", "c", "d"}
