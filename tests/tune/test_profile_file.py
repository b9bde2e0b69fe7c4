"""Profiles in files: written on a GPU, read there or elsewhere, refused in a line where they are wrong."""

import json
import os
from dataclasses import replace
from pathlib import Path

import fake_driver
import msgspec
import pytest
from refused import refused

from mirage_onnx import api, events
from mirage_onnx.cli import main
from mirage_onnx.target import Rated, get_target, get_targets
from mirage_onnx.tune import device, local
from mirage_onnx.tune.baseline import load_table
from mirage_onnx.tune.chip_rates import ChipRates
from mirage_onnx.tune.device import PresentGpu
from mirage_onnx.tune.known_sizes import load_known
from mirage_onnx.tune.operator_table import OperatorTimes
from mirage_onnx.tune.other_gpu import MOST_ROWS, least_margin, measured_like
from mirage_onnx.tune.profile_file import ProfileFile, profile_of, read_profile
from mirage_onnx.tune.rates import Rates, StreamRead
from mirage_onnx.tune.rating import Rating

ADA = PresentGpu(*fake_driver.RTX4090)
#: As they are measured: sizes of reads are whole numbers or not.
FOUND = Rates(1.2, 2.5, 0.91, 150.0, (StreamRead(1, 2.95, "so"), StreamRead(33.5, 14, "or so")))
TABLE = OperatorTimes("1.31.1", {"Add": ((512, 1.0),)}, ((1, 64, 64, 2.0), (8, 4096, 4096, 35.0)))
WHOLE = msgspec.structs.replace(FOUND, chip=ChipRates(4.0, {"f16": 160.0}, 0.04), table=TABLE)
MACHINE = {"gpu": str(ADA), "driver": "1", "onnxruntime": "2", "protocol": "3"}
MODEL = Path(__file__).parents[2] / "models" / "rmsnorm_linear.onnx"


@pytest.fixture
def file(tmp_path):
  path = tmp_path / "ada.json"
  path.write_text(profile_of(ADA, ADA.target, MACHINE, FOUND).text())
  return path


@pytest.fixture
def present(monkeypatch, tmp_path):
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.delenv("MIRAGE_ONNX_CACHE", raising=False)
  monkeypatch.setattr(local, "_nvrtc_major", lambda: 13)
  monkeypatch.setattr(local, "Gpu", lambda target: target)
  measured = []
  monkeypatch.setattr(local, "measure_rates", lambda gpu: measured.append(gpu.name) or WHOLE)

  def put(*gpus):
    monkeypatch.setattr(device, "_driver", lambda: fake_driver.driver(*gpus))
    return measured

  put()
  return put


def changed(file, keep_hash=False, **fields):
  found = msgspec.json.decode(file.read_bytes(), type=ProfileFile)
  new = msgspec.structs.replace(found, **fields)
  file.write_text(json.dumps(msgspec.to_builtins(new)) if keep_hash else new.text())


def test_what_calibrate_writes_is_read(present, tmp_path):
  measured, path = present(fake_driver.RTX4090), tmp_path / "made.json"
  assert main(["calibrate", "--profile", str(path)]) == 0
  found = read_profile(path)
  assert (found.gpu, found.target, found.rates) == (str(ADA), "rtx4090", WHOLE) and len(measured) == 1
  assert set(found.machine) >= {"gpu", "driver", "onnxruntime"}


def test_far_from_the_gpu_it_has_those_rates_and_the_margin_of_its_row(present, file):
  rating = Rating.of(file, False)
  assert rating.target(None) == "rtx4090"
  (target,) = rating.with_rates(get_targets("rtx4090"), False, events.silent)
  row = get_target("rtx4090")
  assert (target.stream_tbps, target.mma_tflops, target.launch_us) == (0.91, 150.0, 1.2)
  assert target.rated is Rated.DATASHEET is row.rated
  assert replace(target, stream_tbps=row.stream_tbps, mma_tflops=row.mma_tflops, launch_us=row.launch_us,
                 ramp_us=row.ramp_us) == row  # fmt: skip


def test_with_a_table_it_has_no_scaled_times(present, file):
  """Predictions stand on what onnxruntime took there; kernels were not timed, so the margin is wide."""
  changed(file, rates=WHOLE)
  (target,) = Rating.of(file, False).with_rates(get_targets("rtx4090"), False, events.silent)
  assert target.rated is Rated.MEASURED and (target.l2_tbps, target.barrier_us) == (2.96, 0.04)
  assert load_table(target).matmul_us(8, 4096, 4096) == 35.0
  assert measured_like(target) is None and least_margin(target, 0.2) == 0.4
  assert load_known(target).most_rows(4096 * 4096, "f16") == MOST_ROWS


