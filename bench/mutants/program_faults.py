"""Wrong programs: µGraphs with one mistake, before the verifier sees them and behind it."""

from dataclasses import replace
from functools import partial

from found_programs import wrong as difference_of
from mutations import mutants

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.ir import print_ugraph
from mutants.harness import Fault
from mutants.hooks import changed, patched, production
from mutants.survey import survey

COMPILE = ("mirage_onnx.tune.ahead:compile_candidates", "mirage_onnx.tune.tuning:compile_candidates")
UGRAPH = "mirage_onnx.superopt.plans:Plans.ugraph"
NUMBERS = (
  ("cluster", 2), ("loop_tile", 0.5), ("loop_tile", 2), ("warps", 2), ("warps", 0.5), ("stages", 2),
  ("stages", 0),
)  # fmt: skip


def behind(bench, subject):
  """What the verifier has passed is another program when it is compiled, or has other numbers."""
  for n, (region, candidate) in enumerate(_candidates(bench, subject)):
    for i, (kind, graph) in enumerate(mutants(candidate.ugraph)):
      yield _compiled(subject, f"{n} {kind} {i}", region, candidate, replace(candidate, ugraph=graph))
    for k, p in enumerate(candidate.params):
      for name, new in _numbers(p):
        params = (*candidate.params[:k], new, *candidate.params[k + 1 :])
        yield _compiled(
          subject, f"{n} kernel {k}: {name}", region, candidate, replace(candidate, params=params)
        )


def before(bench, subject):
  """What the search makes is another program when the verifier is asked about it."""
  for n, (_, candidate) in enumerate(_candidates(bench, subject)):
    for i, (kind, graph) in enumerate(mutants(candidate.ugraph)):
      same, other = partial(_equal, candidate.ugraph), partial(_other, graph)
      plant = partial(changed, same, other, UGRAPH)
      yield Fault("search", subject, f"{n} {kind} {i}", plant, searches=True)


def _candidates(bench, subject):
  found = {c.candidate.ugraph: (r, c.candidate) for r, c in survey(bench, subject).chosen}
  return tuple(found.values())


def _equal(graph, value):
  return value == graph


def _other(graph, _):
  return graph


def _compiled(subject, name, region, candidate, wrong):
  compile_candidates = production(COMPILE[0])

  refused = []  # the check of instances refuses it, and asks for what the verifier has passed: once

  def compiled(region, candidates, *args, **more):
    same = [not refused and (c.ugraph, c.params) == (candidate.ugraph, candidate.params) for c in candidates]
    refused.extend(c for c, other in zip(candidates, same, strict=True) if other)
    given = [wrong if other else c for c, other in zip(candidates, same, strict=True)]
    return compile_candidates(region, given, *args, **more)

  plant = partial(patched, compiled, *COMPILE)
  right = partial(_is_right, region, candidate, wrong)
  return Fault("program", subject, name, plant, holds=partial(_holds, wrong), is_right=right)


def _is_right(region, candidate, wrong):
  """Other numbers of the same program give the same values; of another one the plain interpreter tells."""
  return wrong.ugraph == candidate.ugraph or difference_of(region, wrong.ugraph) is None


def _holds(wrong, path):
  """Whether a plan of the model was made of this candidate."""
  text, numbers = print_ugraph(wrong.ugraph), [p.to_text() for p in wrong.params]
  records = ModelFile.read(str(path)).bundle().provenance
  return any(r["ugraph"] == text and r["params"] == numbers for r in records)


def _numbers(p):
  for field, factor in NUMBERS:
    value = int(getattr(p, field) * factor)
    if value != getattr(p, field):
      yield f"{field} is {value}", replace(p, **{field: value})
  for d, tile in enumerate(p.tile):
    for value in (tile // 2, tile * 2, tile + 1):
      if value:
        yield f"tile {d} is {value}", replace(p, tile=(*p.tile[:d], value, *p.tile[d + 1 :]))
