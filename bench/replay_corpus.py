"""Where the entries of the kernel replay come from; slow parts (searches, matching) happen here only.

- goldens: the golden µGraphs of the tests, with their numbers.
- programs: what the search finds for the programs of search_programs.py, at full size, with the
  numbers that the cost model likes best.
- graphs: block graphs of tests/codegen, also with sizes that only a launch knows.
- random: random kernels (tests/support/random_kernels.py).
- hopper: products and contractions of activations by wgmma, with and without masks of constants (those of
  warpgroup_products.py and warpgroup_attention.py), packed weights by wgmma, loops over a cache that a run
  ends.
- speed: what the rows of the speed table ran (bench/results/h200/speed.json).
- models: the kernels of optimized models, read from the models named on the command line. Recorded are those
  of real_archive.py's whole_minilm_l6_1x128 and whole_bert_base_1x128 (--budget 300),
  whole_qwen3_0.6b_decode1024 and whole_llama3_8b_4l_decode4096 (--budget 240), and of models/*.onnx, all with
  --target h200.
- runtime: entries of the other groups, each axis of the grid counted at run time, where that is possible.
"""

import json
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]

from replay_record import Entry, made, read_group, read_record, write_group
from small_models import region_of

from mirage_onnx.ir import KernelParams, parse_ugraph, print_ugraph
from mirage_onnx.target import H100, H200

#: Sets of numbers of a program of the search, random kernels, and sets of numbers of what is only made here.
POINTS, SEEDS, MADE = 4, 400, 3
SPEED = ROOT / "bench" / "results" / "h200" / "speed.json"


def _entry(name, graph, params, extents, runtime=(), target=H200.name):
  text = graph if isinstance(graph, str) else print_ugraph(graph)
  numbers = tuple(p if isinstance(p, str) else p.to_text() for p in params)
  sizes = dict(sorted(extents.items()))
  return Entry(name, target, sizes, tuple(sorted(runtime)), text, numbers)


def goldens(_):
  from goldens import GOLDENS

  for g in GOLDENS:
    yield _entry(g.name, g.ugraph, g.params, g.region.extents)


def programs(_):
  from golden_graphs import NAMES, golden_graph
  from golden_kernels import numbered
  from search_programs import PROGRAMS

  for name in sorted(NAMES):
    region, graph = PROGRAMS[name](), golden_graph(name)
    for i, (_, params) in enumerate(numbered(graph, region, H200, POINTS)):
      yield _entry(f"{name}.{i}", graph, params, region.extents)


def graphs(_):
  sys.path.append(str(ROOT))
  from tests.codegen.test_runtime_sizes import CASES
  from tests.support.block_graphs import Graphs

  for i, (name, axes, extents, params) in enumerate(CASES):
    every = {**extents, **dict.fromkeys(axes.split(), 8)}
    graph = Graphs()[name]
    for runtime in ((), axes.split()):
      yield _entry(f"{name.replace(':', '_')}.{i}.{len(runtime)}", graph, [params], every, runtime)


def random(_):
  from random_kernels import random_kernel

  for seed in range(SEEDS):
    k = random_kernel(seed)
    yield _entry(f"{seed:04}", k.graph, k.params, k.extents)


def hopper(_):
  sys.path.append(str(ROOT))
  import warpgroup_attention
  import warpgroup_products

  from mirage_onnx.superopt.tiled_numbers import solve_tiled
  from mirage_onnx.superopt.warpgroup_chains import chained_points
  from mirage_onnx.superopt.warpgroup_numbers import warpgroup_points
  from tests.codegen.tiled.test_widened import MODELS, graph_of, numbers
  from tests.codegen.tiled.test_widened import POINTS as WIDENED
  from tests.lower.test_unseen import ATTENDED

  def solved(name, text, extents, solve):
    graph = parse_ugraph(text)
    tensors = {t.name: t for t in graph.tensors}
    found = [p for _, p in solve(graph.kernels[0], tensors, extents, H100, keep=2 * MADE)]
    kinds = {solve.__name__: [p for p in found if not p.teams], "fed": [p for p in found if p.teams]}
    for kind, n in ((kind, n) for kind, own in kinds.items() for n in range(min(MADE, len(own)))):
      for runtime in [(), ("a0",)] if n == 0 else [()]:
        at = f"{name.replace(' ', '_').replace('/', '_')}.{kind}.{n}.{len(runtime)}"
        yield _entry(at, graph, [kinds[kind][n]], extents, runtime, H100.name)

  for name, (rows, depth, columns, kind, dtype) in warpgroup_products.CASES.items():
    text, extents = warpgroup_products.text(kind, dtype), {"a0": rows, "a1": depth, "a2": columns}
    yield from solved(name, text, extents, warpgroup_points)
  for name, case in (warpgroup_attention.CASES | warpgroup_attention.SMALL).items():
    for solve in (chained_points, solve_tiled):
      yield from solved(name, case.text, case.extents, solve)
  for name, (model, how) in MODELS.items():
    region = region_of(model(**how))
    graph = graph_of(region)
    for n, point in enumerate(WIDENED):
      yield _entry(f"{name}.{n}", graph, [numbers(graph, region, *point)], region.extents)
  sizes = {"a0": 512, "a1": 128, "a3": 16, "a4": 128}
  for n, params in enumerate((KernelParams((16,), 1, 64, 4, 3), KernelParams((8,), 4, 32, 4, 2))):
    for runtime in ((), ("a0",)):
      yield _entry(f"cache.{n}.{len(runtime)}", ATTENDED, [params], sizes, runtime)


