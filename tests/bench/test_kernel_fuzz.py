"""Random kernels that another tree has run: what counts of them, and what is run again."""

import json

import kernel_fuzz
import random_kernel_run

SEED = 3


def test_a_fingerprint_is_of_all_that_an_outcome_hangs_on(monkeypatch):
  case = random_kernel_run.random_kernel(SEED)
  sources = random_kernel_run.emitted(case).sources
  first = random_kernel_run.fingerprint(case, sources)
  assert first == random_kernel_run.fingerprint_of(SEED)
  assert first != random_kernel_run.fingerprint_of(SEED + 1)
  assert first != random_kernel_run.fingerprint(case, ())
  monkeypatch.setattr(random_kernel_run, "judges", lambda: "another emulator")
  assert first != random_kernel_run.fingerprint_of(SEED)


def test_what_would_be_run_as_it_was_is_kept(tmp_path):
  out, of = tmp_path / "rows.jsonl", random_kernel_run.fingerprint_of(SEED)
  rows = [{"seed": SEED, "of": of}, {"seed": SEED, "of": "another text"}, {"seed": SEED}]
  out.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
  kernel_fuzz.still_same(out, 1)
  assert list(map(json.loads, out.read_text().splitlines())) == rows[:1]
