"""Settings, locks, profiles and folders, changed anywhere: what they say, or one line with a code."""

import json
import time
from collections import Counter

import msgspec
import odd_beside
import pytest
from fuzz_answers import faults_of
from small_models import Net, region_of, search_region

from mirage_onnx.cli import main
from mirage_onnx.config_file import OWN
from mirage_onnx.errors import MirageError
from mirage_onnx.genai_folder import CONFIG, GenaiFolder
from mirage_onnx.ir import print_ugraph
from mirage_onnx.target import get_target
from mirage_onnx.tune.lock import LockedKernel, LockedNode, LockedRegion, read_lock, write_lock
from mirage_onnx.tune.profile_file import ProfileFile, of_target, read_profile
from mirage_onnx.tune.rates import Rates, StreamRead
from tests.test_genai_folder import config_of, folder
from tests.tune.test_lock import EMPTY

SETTINGS = """[optimize]
budget = 5
shapes = ["batch=1,8", "seq=1,128..2048:128"]
margin = 0.1
external = "copy"
[inspect]
target = "h200"
all = true
"""


def few_or_many(fast):
  return [pytest.param(fast), pytest.param(10 * fast, marks=pytest.mark.slow)]


def judged(texts, ask):
  """How many files had which end; each soon, and none without a code."""
  ends, faults = Counter(), []
  for seed, data in enumerate(texts):
    began = time.process_time()
    try:
      ask(data)
      ends["taken"] += 1
    except MirageError as error:
      ends[error.code] += 1
      faults += [(seed, f) for f in faults_of(error.code, error.detail)]
    if (seconds := time.process_time() - began) > 2:
      faults.append((seed, f"it took {seconds:.1f} s"))
  assert not faults
  return ends


@pytest.mark.parametrize("count", few_or_many(150))
def test_a_folder(tmp_path, count):
  path, config = folder(tmp_path / "llm"), json.dumps(config_of())

  def ask(data):
    (path / CONFIG).write_bytes(data)
    found = GenaiFolder.read(path)
    for file in found.models:
      found.captures(file)
      found.sizes(file, {})

  ends = judged((odd_beside.made(k, config, True) for k in range(count)), ask)
  assert set(ends) <= {"taken", "FOLDER_INVALID"} and min(ends.values()) > count // 20


@pytest.mark.parametrize("count", few_or_many(300))
def test_a_profile(tmp_path, count):
  """Half of those that are of the form say so of themselves: rates, not hashes, are looked at."""
  target = get_target("h200")
  rates = Rates(2.0, 1.0, 4.0, 700.0, (StreamRead(100.0, 30.0, "x"), StreamRead(1.0, 3.0, "x")))
  right = ProfileFile(1, "NVIDIA H200", "h200", {"driver": "580.0", "onnxruntime": "1.31.1"}, rates).text()

  def ask(data):
    (tmp_path / "p.json").write_bytes(data)
    of_target(target, read_profile(tmp_path / "p.json"), tmp_path / "p.json")

  def texts():
    for seed in range(count):
      data = odd_beside.made(seed, right, True)
      try:
        yield msgspec.json.decode(data, type=ProfileFile).text().encode() if seed % 2 else data
      except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        yield data

  ends = judged(texts(), ask)
  assert set(ends) <= {"taken", "PROFILE_INVALID"} and min(ends.values()) > count // 50


@pytest.fixture(scope="module")
def lock(tmp_path_factory):
  """The text of a lock with a program in it."""
  net = Net()
  region = region_of(net.model(net.MatMul(net.rms(net.input(4, 64)), net.weight(64, 96))))
  found = search_region(region).candidates[0].candidate
  locked = LockedRegion(
    region.key, print_ugraph(found.ugraph).splitlines(), [p.to_text() for p in found.params], 1.0, 2.0, None,
    [LockedKernel("k", "0" * 64, "1" * 64)], "",
  )  # fmt: skip
  path = tmp_path_factory.mktemp("lock") / "lock"
  write_lock(path, msgspec.structs.replace(EMPTY, regions=[locked], nodes=[LockedNode(0, ["a"], ["b"])]))
  assert read_lock(path).regions[0].candidate.ugraph == found.ugraph
  return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("count", few_or_many(300))
def test_a_lock(tmp_path, count, lock):
  def ask(data):
    (tmp_path / "x.lock").write_bytes(data)
    read_lock(tmp_path / "x.lock")

  ends = judged((odd_beside.made(k, lock, True) for k in range(count)), ask)
  assert set(ends) <= {"taken", "LOCK_INVALID"} and min(ends.values()) > count // 50


@pytest.mark.parametrize("count", few_or_many(100))
def test_settings(tmp_path, count, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)

  def ask(data):
    (tmp_path / OWN).write_bytes(data)
    assert main(["inspect", "none.onnx"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    code = last.removeprefix("error: ").partition(":")[0]
    raise MirageError(code, last)

  ends = judged((odd_beside.made(k, SETTINGS, False) for k in range(count)), ask)
  assert set(ends) <= {"FILE_MISSING", "CONFIG_INVALID", "OPTION_INVALID", "TARGET_UNKNOWN"}
  assert ends["CONFIG_INVALID"] > count // 20 and ends["FILE_MISSING"] > count // 20
