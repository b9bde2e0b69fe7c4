"""The replaced regions: a table of all, and a card for each with its µGraph, CUDA, proof and candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage_onnx.inspection.svg import CLASSES, legend, to_svg
from mirage_onnx.ir import KTensor
from mirage_onnx.report.page.candidates import candidates
from mirage_onnx.report.page.figures import bar, colour
from mirage_onnx.report.page.html import Markup, el, markup, short, size, table, times, us
from mirage_onnx.report.page.kernels import RegionKernels
from mirage_onnx.report.record_run import op_counts
from mirage_onnx.report.run_record import PlaceRecord, RegionRecord, RunRecord

#: Names that a list shows before it says how many more there are.
_SHOWN = 24


def regions(record: RunRecord, kernels: Sequence[RegionKernels]) -> Markup:
  """The section."""
  most = max([t for r in record.regions for t in (r.baseline_us, r.ours_us) if t], default=0.0)
  rows = []
  for i, r in enumerate(record.regions):
    mine = [p for p in record.places if p.region == i]
    says = f"{us(r.baseline_us)} before, {us(r.ours_us)} after, {us(r.work.floor_us)} at the limit"
    rows.append((
      el("a", _swatch(i), r.id, href=f"#region-{i}"), _title(record, mine), str(len(mine)), _baseline(r),
      us(r.ours_us), times(r.baseline_us, r.ours_us), us(r.work.floor_us),
      bar(i, r.baseline_us, r.ours_us, r.work.floor_us, most, says),
    ))  # fmt: skip
  head = (
    "region",
    "operators",
    "places",
    "before µs",
    "after µs",
    "speedup",
    "limit µs",
    "before, after | limit",
  )
  cards = [_card(record, i, kernels[i]) for i in range(len(record.regions))]
  return el(
    "section",
    el("h2", "Regions", id="regions"),
    table(head, rows, "Replaced regions; times are of one place", (2, 3, 4, 5, 6)),
    _legend(kernels),
    cards,
    aria_labelledby="regions",
  )


def _swatch(i: int) -> Markup:
  return el("span", class_=f"swatch {colour(i)}", aria_hidden="true")


def _title(record: RunRecord, places: Sequence[PlaceRecord]) -> str:
  return op_counts(record.nodes[n].op for n in places[0].nodes) if places else ""


def _baseline(r: RegionRecord) -> str:
  """With the nodes of unknown time left out it takes more."""
  least = "≥ " if r.unknown_nodes and not r.measured and r.baseline_us is not None else ""
  return least + us(r.baseline_us)


def _legend(kernels: Sequence[RegionKernels]) -> Markup | None:
  used = {x: None for k in kernels if k.ugraph for x in legend(k.ugraph)}
  if not used:
    return None
  marks = [(_mark(CLASSES[x]), f" {x}. ") for x in used]
  frames = "Dashed frames: what every iteration of the loop does, and what is done once."
  return el("p", "In the pictures of µGraphs: ", marks, frames, class_="note")


def _mark(kind: str) -> Markup:
  box = el("path", class_=f"box {kind}", d="M1 1h14v10H1z")
  return el("svg", box, class_="ug mark", width=16, height=12, aria_hidden="true")


def _card(record: RunRecord, i: int, kernels: RegionKernels) -> Markup:
  r = record.regions[i]
  mine = [p for p in record.places if p.region == i]
  heading = f"card-{i}"
  gain = f"{_baseline(r)} → {us(r.ours_us)} µs ({times(r.baseline_us, r.ours_us)}), "
  ran = _RAN.get(r.ran, f"Before it was written: {r.ran}.")
  lead = f"{gain}{r.choice}; limit {us(r.work.floor_us)} µs. {ran}".rstrip()
  return el(
    "article",
    el("h3", _swatch(i), f"{r.id} · {_title(record, mine)}", id=heading),
    el("p", lead),
    _facts(record, r, mine, kernels),
    _picture(r, kernels),
    _cuda(kernels),
    _proof(r),
    _candidates(i, r),
    _sizes(r),
    _places(record, r, mine, kernels, i),
    id=f"region-{i}", aria_labelledby=heading, tabindex=-1,
  )  # fmt: skip


_RAN = {
  "measured": "Its kernels ran and were timed on the GPU.",
  "emulated": "Its kernels ran in the emulator, at reduced sizes.",
  "never ran": "Its kernels never ran before they were written.",
  "": "",
}


def _facts(
  record: RunRecord, r: RegionRecord, places: Sequence[PlaceRecord], kernels: RegionKernels
) -> Markup:
  moved = f"{size(r.work.weight_bytes)} of weights, {size(r.work.activation_bytes)} of activations"
  sides = _sides(r, kernels)
  facts: list[tuple[str, object]] = [
    ("reads", sides[0]),
    ("yields", sides[1]),
    ("work", f"{r.work.flops / 1e6:,.2f} MFLOP ({r.work.mma_flops / 1e6:,.2f} in contractions); {moved}"),
    ("key", el("code", r.key)),
  ]
  if r.typical:
    at = ", ".join(f"{name} = {value}" for name, value in r.typical.items())
    facts.insert(3, ("dynamic", f"times are at {at}"))
  return el("dl", [(el("dt", name), el("dd", value)) for name, value in facts if value], class_="facts")  # type: ignore[arg-type]


def _sides(r: RegionRecord, kernels: RegionKernels) -> tuple[list[Markup], list[Markup]]:
  """Inputs and outputs of the µGraph, as the model calls them."""
  tensors = kernels.ugraph.tensors if kernels.ugraph else ()
  inputs = [_tensor(t, r) for t in tensors if t.role in ("input", "weight", "rows")]
  outputs = [_tensor(t, r) for t in tensors if t.role == "output"]
  return inputs, outputs


def _tensor(t: KTensor, r: RegionRecord) -> Markup:
  shape = ", ".join(str(r.axes.get(a, a)) for a in t.axes)
  role = " (weight)" if t.role == "weight" else ""
  return markup(short(r.names.get(t.name, t.name)), f" {t.dtype}[{shape}]{role}", el("br"))


def _picture(r: RegionRecord, kernels: RegionKernels) -> Markup:
  if kernels.ugraph is None:
    return el("p", f"No µGraph and no CUDA can be shown: {kernels.problem}", class_="problem")
  drawing = Markup(to_svg(kernels.ugraph, kernels.params, r.axes, r.names, in_page=True))
  count = len(kernels.ugraph.kernels)
  return el(
    "details",
    el("summary", f"µGraph of {count} kernel{'s' * (count != 1)}"),
    el("div", drawing, class_="scroll", tabindex=0, role="region", aria_label=f"µGraph of {r.id}"),
    open=True, class_="print",
  )  # fmt: skip


def _cuda(kernels: RegionKernels) -> Markup | None:
  if not kernels.sources:
    return None
  lines = sum(s.text.count("\n") for s in kernels.sources)
  parts = []
  for s in kernels.sources:
    # As it was made for: a launch counts blocks of axes that only a run knows.
    grid = "×".join(map(str, s.grid)) + (" times the blocks of a run" if s.tiles else "")
    facts = (
      f"grid {grid}, {s.block} threads, cluster {s.cluster}, {size(s.smem_bytes)} of dynamic shared memory"
    )
    parts.append(el("h4", el("code", s.name)))
    parts.append(el("p", facts, class_="note"))
    text = el("pre", el("code", s.text))
    parts.append(
      el("div", text, class_="scroll code", tabindex=0, role="region", aria_label=f"CUDA of {s.name}")
    )
  says = (
    "Generated again from the µGraph in the model; it has the hash that was recorded when NVRTC "
    f"{kernels.nvrtc} compiled it. (mirage-onnx verify also compiles it again.)"
  )
  count = len(kernels.sources)
  summary = el("summary", f"CUDA: {count} kernel{'s' * (count != 1)}, {lines} lines")
  return el("details", summary, el("p", says, class_="note"), parts)


def _proof(r: RegionRecord) -> Markup | None:
  p = r.proof
  if p is None:
    return None
  return el(
    "details",
    el("summary", f"Proof: equal in {p.draws} random draws, wrong with a chance of at most {p.bound:.0e}"),
    el("p", "The µGraph, with its tiles, loops and ranks, and the region's own operators computed the same "
       f"values in finite fields{f' (laws: {p.tier})' if p.tier else ''}{', at' if p.instantiation else '.'}",
       class_="note"),
    el("ul", [el("li", el("code", line)) for line in p.instantiation]) if p.instantiation else None,
    class_="print",
  )  # fmt: skip


def _candidates(i: int, r: RegionRecord) -> Markup | None:
  drawn = candidates(i, r)
  if drawn is None:
    return None
  count = sum(bool(c.kernels) for c in r.candidates)
  return el("details", el("summary", f"Candidates: {count} verified"), drawn, class_="print")


def _sizes(r: RegionRecord) -> Markup | None:
  if not r.sizes:
    return None
  rows = [
    (s.sizes, us(s.baseline_us), us(s.predicted_us), times(s.baseline_us, s.predicted_us)) for s in r.sizes
  ]
  made = table(
    ("sizes", "before µs", "after µs", "speedup"), rows, f"{r.id} at the declared sizes", (1, 2, 3)
  )
  return el("details", el("summary", f"At {len(rows)} sizes"), made, class_="print")


def _places(
  record: RunRecord, r: RegionRecord, places: Sequence[PlaceRecord], kernels: RegionKernels, i: int
) -> Markup:
  numbers = [n for n, p in enumerate(record.places) if p.region == i]
  items = [_place(record, record.places[n], n, kernels.nodes) for n in numbers]
  count = f"{len(places)} place{'s' * (len(places) != 1)}"
  nodes = len(places[0].nodes) if places else 0
  return el("details", el("summary", f"In {count}, of {nodes} nodes each"), el("ol", items))


def _place(record: RunRecord, place: PlaceRecord, number: int, nodes: Mapping[int, str]) -> Markup:
  named = [short(record.nodes[n].name) for n in place.nodes[:_SHOWN]]
  more = f" and {len(place.nodes) - _SHOWN} more" if len(place.nodes) > _SHOWN else ""
  custom = (short(nodes[number], 60), " in place of ") if number in nodes else None
  spaced = [(" " if k else None, name) for k, name in enumerate(named)]
  return el("li", custom, spaced, more)
