"""When timing should end: the part of a 20-minute run's gain that default flags have, by made-up times.

    python bench/patience.py [--seeds 20] [--first 5] [--rates 0.001 0.0005] [--seconds 840] \
        [--worlds bert minilm llama] [--out bench/results/patience.json]

Worlds: four layers of BERT-base 8x512, six of a MiniLM of 128 tokens (many small regions), two of a
LLaMA-like step with 4096 keys (few large ones), with the true times of
``tests/tune/test_exploring_budget.py``. ``--rates``: values of ``WORTH_PER_S``. A line a world and rate: the
mean and the least part of the gain, and the seconds that were timed. Seeds that are in ``--out`` already are
passed over.
"""

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "tests" / "tune")]
#: Hidden size, heads, key-value heads, size of a head, inner size.
MINILM = (384, 12, 12, 32, 1536)
#: Half as wide as LLaMA-3-8B: hidden and inner size, heads, keys before, vocabulary.
LLAMA = (2048, 7168, 16, 4096, 16000)


def programs():
  """World -> what makes its program."""
  from decoder_layers import Decoder, llama_decode
  from real_layers import BERT, Width, encoder

  return {
    "bert": lambda: encoder(BERT, 512, 8, layers=4),
    "minilm": lambda: encoder(Width(*MINILM), 128, 1, layers=6),
    "llama": lambda: llama_decode(2, Decoder(*LLAMA)),
  }


def offered(model):
  """As the fixture of the test: a program, its regions, and what ONNX Runtime takes."""
  from mirage_onnx.importer import import_model, load_model
  from mirage_onnx.match.candidates import find_candidates
  from mirage_onnx.match.cuts import TIMED
  from mirage_onnx.target import get_target
  from mirage_onnx.tune.baseline import alone_us, node_times_us, ranking_table, with_floors
  from mirage_onnx.tune.outcome import grouped

  target = get_target("h200")
  program = import_model(load_model(model))
  candidates = find_candidates(program, replace(TIMED, reductions=True)).candidates
  node_us = with_floors(node_times_us(program, ranking_table(target)), program, target)
  outcomes = {k: o for k, o in grouped(candidates, node_us).items() if o.baseline_us > 0}
  return program, outcomes, node_us, alone_us(program, target), target


def rows_of(world, seeds, rates, known, seconds):
  """A row a seed and rate: gains over that of 20 minutes, and seconds."""
  import pytest
  import test_exploring_budget as budget

  from mirage_onnx.tune import exploring

  given = offered(programs()[world]())
  for seed in seeds:
    todo = [r for r in rates if (world, seed, r) not in known]
    if not todo:
      continue
    with pytest.MonkeyPatch.context() as patch:
      drawn = budget.World(given, seed, budget.Clock(patch))
      patch.setattr(exploring, "WORTH_PER_S", 0.0005)
      long_us, long_s, _ = drawn.explored(budget.LONG_S, 4.0)
      for rate in todo:
        patch.setattr(exploring, "WORTH_PER_S", rate)
        gain_us, took_s, why = drawn.explored(seconds, 1.0)
        yield {
          "world": world, "seed": seed, "rate": rate, "part": round(gain_us / max(long_us, 1e-9), 4),
          "seconds": round(took_s, 1), "long_seconds": round(long_s, 1), "regions": len(drawn.outcomes),
          "timed": len(drawn.asked), "gain": round(gain_us / sum(drawn.node_us.values()), 3), "why": why,
        }  # fmt: skip


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--first", type=int, default=5)
  add("--seeds", type=int, default=20)
  add("--rates", type=float, nargs="+", default=[0.001, 0.0005])
  add("--seconds", type=float, default=840.0, help="of timing at most (of the test: 80, 840)")
  add("--worlds", nargs="+", default=["bert", "minilm", "llama"])
  add("--out", type=Path, default=ROOT / "bench" / "results" / "patience.json")
  o = parser.parse_args()
  rows = json.loads(o.out.read_text()) if o.out.is_file() else []
  for world in o.worlds:
    known = {(r["world"], r["seed"], r["rate"]) for r in rows}
    for row in rows_of(world, range(o.first, o.first + o.seeds), o.rates, known, o.seconds):
      rows.append(row)
      text = ",\n ".join(
        json.dumps(r) for r in sorted(rows, key=lambda r: (r["world"], r["seed"], r["rate"]))
      )
      o.out.write_text(f"[{text}]\n")
  for world, rate in sorted({(r["world"], r["rate"]) for r in rows}):
    some = [r for r in rows if (r["world"], r["rate"]) == (world, rate)]
    parts = [r["part"] for r in some]
    took_s = statistics.mean(r["seconds"] for r in some)
    print(
      f"{world:8} {rate:.5f}: {len(some)} seeds, {statistics.mean(parts):.3f} of the gain, "
      f"{min(parts):.3f} at least, {took_s:.1f} s, {sum(p < 0.95 for p in parts)} below 0.95"
    )


if __name__ == "__main__":
  main()
