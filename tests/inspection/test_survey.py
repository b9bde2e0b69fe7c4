"""What a survey says of small models: which regions, what they save, and what is left out."""

from itertools import combinations

import pytest
from refused import refused
from small_models import norm_to_three

from mirage_onnx.choosing.disappearing import disappearing
from mirage_onnx.cost.region_work import Flops
from mirage_onnx.importer import load_model
from mirage_onnx.inspection import survey_model
from mirage_onnx.target import H200


def survey(model, **shapes):
  return survey_model(load_model(model), H200, shapes=shapes)


def test_identical_regions_are_one_offer():
  found = survey(norm_to_three())
  counts = sorted(len(o.chosen) for o in found.offers.values() if o.chosen)
  assert counts == [1, 2]
  (pair,) = (o for o in found.offers.values() if len(o.chosen) == 2)
  assert {c.region.key for c in pair.instances} == {pair.region.key}
  assert {len(o) for c in pair.chosen for o in [c.outputs]} == {1}


def test_gains_of_the_regions_add_up():
  """The norm is computed in all three regions, but its time is saved once."""
  found = survey(norm_to_three())
  assert found.covered == {n.name for n in found.program.nodes}
  assert found.saved_us == pytest.approx(found.time_us(found.covered))
  gains = [o.total_gain_us for o in found.offers.values()]
  assert sum(gains) == pytest.approx(found.saved_us - found.floor_us)
  alone = sum(len(o.chosen) * o.gain_us for o in found.offers.values())
  assert alone > sum(gains)
  assert gains == sorted(gains, reverse=True)


def test_work_of_the_model_counts_every_node_and_weight_once():
  found = survey(norm_to_three())
  contraction = 2 * 8 * 512 * (128 + 128 + 256)
  assert found.flops() == found.flops(found.covered) == Flops(contraction, 4 * 8 * 512 + 2 * 8)
  # epsilon and the axis of the mean are initializers too
  assert found.weight_bytes() == 2 * (512 + 512 * (128 + 128 + 256)) + 2 + 8
  assert found.weight_bytes([]) == 0 and found.flops([]) == Flops()


def test_barriers_by_reason(net):
  x = net.input(8, 64)
  a, b = net.Hardmax(x), net.Hardmax(x, axis=0)
  y = net.Abs(net.Exp(x))
  found = survey(net.model(a, b, y))
  (barrier,) = found.barriers
  assert (barrier.code, dict(barrier.ops)) == ("OP_UNKNOWN", {"Hardmax": 2})
  assert len(barrier.nodes) == 2 and "Hardmax" in barrier.reason
  assert found.offered == {n.name for n in found.program.nodes} - set(barrier.nodes)


def test_a_model_without_regions(net):
  found = survey(net.model(net.Exp(net.input(8, 64))))
  assert not found.offers and not found.chosen and found.saved_us == found.floor_us == 0
  assert [b.code for b in found.barriers] == ["TOO_SMALL"]


def test_what_cannot_be_faster_is_not_chosen(net):
  """A contraction of so many rows that ONNX Runtime is at the tensor cores' peak."""
  y = net.Relu(net.MatMul(net.input(8192, 512), net.weight(512, 2048)))
  (offer,) = survey(net.model(y)).offers.values()
  assert (offer.gain_us > 0) == bool(offer.chosen)


def test_disappearing_is_what_nobody_reads(net):
  """Against the definition: of all sets that nobody outside needs, the largest."""
  total = net.Add(net.input(8, 64), net.input(8, 64))
  a, b = net.Mul(net.Exp(total), 2.0), net.Mul(net.Tanh(total), 2.0)
  found = survey(net.model(a, b, net.Hardmax(total)))
  program, readers = found.program, found.program.consumers()
  for count in range(3):
    for used in combinations(found.matches.candidates, count):
      covered = {n for c in used for n in c.nodes}
      yielded = {o for c in used for o in c.outputs}
      read = {i.tensor.name for c in used for i in c.region.inputs} | set(program.outputs)
      good = [
        set(some)
        for size in range(len(covered) + 1)
        for some in combinations(sorted(covered), size)
        if all(
          o in yielded or (o not in read and set(readers.get(o, ())) <= set(some))
          for n in program.nodes if n.name in some
          for o in n.outputs
        )
      ]  # fmt: skip
      assert disappearing(program, used) == max(good, key=len)


def test_sizes_of_dynamic_dimensions(net):
  """Times are those at the typical size, which --shapes sets."""
  model = net.model(net.MatMul(net.rms(net.input("rows", 64)), net.weight(64, 64)))
  default, large = survey(model), survey(model, rows=(4096, 8192))
  assert default.sizes == {"rows": (1, 16, 256)} and default.typical == {"rows": 16}
  assert large.sizes == {"rows": (4096, 8192)} and large.typical == {"rows": 8192}
  assert large.flops().total > 100 * default.flops().total
  with refused("OPTION_INVALID", "no dynamic dimension is called 'cols'; there are: rows"):
    survey(model, cols=(1,))
