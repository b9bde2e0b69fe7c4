"""Sessions made, run and dropped by several threads at once, under the compiler's thread sanitizer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sanitized import SOURCES, THREADS, build, build_ops, preload

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parents[1] / "tests" / "support" / "concurrent_sessions.py"
SECONDS = "4"
RACE = 66  # the exit code that we ask for

pytestmark = pytest.mark.slow  # the sanitized build takes half a minute


def run(folder, sources):
  """(exit code, standard output, what the sanitizer said)"""
  library = build_ops(folder, sources, THREADS)
  driver = build(folder / "standin.so", "-shared", "-fPIC", str(HERE / "standin_driver.cc"), flags=THREADS)
  if library is None or driver is None:
    pytest.skip("this compiler has no thread sanitizer")
  # onnxruntime and Python are not instrumented: what they touch is not watched, how they wait is.
  options = f"exitcode={RACE} ignore_noninstrumented_modules=1 report_signal_unsafe=0"
  ours = {"LD_PRELOAD": preload("libtsan.so"), "TSAN_OPTIONS": options}
  command = [sys.executable, str(SCRIPT), SECONDS, str(library), str(driver)]
  done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **ours})
  if "unexpected memory mapping" in done.stderr:
    pytest.skip("this kernel lays memory out as the thread sanitizer cannot have it")
  return done.returncode, done.stdout, done.stderr


def test_no_two_threads_race(tmp_path):
  code, out, said = run(tmp_path, SOURCES)
  assert code == 0, said[-4000:]
  assert int(out) >= 16  # of each thread four


def test_a_lock_left_out_is_found(tmp_path):
  """Or the test above could not fail."""
  sources = tmp_path / "ops"
  shutil.copytree(SOURCES, sources)
  text = (sources / "bundle.cc").read_text()
  lock = "  std::lock_guard<std::mutex> lock(*mutex);\n"
  assert text.count(lock) == 1
  (sources / "bundle.cc").write_text(text.replace(lock, "  (void)mutex;\n"))
  code, _, said = run(tmp_path, sources)
  assert code == RACE and "open_shared_bundle" in said
