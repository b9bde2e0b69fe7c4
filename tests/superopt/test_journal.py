"""The journal: what survives a kill, what is refused, who may write, and what is replaced."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirage_onnx.errors import MirageError
from mirage_onnx.superopt import journal as journal_module
from mirage_onnx.superopt.journal import Journal

SETTING = {"target": "h200", "bound": "Bound(operators=8)"}
OTHER = {**SETTING, "bound": "Bound(operators=9)"}
VALUE = {"cost": 0.1, "texts": ["kernel k\n", "µ"], "none": None}


@pytest.fixture
def path(tmp_path):
  return tmp_path / "out.onnx.journal"


def write(path, count, setting=SETTING):
  with Journal(path, setting) as journal:
    for i in range(count):
      journal.put(f"k{i}", {**VALUE, "i": i})


def keys(path, setting=SETTING):
  with Journal(path, setting) as journal:
    found = [journal.get(f"k{i}") for i in range(100)]
    assert all(v == {**VALUE, "i": i} for i, v in enumerate(found) if v)
    assert journal.known == sum(v is not None for v in found)
    return [i for i, v in enumerate(found) if v]


def refusal(path):
  before = path.read_bytes() if path.is_file() else b""
  with pytest.raises(MirageError) as caught:
    Journal(path, SETTING)
  assert caught.value.code == "JOURNAL"
  assert "\n" not in caught.value.detail and str(path) in caught.value.detail
  assert not path.is_file() or path.read_bytes() == before
  return caught.value.detail


def test_entries_come_back(path):
  write(path, 3)
  assert keys(path) == [0, 1, 2]
  write(path, 5)  # what is known is not written twice
  assert keys(path) == [0, 1, 2, 3, 4]
  lines = path.read_text().splitlines()
  assert len(lines) == 6 and all(json.loads(line) for line in lines)
  assert os.listdir(path.parent) == [path.name]


def test_without_a_file():
  journal = Journal(None, SETTING)
  assert journal.get("k") is None
  journal.put("k", {"pair": (1, 2)})
  assert journal.get("k") == {"pair": [1, 2]}
  journal.close()
  assert journal.known == 0


def test_opened_in_vain_leaves_nothing(path):
  Journal(path, SETTING).close()
  assert not path.exists()


def test_every_place_where_a_kill_can_cut(path):
  write(path, 3)
  whole = path.read_bytes()
  ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
  for size in sorted({*range(0, len(whole), 5), *ends[:-1], *(end - 1 for end in ends)}):
    path.write_bytes(whole[:size])
    expected = max(0, sum(end <= size for end in ends) - 1)
    assert keys(path) == list(range(expected))
    write(path, 3)
    assert path.read_bytes() == whole


def test_every_damaged_byte_is_found(path):
  write(path, 2)
  whole = path.read_bytes()
  for place in range(len(whole) - 1):
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    if path.read_bytes().startswith(b'{"journal":"mirage-onnx","version":0,'):
      with Journal(path, SETTING) as journal:
        assert journal.notice and "version 0 wrote it" in journal.notice
    else:
      refusal(path)


def test_what_a_damaged_file_says(path):
  write(path, 2)
  first, second, third = path.read_text().splitlines(keepends=True)
  path.write_text(first + second.replace("0.1", "0.2") + third)
  assert refusal(path).endswith("line 2: the checksum does not match")
  path.write_text(first + "\n" + third)
  assert "line 2" in refusal(path)
  path.write_text(second + third)
  assert refusal(path).endswith("is not a journal")


@pytest.mark.parametrize("content", [b"\x08\x0amodel", b"{}\n", b"[1]", b"\n"])
def test_another_file_is_never_taken_for_one(path, content):
  path.write_bytes(content)
  assert refusal(path).endswith("is not a journal")


def test_paths_that_cannot_hold_one(path):
  assert "No such file" in refusal(path / "x")
  path.mkdir()
  assert "Is a directory" in refusal(path)
  os.mkfifo(path.with_name("pipe"))
  assert refusal(path.with_name("pipe")).endswith("is not a regular file")


def test_another_setting_is_kept_until_there_is_a_result(path):
  write(path, 3)
  before = path.read_bytes()
  with Journal(path, OTHER) as journal:
    assert journal.notice is not None and journal.failure is None
    assert "another setting (bound differs)" in journal.notice
    assert journal.known == 0 and journal.get("k0") is None
  assert path.read_bytes() == before
  with Journal(path, OTHER) as journal:
    journal.put("k7", {**VALUE, "i": 7})
    assert journal.notice is None
    journal.put("k8", {**VALUE, "i": 8})
  assert keys(path, OTHER) == [7, 8]
  assert os.listdir(path.parent) == [path.name]


def test_another_version_is_told(path):
  path.write_bytes(b'{"journal":"mirage-onnx","version":12,"new":1}\nanything\n')
  with Journal(path, SETTING) as journal:
    assert journal.notice and "version 12 wrote it, this program reads 1" in journal.notice


def test_a_version_of_many_digits(path):
  """int() refuses more than 4300."""
  path.write_bytes(b'{"journal":"mirage-onnx","version":' + b"9" * 5000 + b',"new":1}\n')
  assert refusal(path)


def test_one_run_at_a_time(path, tmp_path):
  link = tmp_path / "link"
  link.symlink_to(path.name)
  for setting in (SETTING, OTHER):  # the second replaces the file while it holds it
    with Journal(path, setting) as journal:
      journal.put("k0", {**VALUE, "i": 0})
      for other in (path, link):
        with pytest.raises(MirageError, match="another run is using it"):
          Journal(other, SETTING)
  assert keys(link, OTHER) == [0]
  assert link.is_symlink()


@pytest.mark.parametrize(("code", "works"), [(errno.ENOLCK, True), (errno.EIO, False)])
def test_a_file_system_without_locks(path, monkeypatch, code, works):
  def fail(descriptor, how):
    raise OSError(code, "cannot lock")

  monkeypatch.setattr(journal_module.fcntl, "flock", fail)
  if works:
    write(path, 2)
    assert keys(path) == [0, 1]
  else:
    assert refusal(path).endswith("cannot lock")


def test_a_full_disk_ends_the_journal_and_not_the_run(path, monkeypatch):
  def half(descriptor, data):
    os.write(descriptor, data[: len(data) // 2])
    raise OSError(errno.ENOSPC, "No space left on device")

  with Journal(path, SETTING) as journal:
    journal.put("k0", {**VALUE, "i": 0})
    monkeypatch.setattr(journal_module, "write_whole", half)
    journal.put("k1", VALUE)
    monkeypatch.undo()
    assert journal.failure is not None and "No space left" in journal.failure
    journal.put("k2", VALUE)
    assert journal.get("k1") == journal.get("k2") == VALUE
  assert keys(path) == [0]


def test_a_value_without_json_text_is_not_kept(path):
  with Journal(path, SETTING) as journal:
    with pytest.raises(TypeError):
      journal.put("k0", {"x": object()})
    with pytest.raises(ValueError):
      journal.put("k0", {"x": float("nan")})
    assert journal.get("k0") is None


def test_threads_write_whole_lines(path):
  with Journal(path, SETTING) as journal:

    def work(first):
      for i in range(first, 100, 3):
        journal.put(f"k{i}", {**VALUE, "i": i})
        journal.put("k0", {**VALUE, "i": 0})

    with ThreadPoolExecutor(4) as pool:
      list(pool.map(work, range(4)))
  assert keys(path) == list(range(100))
  assert len(path.read_text().splitlines()) == 101


ENDLESS = """
import sys
from pathlib import Path
from mirage_onnx.superopt.journal import Journal
journal = Journal(Path(sys.argv[1]), {"target": "h200"})
print(journal.known, flush=True)
for i in range(journal.known, 1 << 30):
    journal.put(f"k{i}", {"i": i, "text": "x" * 3000})
    if i % 50 == 0:
        print(i, flush=True)
"""


def test_killed_again_and_again(path):
  """A real process, a real SIGKILL: nothing that was told to be written is lost."""
  setting, told = {"target": "h200"}, 0
  for _ in range(3):
    process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE, text=True)
    assert int(process.stdout.readline()) >= told
    for _ in range(4):
      told = int(process.stdout.readline()) + 1
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    told = max([told, *(int(line) + 1 for line in rest)])
    with Journal(path, setting) as journal:
      assert journal.known >= told
      assert all(journal.get(f"k{i}") for i in range(journal.known))


def test_another_process_is_told(path):
  with Journal(path, {"target": "h200"}):
    done = subprocess.run(
      [sys.executable, "-c", ENDLESS, str(path)], capture_output=True, text=True, check=False
    )
  assert done.returncode != 0
  assert f"{path}: another run is using it" in done.stderr.splitlines()[-1]