def speed(_):
  """Of a row's model the regions are found again, for their extents."""
  from cases import ROWS

  results = json.loads(SPEED.read_text())["results"]
  for result in results:
    row, size = result["case"].split("/")
    case = ROWS[row].make(**{**ROWS[row].sizes, **ROWS[row].nearby}[size])
    regions = _regions(case)
    for arm, done in result["optimize"].items():
      for i, (was, params) in enumerate(zip(done["replaced"], done["params"], strict=True)):
        region = _region_of(was["ugraph"], params, regions)
        if region is None:
          print(f"{result['case']} {arm} {i}: the model has no such region any more")
          continue
        name = f"{row}.{size}.{arm}.{i}"
        yield _entry(name, was["ugraph"], params, region.extents, region.runtime)


def _regions(case):
  from mirage_onnx.importer import import_model, load_model
  from mirage_onnx.match.candidates import find_candidates
  from mirage_onnx.match.cuts import TIMED

  program = import_model(load_model(case.model))
  found = find_candidates(program, TIMED).candidates
  return {c.region.text: c.region for c in found}.values()


def _region_of(text, params, regions):
  """The region that a µGraph is a program of: a proof tells it from others of its interface."""
  from mirage_onnx.ir import ugraph_extents
  from mirage_onnx.ir.spec import check_interface
  from mirage_onnx.verify.equivalence import verify

  graph = parse_ugraph(text)
  for region in regions:
    if check_interface(region, graph) is None and hasattr(verify(region, graph), "bound"):
      ugraph_extents(graph, [KernelParams.from_text(p) for p in params], region.extents)
      return region
  return None


def models(paths):
  from mirage_onnx.custom_op.model_nodes import ModelFile

  for path in paths:
    seen = set()
    for record in ModelFile.read(str(path)).bundle().provenance:
      extents, runtime = _sizes(record["region"])
      name = f"{path.stem}.{len(seen)}"
      entry = _entry(name, record["ugraph"], record["params"], extents, runtime, record["target"])
      if entry.key not in seen:
        seen.add(entry.key)
        yield entry


def _sizes(region):
  """Extents and run-time axes, as ``Region.text`` says them."""
  lines = region.splitlines()
  extents = {a: int(n) for a, n in (w.split("=") for w in lines[1].split(" ")[1:])}
  return extents, [a for line in lines if line.startswith("runtime ") for a in line[8:].split(",")]


def runtime(folder):
  """Only what is no refusal: an axis outside of the grid never is one of a launch."""
  for entry in read_record(folder):
    if entry.runtime or entry.group not in ("goldens", "programs", "speed", "models"):
      continue
    grid = {a for line in entry.graph.splitlines() if line.startswith("kernel")
            for a in line.split("grid=")[1].split(" ")[0].split(",")}  # fmt: skip
    for axis in sorted(grid & {*entry.extents}):
      tried = replace(entry, name=f"{entry.group}.{entry.name.split('/')[1]}.{axis}", runtime=(axis,))
      if all(m.text for m in made(tried)):
        yield tried


GROUPS = {
  "goldens": goldens, "programs": programs, "graphs": graphs, "random": random, "hopper": hopper,
  "speed": speed, "models": models, "runtime": runtime,
}  # fmt: skip


def collect(folder, groups, paths):
  """Write the entries of these groups, equal ones once."""
  for group in groups:
    found = GROUPS[group](folder if group == "runtime" else paths)
    once = {}
    for e in found:
      name = e.name.removeprefix(f"{group}/")
      once.setdefault(e.key, replace(e, name=f"{group}/{name}"))
    ordered = [e for _, some in groupby(once.values(), lambda e: e.graph) for e in some]
    write_group(folder / f"{group}.jsonl", ordered)
    print(f"{group}: {len(read_group(folder / f'{group}.jsonl'))} entries")
