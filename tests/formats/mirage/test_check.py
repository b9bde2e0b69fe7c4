"""Saved graphs against their references: the verdict is what float64 says.

The truth is an interpreter of the JSON that shares no code with the reader (``saved_oracle``). The
files of ``saved_examples`` are ours, in the original's format; the published ones are read from
$MIRAGE_SAVED_MUGRAPHS or ../shared/mugraphs where they are.
"""

import json
from collections import Counter

import numpy as np
import pytest
from saved_damage import damaged
from saved_examples import EXAMPLES
from saved_mutants import mutants
from saved_oracle import run_saved
from saved_references import REFERENCES, VARIABLE, reference, references, saved_folder
from saved_scaling import scaled_down, scaled_shape
from saved_truth import EQUAL, Truth
from saved_values import read, values
from saved_wrong import WRONG, diagonal_of_a_loop, diagonal_of_a_product

import mirage_onnx.formats.mirage
from mirage_onnx.formats.mirage.check import SavedProgram, check_saved
from mirage_onnx.verify.equivalence import Proof, verify

FOLDER = saved_folder()
published = pytest.mark.skipif(
  FOLDER is None, reason=f"the published files are not here: set {VARIABLE} to their folder"
)
#: The published graphs of each file that equal their reference, of all in it.
COUNTS = {
  "gated_mlp.json": 32, "gqa_bs1.json": 28, "lora.json": 4, "mha_bs1.json": 21,
  "mqa_bs1.json": 12, "ntrans_bs1.json": 9, "rmsnorm_bs1.json": 18,
}  # fmt: skip
CODES = {"SAVED_INVALID", "SAVED_UNSUPPORTED", "NOT_EQUIVALENT"}


@pytest.fixture(scope="module")
def truths():
  return {n: Truth(e.reference(), np.random.default_rng(7)) for n, e in EXAMPLES.items()}


def written(tmp_path, graphs):
  path = tmp_path / "graphs.json"
  path.write_text(json.dumps(graphs))
  return path


def test_public_names():
  assert mirage_onnx.formats.mirage.check_saved is check_saved
  assert {"check_saved", "Verdict"} == set(mirage_onnx.formats.mirage.__all__)
  with pytest.raises(AttributeError, match="no attribute 'check_everything'"):
    mirage_onnx.verify.check_everything  # noqa: B018


@pytest.mark.parametrize("name", EXAMPLES)
def test_own_files(name, truths, tmp_path):
  path = tmp_path / f"{name}.json"
  path.write_text(EXAMPLES[name].text())
  verdicts = check_saved(path, EXAMPLES[name].reference())
  graphs = json.loads(path.read_text())
  assert [truths[name].error(g) for g in graphs] == pytest.approx([0] * len(graphs), abs=EQUAL)
  assert [(v.accepted, v.rejection) for v in verdicts] == [(True, None)] * len(graphs)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.name)
def test_wrong_graphs(wrong, truths, tmp_path):
  graph = wrong.graph()
  assert truths[wrong.example].error(graph) > 1e-2
  (verdict,) = check_saved(written(tmp_path, [graph]), EXAMPLES[wrong.example].reference())
  assert not verdict.accepted and verdict.proof is None
  assert verdict.rejection is not None and verdict.rejection.code in CODES


def accepted(graph, truth):
  """As ``check_saved`` decides, without looking for a counterexample."""
  ours = read(graph, truth)
  return isinstance(ours, SavedProgram) and isinstance(verify(ours.region, ours.ugraph), Proof)


def disagreements(graphs, truth, step, counts):
  """The mutants, of every ``step``-th edit, whose verdict is not what float64 says."""
  found = []
  for index, mutant in enumerate(m for g in graphs for m in mutants(g, step)):
    equal, verdict = truth.equal(mutant.graph), accepted(mutant.graph, truth)
    counts["equal" if equal else "wrong"] += 1
    if equal != verdict:
      found.append(f"{index}, {mutant.kind}: {'accepted' if verdict else 'refused'}")
  return found


#: Equal and refused, all of one kind: a loop that cuts no input makes everything n times as large,
#: and a norm divides by n again. The test of sqrt(n^2 x) = n sqrt(x) needs n to be a square.
REFUSED_EQUALS = {"residual_norm": 1}


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_mutants_of_own_graphs(name, step, truths):
  counts = Counter()
  found = disagreements(EXAMPLES[name].graphs(), truths[name], step, counts)
  print(f"{name}: {dict(counts)}")
  assert not any("accepted" in f for f in found)
  assert len(found) <= REFUSED_EQUALS.get(name, 0), found
  assert counts["wrong"] >= 90 // step and counts["equal"] >= 15 // step


