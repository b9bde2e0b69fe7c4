"""Every node that stays has a row that says why, also where all its regions overlap what was replaced."""

from dataclasses import replace

import numpy as np
import pytest
from small_models import Net

from mirage_onnx.errors import Rejection
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.pipeline import Run
from mirage_onnx.report.region_rows import region_rows
from mirage_onnx.tune.outcome import grouped

SLOWER = Rejection("NOT_FASTER", "9 us predicted against 8 us", ())


@pytest.fixture(scope="module")
def run():
  """Attention behind norms: what is in front of the softmax, and it, are replaced; a product stays."""
  net = Net()
  q, k, v = net.input(1, 4, 1, 32), net.input(1, 4, 300, 32), net.input(1, 4, 300, 32)
  q, k = (net.LayerNormalization(x, net.weight(32), axis=-1, epsilon=1e-5) for x in (q, k))
  scores = net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2])), np.float16(32**-0.5))
  loaded = load_model(net.model(net.MatMul(net.Softmax(scores, axis=-1), v)))
  program = import_model(loaded)
  matches = find_candidates(program)
  outcomes = {k: replace(o, rejection=SLOWER) for k, o in grouped(matches.candidates, {}).items()}
  chosen = []
  for ops in (["LayerNormalization"] * 2 + ["Transpose", "MatMul"], ["Mul", "Softmax"]):
    (key,) = [k for k, o in outcomes.items() if [n.split("_")[0] for n in o.region.nodes] == ops]
    outcomes[key] = replace(outcomes[key], rejection=None)
    chosen += [(outcomes[key].instances[0], outcomes[key])]
  return Run(loaded.given, program, matches, tuple(chosen), outcomes)


def staying(run):
  (left,) = {n.name for n in run.program.nodes} - {n for c, _ in run.chosen for n in c.nodes}
  return left


def explaining(run):
  """The kept rows that no other rule made: of nodes whose regions all overlap what was replaced."""
  return [r for r in region_rows(run) if r["id"].startswith("s")]


def test_what_stays_beside_what_was_replaced(run):
  (row,) = explaining(run)
  assert staying(run) in row["ops"]
  assert (row["status"], row["reason"], row["reason_text"]) == ("kept", SLOWER.code, SLOWER.reason)


def test_of_several_the_one_that_overlaps_least(run):
  (row,) = explaining(run)
  replaced = {n for c, _ in run.chosen for n in c.nodes}
  others = [o.region.nodes for o in run.outcomes.values() if staying(run) in o.region.nodes]
  overlaps = [len(replaced & {*nodes}) for nodes in others]
  assert len({*overlaps}) > 1 and len(replaced & {*row["ops"]}) == min(overlaps)


def test_a_kernel_that_would_win(run):
  """No refusal says why it was not taken: the choice does."""
  left = staying(run)
  free = {k: replace(o, rejection=None) if left in o.region.nodes else o for k, o in run.outcomes.items()}
  (row,) = explaining(replace(run, outcomes=free))
  assert (row["status"], row["reason"]) == ("kept", "NOT_CHOSEN") and row["reason_text"]


def test_nothing_is_said_twice(run):
  """A node that no region can hold, or with a region of its own that stays, has its row already."""
  alone = Rejection("TOO_SMALL", "nothing beside it to fuse with", (staying(run),))
  assert not explaining(replace(run, matches=replace(run.matches, rejections=(alone,))))
  (first, kept) = run.chosen
  refused = run.outcomes | {kept[1].region.key: replace(kept[1], rejection=SLOWER)}
  assert not explaining(replace(run, chosen=(first,), outcomes=refused))
