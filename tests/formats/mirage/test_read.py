"""Reading: the interface, the cuts, and every way in which a graph contradicts itself."""

import copy
import re

import pytest
import saved_references as programs
from saved_examples import EXAMPLES
from saved_mutants import operators
from saved_oracle import NotExecutableError, run_saved
from saved_values import read
from saved_writer import Graph, MisfitError, begun, recorded
from saved_wrong import op

from mirage_onnx.errors import Rejection
from mirage_onnx.formats.mirage.check import SavedProgram

COLUMNS = (1, -1, -1)


def tensor(o, side="output_tensors"):
  return o[side][0]


def resized(o, *dims):
  tensor(o)["dim"] = [*dims, *[0] * (4 - len(dims))]


#: Edits of norm_linear, whose shapes are *not* recorded anew.
CONTRADICTIONS = {
  "a missing input": (lambda g: g.pop(0), "has 1 inputs, the reference 2"),
  "a missing output": (lambda g: g.pop(), "has 0 outputs, the reference 1"),
  "two outputs": (lambda g: g.append(g[-1]), "has 2 outputs, the reference 1"),
  "another shape of an input": (lambda g: resized(g[0], 4, 8), r"input 0 is \(4, 8\) of f16"),
  "another type of an input": (lambda g: tensor(g[1]).update(data_type=920), "bf16, not .* f16"),
  "a second definition": (lambda g: g.__setitem__(1, g[0]), "defined twice"),
  "a stale shape of a tile": (lambda g: resized(op(g, "matmul"), 8, 4), r"matmul gives \(8, 2\)"),
  "a stale shape of a reader": (
    lambda g: tensor(op(g, "accum_nored"), "input_tensors").update(dim=[8, 4, 0, 0]),
    r"block tensor \d+ is \(8, 2\), its reader says \(8, 4\)",
  ),
  "a stale shape of a kernel's output": (
    lambda g: [
      t.update(dim=[8, 4, 0, 0]) for t in (op([g[2]], "output")["dtensor"], tensor(g[2]))
    ],
    r"the blocks write \(8, 8\), recorded is \(8, 4\)",
  ),
  "another shape of it in the kernel": (
    lambda g: tensor(g[2]).update(dim=[8, 2, 0, 0]), "reads or writes other tensors than"
  ),
  "the wrong side of the loop": (
    lambda g: tensor(op(g, "matmul")).update(after_accum=True), "wrong side of the loop's end"
  ),
  "a block input that the kernel does not have": (
    lambda g: g[2]["input_tensors"].pop(), "reads or writes other tensors than its kernel"
  ),
  "one operand": (lambda g: op(g, "matmul")["input_tensors"].pop(), "matmul has 1 inputs"),
  "two results": (
    lambda g: op(g, "div")["output_tensors"].append(tensor(op(g, "div"))), "2 outputs"
  ),
  "an unknown operator": (
    lambda g: op(g, "div").update(op_type="tb_concat_0_op"), "no rule for the operator concat_0"
  ),
  "a store inside the loop": (
    lambda g: op([g[2]], "output").update(input_tensors=op(g, "matmul")["output_tensors"]),
    "stored before an accumulator",
  ),
  "an uneven cut": (
    lambda g: g[2]["bgraph"].update(forloop_range=3), "a dimension of 8 is cut into 3 pieces"
  ),
  "a grid that nothing is written along": (
    lambda g: op([g[2]], "output")["output_map"].update(x=-1), "blocks of grid x all write"
  ),
  "an output map out of range": (
    lambda g: (
      op([g[2]], "output")["output_map"].update(x=2),
      op([g[2]], "output")["dtensor"].update(num_dims=3, dim=[8, 2, 4, 0]),
      tensor(g[2]).update(num_dims=3, dim=[8, 2, 4, 0]),
    ),
    "an output map names dimension 2 of 2",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions(name, rng):
  edit, reason = CONTRADICTIONS[name]
  graph = copy.deepcopy(EXAMPLES["norm_linear"].graphs()[0])
  edit(graph)
  found = read(graph, EXAMPLES["norm_linear"].reference())
  assert isinstance(found, Rejection) and found.code in ("SAVED_INVALID", "SAVED_UNSUPPORTED")
  assert re.search(reason, found.reason), found.reason


def test_too_few_inputs():
  graph = EXAMPLES["norm_linear"].graphs()[0]
  three = programs.gated_mlp((8, 8), (8, 8))
  found = read(graph, three)
  assert isinstance(found, Rejection) and "2 inputs, the reference 3" in found.reason


def test_inputs_correspond_by_position():
  """An input that the reference does not read may be there; a graph that reads it is refused."""
  shapes = [(4, 6)] * 3
  reference = programs.reference(lambda g, x, _, z: g.add(x, z), *shapes)
  for second, fits in ((2, True), (1, False)):
    g, *inputs = begun(*shapes)
    g.output(g.op("add", inputs[0], inputs[second]))
    found = read(g.saved(), reference)
    assert isinstance(found, SavedProgram) == fits
    if isinstance(found, SavedProgram):
      assert sorted(t.name for t in found.ugraph.tensors) == ["i0", "i1", "o0"]
    else:
      assert "or not an input" in found.reason


TWO_OUTPUTS = programs.reference(lambda g, x: (g.exp(x), g.square(x)), (4, 6))


def test_outputs_correspond_by_position():
  g, x = begun((4, 6))
  e, s = g.op("exp", x), g.op("square", x)
  g.output(e)
  g.output(s)
  found = read(g.saved(), TWO_OUTPUTS)
  assert isinstance(found, SavedProgram)
  region = found.region
  kinds = [next(o for o in k.ops if o.op != "load").op for k in found.ugraph.kernels]
  names = [k.saves[0].tensor for k in found.ugraph.kernels]
  position = {o.tensor.name: o.name for o in region.outputs}
  assert kinds == ["exp", "square"] and names == [position["exp0"], position["square1"]]


@pytest.mark.parametrize("twice", [True, False])
def test_an_output_is_one_tensor_of_its_own(twice):
  g, x = begun((4, 6))
  e = g.op("exp", x)
  g.output(e)
  g.output(e if twice else x)
  found = read(g.saved(), TWO_OUTPUTS)
  assert isinstance(found, Rejection) and found.code == "SAVED_UNSUPPORTED"
  assert "is an input, or is another output as well" in found.reason


def test_two_grid_dimensions_on_one_dimension():
  reference = programs.reference(lambda g, x: g.exp(x), (8, 8))
  g = Graph()
  k = g.kernel((2, 2, 1))
  e = k.op("accum_nored", k.op("exp", k.load(g.input(8, 8), (0, 0, -1))))
  g.output(k.store(e, (0, 0, -1)))
  g.operators.insert(0, g.operators.pop(1))
  found = read(g.saved(), reference)
  assert isinstance(found, Rejection) and "mapped to one dimension" in found.reason


def misfits():
  """Mutants whose operations do not fit together, with the shapes of before the change."""
  graph = EXAMPLES["gated"].graphs()[0]
  found = []
  for n, o in enumerate(operators(graph)):
    for position in range(len(o["input_tensors"])):
      for other in operators(graph)[:n]:
        changed = copy.deepcopy(graph)
        new = other["output_tensors"]
        if o["op_type"][:3] != other["op_type"][:3] or not new:
          continue
        operators(changed)[n]["input_tensors"][position]["guid"] = new[0]["guid"]
        try:
          recorded(changed)
        except MisfitError as e:
          found.append((str(e), changed))
  return found


def test_misfits_are_refused(rng):
  """What cannot be recorded consistently is neither executable nor read."""
  reference = EXAMPLES["gated"].reference()
  arrays = [rng.standard_normal((8, 8)) for _ in range(3)]
  graphs = misfits()
  assert len(graphs) > 20
  for reason, graph in graphs:
    with pytest.raises(NotExecutableError):
      run_saved(graph, arrays)
    found = read(graph, reference)
    assert isinstance(found, Rejection), reason
