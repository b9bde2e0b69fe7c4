"""What layers far apart have in common is no matter of their windows."""

from scipy import optimize
from small_models import layers_with_a_mask

from mirage_onnx.choosing import partition
from mirage_onnx.choosing.partition import choose


def test_layers_with_a_mask_in_common_are_one_problem_of_windows(net, monkeypatch):
  """The choice is that of windows which have to do with all that was chosen before, of fewer problems."""
  calls, real = [], optimize.milp
  program, found, node_us = layers_with_a_mask(net)
  parts = [0.5 + int(c.key[:4], 16) / 2**18 + 0.2 / len(c.nodes) for c in found]
  times = [sum(node_us[n] for n in sorted(c.nodes)) * p for c, p in zip(found, parts, strict=True)]
  monkeypatch.setattr(partition, "WHOLE", 1)
  monkeypatch.setattr(partition, "WINDOW", 3 * len(found) // 16)
  monkeypatch.setattr(partition, "least_cost", lambda *_: None)
  monkeypatch.setattr(optimize, "milp", lambda *a, **k: calls.append(1) or real(*a, **k))
  used, solved = choose(program, found, times, node_us), len(calls)
  calls.clear()
  own = partition.far_nodes(found, [0] * len(found), {n.name: n for n in program.nodes}, {})
  assert not own.names  # candidates that all end at one place share nothing far away
  monkeypatch.setattr(partition, "far_nodes", lambda *_: own)
  assert choose(program, found, times, node_us) == used
  assert used and solved < 0.7 * len(calls), (solved, len(calls))
