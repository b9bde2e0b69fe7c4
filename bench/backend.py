"""ONNX's backend tests by ONNX Runtime alone, and by ``optimize`` before it: the same must pass.

    python bench/backend.py [--runs users converted verified] [--every 1] [--out bench/results]

users       every node, simple and light-model test; ``optimize --target h200``, then ONNX Runtime
            without our library, so the function bodies run
converted   the tests of opsets that ``optimize`` does not take, lifted to one that it does
verified    all regions that verify are replaced, whatever they cost, and run in the emulator; a single
            operator is a region too, and one that contracts two activations where nothing else is

What "float node tests" counts: the tests of ONNX's node suite, expanded function bodies too, of an opset
that ``optimize`` takes, with a node whose operator is in the table of semantics and that reads float,
float16 or bfloat16 as data. Forms of it that are not lowered count, and so do outputs of other types;
"replaced" are those with a node replaced. The others are counted by the codes of docs/errors.md that
refused these nodes or their regions (STILL_READ: no refusal, but the node also yields a pure copy).

Writes backend.json and prints its table; runs that are recorded there and not named stay. Exit 1
where a case ends otherwise than with ONNX Runtime.
"""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from backend_runs import Emulated, Optimized, OptimizedLifted, Stock, StockLifted, compare, summary
from facts import facts

RUNS = {
  "users": (Stock, Optimized),
  "converted": (StockLifted, OptimizedLifted),
  "verified": (Stock, Emulated),
}
_HEAD = (
  f"{'run':12}{'cases':>7}{'pass':>7}{'fail':>7}{'refused':>9}{'equal':>7}"
  f"{'tabled in':>11}{'replaced in':>13}{'nodes':>7}"
)


def _line(name, row):
  stock = row["stock"]
  return (
    f"{name:12}{row['cases']:7}{stock.get('passed', 0):7}{stock.get('failed', 0):7}"
    f"{sum(row['refused'].values()):9}{row['equal']:7}"
    f"{row['cases_with_lowered_nodes'] or '-':>11}{row['cases_with_replaced_nodes']:13}"
    f"{row['nodes_replaced']:7}"
  )


def table(runs):
  """The counts as text: pass and fail are those of ONNX Runtime alone."""
  lines = [_HEAD, *(_line(name, row) for name, row in runs.items()), ""]
  for name, row in runs.items():
    versions = ", ".join(f"{k} {v}" for k, v in row["versions"].items())
    lines.append(f"{name}: {row['command']}; {versions}; {row['date']}")
    lines += [f"{name}: refused {code} {n}" for code, n in row["refused"].items()]
    if (floats := row.get("float_tabled")) and floats["cases"]:
      count, some, passed = (floats[key] for key in ("cases", "replaced", "replaced_and_passed"))
      share = f"{some / count:.1%}, {passed} of them pass"
      lines.append(f"{name}: float node tests of tabled operators {count}, replaced in {some} = {share}")
      lines += [f"{name}: kept {codes} {n}" for codes, n in floats["kept"].items()]
    lines += [
      f"{name}: {d['case']}: {d['stock']} alone, {d['other']} optimized: {d['why']}" for d in row["differing"]
    ]
  return "\n".join(lines) + "\n"


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--runs", nargs="+", choices=RUNS, default=["users", "converted"])
  parser.add_argument("--every", type=int, default=1, help="take one case of so many")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
  arguments = parser.parse_args()
  record = arguments.out / "backend.json"
  rows = json.loads(record.read_text()) if record.exists() else {}
  for name in arguments.runs:
    start = time.monotonic()
    cases = list(compare(*RUNS[name], chosen=lambda i: i % arguments.every == 0))
    rows[name] = {
      **facts(("onnx", "onnxruntime", "numpy")), "every": arguments.every, **summary(cases),
      "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip
  arguments.out.mkdir(parents=True, exist_ok=True)
  record.write_text(json.dumps(rows, indent=1) + "\n")
  print(table(rows), end="")
  return 0 if all(rows[name]["equal"] == rows[name]["cases"] for name in arguments.runs) else 1


if __name__ == "__main__":
  sys.exit(main())
