"""Kernels for every architecture: what NVRTC is slow with comes last, and nothing of it is lost."""

from dataclasses import replace

import every_gpu
import pytest

from mirage_onnx.targets import ARCHITECTURES

JOBS = [("random", 0, 10), ("random", 10, 10), ("golden", "sm_80", "lora")]


def row(job, *slow):
  return {"job": list(job), "slow": list(slow)}


def test_slow_seeds_come_when_all_else_is_done():
  kinds = ("golden", "random", "slow")
  rows = {JOBS[0]: row(JOBS[0], 3, 7)}
  assert every_gpu.remaining(JOBS, rows, kinds) == JOBS[1:]
  rows |= {j: row(j) for j in JOBS[1:]}
  late = [("slow", seed, arch) for seed in (3, 7) for arch in ARCHITECTURES]
  assert every_gpu.remaining(JOBS, rows, kinds) == late
  assert every_gpu.remaining(JOBS, rows, ("golden",)) == []
  rows[late[0]] = row(late[0])
  assert every_gpu.remaining(JOBS, rows, kinds) == late[1:]
  rows |= {j: row(j) for j in late}
  assert every_gpu.remaining(JOBS, rows, kinds) == []


def test_a_seed_is_compiled_and_run_for_every_architecture_or_put_off(monkeypatch):
  seed = 111  # a short one
  found = every_gpu.random_seeds(seed, 1)
  assert found["slow"] == [] and found["wrong"] == []
  assert found["counts"] == {a: {"compiled": 1, "ok": 1} for a in ARCHITECTURES}
  monkeypatch.setattr(every_gpu, "SLOW_S", 0.0)
  late = every_gpu.random_seeds(seed, 1)
  assert late["slow"] == [seed] and not any(late["counts"].values())
  again = [every_gpu.slow_seed(seed, a)["counts"] for a in ARCHITECTURES]
  assert again == [{a: n} for a, n in found["counts"].items()]


def test_what_does_not_fit_or_compile_is_wrong_and_what_spills_is_not():
  target = every_gpu.target_of("sm_86")
  case = every_gpu.random_kernel(111)
  (source,) = every_gpu.emitted(every_gpu.for_target(case, target), target).sources
  assert every_gpu.outcome(source, target) == ("compiled", "")
  assert "does not fit" in every_gpu.outcome(replace(source, smem_bytes=200_000), target)[1]
  code, why = every_gpu.outcome(replace(source, text=source.text + "\nno C++"), target)
  assert code == "COMPILE_FAILED" and why


def test_what_is_too_much_to_run_reduced_runs_with_small_numbers(monkeypatch):
  monkeypatch.setattr(every_gpu.emulated, "MOST_WORK", 1)
  row = every_gpu.golden("sm_86", "residual_rmsnorm")
  for which in ("searched", "golden"):
    assert row[which]["ran"] == "never ran" and row[which]["small"] == "" and "not_run" not in row[which]
  monkeypatch.setattr(every_gpu, "complaint_of", lambda *program: "x is off")
  row = every_gpu.golden("sm_86", "residual_rmsnorm") | {"job": ("golden", "sm_86", "residual_rmsnorm")}
  assert sum("x is off" in w for w in every_gpu.wrong_of(row)) == 2


@pytest.mark.parametrize("kind", ["random", "slow"])
def test_both_kinds_are_of_the_same_source(kind):
  assert every_gpu.made_by(kind) == every_gpu.source_digest(*dict.fromkeys(every_gpu.SOURCES["random"]))