@pytest.mark.parametrize("name", EXAMPLES)
def test_reading_keeps_the_values(name, truths):
  """The µGraph, with the saved numbers, computes what the JSON does, wrong ones included."""
  truth, compared = truths[name], 0
  graphs = EXAMPLES[name].graphs()
  changed = (m.graph for g in graphs for m in mutants(g, step=11))
  for graph in (*graphs, *changed):
    ours = read(graph, truth)
    if isinstance(ours, SavedProgram):
      with np.errstate(all="ignore"):
        (want,) = run_saved(graph, truth.inputs)
      np.testing.assert_allclose(values(ours, truth), want, rtol=1e-9, atol=1e-9)
      compared += 1
  assert compared > 4


SUMS_OF_ROWS = reference(lambda g, x, y: g.mul(g.reduction(x, 1), g.reduction(y, 1)), (8, 8), (8, 8))
SUM_OF_PRODUCTS = reference(lambda g, x, y: g.reduction(g.reduction(g.mul(x, y), 0), 1), (8, 1), (1, 8))


@pytest.mark.parametrize(
  ("given", "graph", "code"),
  [
    (SUMS_OF_ROWS, diagonal_of_a_loop, "NOT_EQUIVALENT"),
    (SUM_OF_PRODUCTS, diagonal_of_a_product, "SAVED_UNSUPPORTED"),
  ],
)
def test_different_axes_of_the_reference_stay_different(given, graph, code, tmp_path, rng):
  """A graph that runs along two axes at once computes a diagonal of the reference only."""
  (verdict,) = check_saved(written(tmp_path, [graph()]), given)
  assert Truth(given, rng).error(graph()) > 1e-2 and not verdict.accepted
  assert verdict.rejection is not None and verdict.rejection.code == code


def test_one_graph_of_a_file_does_not_spoil_the_others(tmp_path):
  right = EXAMPLES["gated"].graphs()
  path = written(tmp_path, [right[0], [{"op_type": "kn_input_op"}], right[1]])
  verdicts = check_saved(path, EXAMPLES["gated"].reference())
  assert [v.accepted for v in verdicts] == [True, False, True]
  assert verdicts[1].rejection is not None and verdicts[1].rejection.code == "SAVED_INVALID"


@pytest.mark.parametrize("name", EXAMPLES)
def test_damaged_files(name, truths, tmp_path, rng):
  """Whatever happens to a file, there is a verdict per graph, and a yes is true."""
  graphs = [damaged(g, rng, 1 + i % 2) for g in EXAMPLES[name].graphs() for i in range(25)]
  verdicts = check_saved(written(tmp_path, graphs), EXAMPLES[name].reference())
  yes = [g for g, v in zip(graphs, verdicts, strict=True) if v.accepted]
  assert 0 < len(yes) < len(graphs)
  assert all(truths[name].equal(g) for g in yes)


@published
def test_published_graphs():
  """Equal to their reference at small shapes by the oracle, and accepted as published."""
  assert FOLDER is not None
  small = references(scaled_shape)
  for name, right in references().items():
    graphs = json.loads((FOLDER / name).read_text())
    truth = Truth(small[name], np.random.default_rng(3))
    equal = [truth.equal(scaled_down(g)) for g in graphs]
    verdicts = [v.accepted for v in check_saved(FOLDER / name, right)]
    assert verdicts == equal and sum(equal) == COUNTS[name] == len(graphs), name


@published
@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_published_graphs_at_their_own_shapes(name):
  assert FOLDER is not None
  truth = Truth(references()[name], np.random.default_rng(3))
  graphs = json.loads((FOLDER / name).read_text())
  verdicts = check_saved(FOLDER / name, references()[name])
  assert [v.accepted for v in verdicts] == [truth.equal(g) for g in graphs]


@published
@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_mutants_of_published_graphs(name):
  assert FOLDER is not None
  truth = Truth(references(scaled_shape)[name], np.random.default_rng(3))
  graphs = [scaled_down(g) for g in json.loads((FOLDER / name).read_text())]
  counts = Counter()
  assert disagreements(graphs, truth, 17, counts) == []
  print(f"{name}: {dict(counts)}")
  assert counts["wrong"]
