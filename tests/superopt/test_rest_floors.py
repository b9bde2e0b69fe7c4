"""What is missing of a plan has a floor that passes nothing over, and regions that are kin share units."""

from dataclasses import replace

import pytest
from search_programs import PROGRAMS
from small_models import prover

from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.kin_units import KinUnits, kin
from mirage_onnx.superopt.plans import Plans
from mirage_onnx.superopt.rest_floors import RestFloors
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import ALL
from mirage_onnx.superopt.units import Units
from mirage_onnx.target import H200

slow = pytest.mark.slow
LONG = ("attention", "attention_additive_mask", "decode", "grouped_query", "linear_attention", "lora")


def found(region, hooks=None):
  result = search(region, H200, prover(), space=ALL, budget_s=600.0, hooks=hooks)
  candidates = [(v.candidate, v.proof.draws) for v in result.candidates]
  report = result.report
  return (candidates, report.stop, report.verified, [r.code for r in report.refused]), report.built


@pytest.mark.parametrize("name", ["pooled_linear", *(pytest.param(n, marks=slow) for n in LONG)])
def test_nothing_is_passed_over(name, monkeypatch):
  """Without these floors the same programs are found, of not many more kernels (floors begin at 32 units)."""
  region = PROGRAMS[name]()
  quick, few = found(region)
  monkeypatch.setattr(Plans, "_least_us", lambda self, node, floor_us, walk: floor_us)
  patient, many = found(region)
  assert quick == patient
  assert few <= 1.3 * many


def test_a_walk_goes_as_far_as_it_is_asked():
  taken = []

  def begin(c, kernels):
    for us in (1.0, 3.0, 2.0, 7.0, 9.0):
      taken.append((c, kernels, us))
      yield us

  floors = RestFloors(begin)
  assert floors.least_us((5,), 2, 2.5) == 3.0
  assert floors.least_us((5,), 2, 2.5) == 3.0
  assert [us for *_, us in taken] == [1.0, 3.0]
  assert floors.least_us((5,), 2, 4.0) == 7.0  # what was said stays, though the next was 2
  assert floors.least_us((5,), 2, 100.0) == 9.0  # a cost: there is no more
  taken.clear()
  assert floors.least_us((6, 5), 2, 8.0) == 9.0, "the dearest"
  assert taken == []
  assert floors.least_us((5,), 1, 0.5) == 1.0, "fewer kernels have a walk of their own"


def turned(region):
  """The same values, the outputs' axes in another order."""
  outputs = (replace(o, axes=o.axes[::-1], dims=o.dims[::-1]) for o in region.outputs)
  return replace(region, outputs=tuple(outputs))


def test_kin_differ_in_the_order_of_outputs_only():
  region = PROGRAMS["pooled_linear"]()
  assert len(region.outputs[0].axes) > 1
  assert kin(turned(region)) == kin(region)
  assert turned(region).text != region.text
  other = {a: 2 * n for a, n in region.extents.items()}
  assert kin(replace(region, extents=other)) != kin(region)
  assert kin(PROGRAMS["lora_two_adapters"]()) != kin(region)


@pytest.mark.parametrize("name", ["pooled_linear", pytest.param("attention", marks=slow)])
def test_kin_find_the_same_as_alone(name, monkeypatch):
  """With the units of the first, the second derives less, and finds what it finds alone."""
  parts = []
  outlined = Units.outline_part
  monkeypatch.setattr(Units, "outline_part", lambda self, c, d: (parts.append(c), outlined(self, c, d))[1])
  one, other = PROGRAMS[name](), turned(PROGRAMS[name]())
  alone, count = found(other), len(parts)
  hooks = Hooks()
  found(one, hooks)
  parts.clear()
  assert found(other, hooks) == alone
  assert len(parts) < 0.7 * count


def test_what_was_used_longest_ago_goes_first():
  regions = [PROGRAMS[n]() for n in ("pooled_linear", "lora_two_adapters", "softmax_rows")]
  known = KinUnits(most=10)
  setting = H200, None, (), ALL
  first, second = (known.of(r, *setting) for r in regions[:2])
  first.derivations, second.derivations = 6, 4
  assert known.of(regions[0], *setting) is first
  second.derivations = 5
  assert known.of(regions[2], *setting).derivations == 0
  assert known.of(regions[0], *setting) is first
  assert known.of(regions[1], *setting) is not second
