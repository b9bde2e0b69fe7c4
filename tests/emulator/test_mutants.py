"""The emulator notices single mistakes in correct kernels, and nothing in the kernels themselves.

The whole corpus takes minutes (``python bench/emulator.py`` runs and records it); here is every
twenty-fourth mutant of it, chosen by a hash.
"""

import hashlib
import json
import zlib
from pathlib import Path

import pytest
from mutant_subjects import beside, generated, handwritten

from mirage_onnx.emulator import compile_kernels

#: subject | kind | before -> after | why it is no mistake, or out of the emulator's scope
SURVIVORS = {c: Path(__file__).with_name(f"survivors{c}.txt") for c in ("", "_beside")}
RECORDS = Path(__file__).parents[2] / "bench" / "results"
SHARE = 24
#: Of all mutants, those which must be noticed.
LEAST_CAUGHT = 0.95


def known_survivors(corpora=tuple(SURVIVORS)):
  lines = [line for c in corpora for line in SURVIVORS[c].read_text().splitlines()]
  return {line.rpartition(" | ")[0] for line in lines if line and not line.startswith("#")}


@pytest.mark.slow
@pytest.mark.parametrize("corpus", [generated, beside, handwritten])
def test_mutants_are_noticed(corpus):
  tried, survivors = 0, []
  for subject in corpus():
    module = compile_kernels(subject.kernels)
    assert subject.run(module, range(len(subject.kernels))) == "", f"{subject.name} is correct"
    sample = [
      (i, m)
      for i, m in subject.mutants()
      if zlib.crc32(f"{subject.name} {m.line} {m.change}".encode()) % SHARE == 0
    ]
    for mutant, noticed in subject.noticed(sample):
      tried += 1
      if not noticed:
        survivors.append(f"{subject.name} | {mutant.change}")
  print(f"{tried} mutants, {len(survivors)} survive")
  assert tried >= (10 if corpus is beside else 30)
  assert set(survivors) <= known_survivors()


@pytest.mark.parametrize(("corpus", "least"), [("", 1000), ("_beside", 300)])
def test_the_recorded_run_of_the_whole_corpus(corpus, least):
  record = json.loads((RECORDS / f"emulator{corpus}.json").read_text())
  assert record["mutants"] >= least
  assert record["caught"] >= LEAST_CAUGHT * record["mutants"]
  assert not record["false_alarms"]
  known = "\n".join(sorted(known_survivors([corpus])))
  assert record["distinct_survivors_sha256"] == hashlib.sha256(known.encode()).hexdigest()


def test_every_survivor_has_a_reason():
  for line in (line for path in SURVIVORS.values() for line in path.read_text().splitlines()):
    if line and not line.startswith("#"):
      subject, kind, change, reason = line.split(" | ")
      assert subject and kind and " -> " in change and len(reason) > 10, line
