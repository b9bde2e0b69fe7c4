"""Instances of one region: which of them compute alike, step by step."""

from small_models import Net, matches

from mirage_onnx.match.twins import step_form


def two_layers(second):
  """The product of a square, twice; the second one's square as ``second`` says."""
  net = Net()
  x = net.input(8, 64)
  squares = (net.Mul(x, x), net.Mul(x, x) if second == "Mul" else net.Pow(x, 2.0))
  return net.model(*(net.MatMul(net.Sub(s, 1.0), net.weight(64, 64)) for s in squares))


def whole_layers(model):
  found = [c.region for c in matches(model).candidates if len(c.nodes) == 3]
  assert len(found) == 2
  return found


def test_names_and_weights_make_no_difference():
  first, second = whole_layers(two_layers("Mul"))
  assert first.nodes != second.nodes
  assert step_form(first) == step_form(second)


def test_other_steps_with_equal_terms_have_another_form():
  first, second = whole_layers(two_layers("Pow"))
  assert first.key == second.key
  assert step_form(first) != step_form(second)


def test_other_types_between_have_another_form():
  """The key has the types of what is read and written only."""
  regions = []
  for wide in (False, True):
    net = Net()
    x = net.input(8, 64)
    a = net.cast(x, "float32") if wide else x
    s = net.Mul(a, a)
    s = net.cast(s, "float16") if wide else s
    (c,) = [
      c for c in matches(net.model(net.MatMul(s, net.weight(64, 64)))).candidates
      if len(c.nodes) == (4 if wide else 2)
    ]  # fmt: skip
    regions.append(c.region)
  assert regions[0].key == regions[1].key
  assert step_form(regions[0]) != step_form(regions[1])
