"""The text of a region, which is the input of its key."""

from dataclasses import replace

from small_models import Net, region_of


def scaled_linear():
  net = Net()
  x = net.input(8, 64)
  y = net.MatMul(net.rms(x, net.weight(64)), net.weight(64, 32))
  return region_of(net.model(y))


def test_text(golden):
  assert scaled_linear().text == golden


def test_two_outputs(net, golden):
  total = net.Add(net.input(8, 64), net.input(8, 64))
  assert region_of(net.model(total, net.rms(total, net.weight(64)))).text == golden


def test_the_key_is_of_structure_and_sizes():
  region = scaled_linear()
  assert region.text.endswith(region.structure)
  other = replace(region, extents={**region.extents, "a0": 128})
  assert other.structure == region.structure
  assert other.key != region.key
  renamed = replace(region, nodes=("other",) * len(region.nodes))
  assert renamed.key == region.key
  assert len(region.key) == 16
  assert int(region.key, 16) >= 0
