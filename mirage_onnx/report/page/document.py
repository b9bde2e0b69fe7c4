"""The page as a whole: one file, no request to anywhere, nothing of a model is markup or script.

Its policy allows one script and one style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.inspection.svg import DARK, STYLE
from mirage_onnx.report.page.html import Markup, el, markup, script_json
from mirage_onnx.report.page.kept import kept
from mirage_onnx.report.page.kernels import read_kernels
from mirage_onnx.report.page.overview import overview
from mirage_onnx.report.page.regions import regions
from mirage_onnx.report.page.roofline import roofline
from mirage_onnx.report.page.timeline import timeline, timeline_data
from mirage_onnx.report.run_record import RunRecord


def page(record: RunRecord, file: ModelFile) -> str:
  """The report of the model of ``record``."""
  kernels = read_kernels(record, file)
  sections = [
    ("Whole model", "whole", overview(record)),
    ("Timeline", "timeline", timeline(record)),
    ("Roofline", "roofline", roofline(record)),
    ("Regions", "regions", regions(record, kernels) if record.regions else None),
    ("Kept", "kept", kept(record)),
  ]
  shown = [(name, anchor, body) for name, anchor, body in sections if body is not None]
  nodes = {i: name for k in kernels for i, name in k.nodes.items()}
  style, script = _read("page.css") + _drawings(), _read("page.js")
  title = f"{record.input or 'a model'} – mirage-onnx"
  allowed = f"style-src {_hash(style)}; script-src {_hash(script)}"
  policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
  head = el(
    "head",
    Markup('<meta charset="utf-8">'),
    el("meta", http_equiv="Content-Security-Policy", content=policy),
    el("meta", name="viewport", content="width=device-width, initial-scale=1"),
    el("meta", name="color-scheme", content="light dark"),
    el("title", title),
    el("style", Markup(style)),
  )
  links = [el("li", el("a", name, href=f"#{anchor}")) for name, anchor, _ in shown]
  body = el(
    "body",
    el("a", "Skip to the content", class_="skip", href="#main"),
    el(
      "header",
      el("h1", record.input or "A model"),
      el("p", f"optimized for {record.target} by mirage-onnx {record.made_by}"),
    ),
    el("nav", el("ul", links), aria_label="Contents"),
    el("main", [section for *_, section in shown], id="main", tabindex=-1),
    el(
      "footer",
      el("p", "Times are in microseconds of one run. Kernels and texts are those in the model's bundle."),
    ),
    el("script", script_json(timeline_data(record, nodes)), type="application/json", id="data"),
    el("script", Markup(script)),
  )
  return f"<!doctype html>\n{el('html', markup(head, body), lang='en')}\n"


@cache
def _read(name: str) -> str:
  return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _drawings() -> str:
  """The style of the pictures of µGraphs; on paper they are light."""
  return f"{STYLE}@media screen and (prefers-color-scheme:dark){{{DARK}}}"


def _hash(text: str) -> str:
  return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