@pytest.mark.parametrize(
  ("more", "said"),
  [
    ({"chip": ChipRates(0.0, {"f16": 160.0}, 0.04)}, "l2_tbps is 0"),
    ({"chip": ChipRates(4.0, {"f16": 400.0}, 0.04)}, "mma_tflops of f16 is 400"),
    ({"chip": ChipRates(4.0, {"f16": 160.0}, -1.0)}, "barrier_us is -1"),
    ({"table": OperatorTimes("1", {"Add": ((512, -2.0),)}, ())}, "Add of 512 elements takes -2"),
    ({"table": OperatorTimes("1", {}, ((8, 4096, 4096, 20.0),))}, "a product of 8 x 4096 x 4096 takes 20"),
    ({"table": OperatorTimes("1", {}, ((0, 64, 64, 20.0),))}, "a product of 0 x 64 x 64"),
  ],
)
def test_what_no_such_gpu_does_is_refused(file, more, said):
  changed(file, rates=msgspec.structs.replace(WHOLE, **more))
  with refused("PROFILE_INVALID", said):
    read_profile(file)


def test_on_the_gpu_nothing_is_measured_again(present, file):
  measured, said = present(fake_driver.RTX4090), []
  rating = Rating.of(file, False)
  assert rating.target(None) == "local"
  (target,) = rating.with_rates((ADA.target,), True, said.append)
  assert target.rated is Rated.MEASURED and target.stream_tbps == 0.91 and not measured
  assert [type(e) for e in said] == [events.Warned] and "was measured with driver 1, here" in said[0].text


def test_of_several_targets_it_is_for_its_own(present, file):
  rating = Rating.of(file, False)
  a100, ada = rating.with_rates(get_targets("a100,rtx4090"), False, events.silent)
  assert a100 == get_target("a100") and ada.stream_tbps == 0.91
  with refused("PROFILE_INVALID", "not on h200"):
    rating.with_rates(get_targets("h200,a100"), False, events.silent)


def test_of_another_gpu(present, file):
  with refused("PROFILE_INVALID", "target rtx4090, not on h200") as error:
    api.optimize(MODEL, target="h200", profile=file)
  assert "\n" not in error.value.line()
  present(fake_driver.RTX3060)
  with refused("PROFILE_INVALID", "and the GPU here is NVIDIA GeForce RTX 3060"):
    api.optimize(MODEL, target="local", profile=file)


BROKEN = {
  "changed": (lambda f: changed(f, keep_hash=True, target="l4"), "does not have its SHA-256"),
  "cut off": (lambda f: f.write_bytes(f.read_bytes()[:-9]), "no profile that calibrate wrote"),
  "empty": (lambda f: f.write_bytes(b""), "no profile that calibrate wrote"),
  "of another kind": (
    lambda f: f.write_text('{"schema": 1, "rates": []}'),
    "no profile that calibrate wrote",
  ),
  "deep": (lambda f: f.write_text("[" * 100_000), "no profile that calibrate wrote"),
  "large": (lambda f: f.write_bytes(b" " * (2 << 20)), "larger than any profile"),
  "gone": (lambda f: f.unlink(), "No such file"),
  "a pipe": (lambda f: (f.unlink(), os.mkfifo(f)), "it is no regular file"),
  "too fast": (
    lambda f: changed(f, rates=replace_rates(stream_tbps=5.0)),
    "stream_tbps is 5, which no NVIDIA",
  ),
  "no rate": (lambda f: changed(f, rates=replace_rates(mma_tflops=0.0)), "mma_tflops is 0.0"),
  "negative": (lambda f: changed(f, rates=replace_rates(launch_us=-1.0)), "launch_us is -1.0"),
  "of an old GPU": (lambda f: changed(f, target="sm_75x40"), "for which there are no kernels"),
}


def replace_rates(**fields):
  return msgspec.structs.replace(FOUND, **fields)


@pytest.mark.parametrize("how", BROKEN)
def test_damaged_ones_are_refused_in_a_line(file, how, capsys):
  damage, said = BROKEN[how]
  damage(file)
  assert main(["optimize", str(MODEL), "--profile", str(file), "--dry-run"]) == 2
  line = capsys.readouterr().err
  assert "PROFILE_INVALID" in line and said in line and line.strip().count("\n") == 0


def test_a_lock_takes_none(file):
  with refused("OPTION_INVALID", "takes no --profile"):
    api.optimize(MODEL, "out.onnx", locked=True, lock="out.onnx.lock", profile=file)


def test_predictions_are_made_with_it(present, file, kept_searches):
  """At half the bandwidth kernels are predicted to take longer."""
  with kept_searches("profile"):
    quick = api.optimize(MODEL, target="rtx4090", margin=0.0).report
    changed(file, rates=replace_rates(stream_tbps=0.5))
    slow = api.optimize(MODEL, profile=file).report
  assert slow["target"] == quick["target"] == "rtx4090"
  times = [[r["predicted_us"] for r in report["regions"] if r["predicted_us"]] for report in (quick, slow)]
  assert times[0] and min(times[1]) > 1.1 * min(times[0])
