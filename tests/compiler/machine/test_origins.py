"""Where registers of products come from, seen from loops and in the whole kernel."""

from mirage_onnx.compiler.machine.origins import Origin, origins, places
from mirage_onnx.compiler.machine.steps import MachineFlow, MachineStep, WgmmaStep

S = MachineStep
OUTSIDE, HERE, EARLIER, PLAIN = Origin.OUTSIDE, Origin.HERE, Origin.EARLIER, Origin.PLAIN


def product(a, sums="d"):
  return S((sums,), product=WgmmaStep(8, (a,), (sums,)))


def of(*inner, behind=()):
  """A loop of these steps behind the computation of q, then others."""
  steps = [S(("q",)), S(), *inner, S(to=(1,)), *behind]
  flow = MachineFlow(steps)
  (loop,) = flow.loops
  return [x for _, x in sorted(origins(flow, loop).items())], [x for _, x in sorted(places(flow).items())]


def test_operands_of_a_loop():
  assert of(product("q"))[0] == [(OUTSIDE, OUTSIDE | EARLIER)]
  assert of(S(("p",)), product("p"))[0] == [(HERE, OUTSIDE | EARLIER)]
  assert of(S(("d",), plain=True), S(("p",), "q"), product("p"))[0] == [(OUTSIDE, PLAIN)]


def test_an_operand_that_the_loop_overwrites():
  assert of(product("q"), S(("q",)))[0][0][0] == OUTSIDE | EARLIER
  assert of(S(("q",), may=True), product("q"))[0][0][0] == OUTSIDE | HERE | EARLIER
  assert of(product("q"), S(("q",), plain=True))[0][0][0] == OUTSIDE | PLAIN


def test_products_behind_a_loop():
  """Seen from the whole kernel what a loop has computed is another thing than what stood before it."""
  _, found = of(product("q"), S(("p",)), behind=(product("p"), product("q")))
  assert len({a for a, _ in found}) == 2 and found[0][0] == found[2][0] != found[1][0]
