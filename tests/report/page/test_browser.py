"""The page in a browser, where there is one: its script runs under its own policy, and nothing is refused."""

import re
import shutil
import subprocess

import pytest
from reported import optimized, record_of

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.report.page import page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")


@pytest.mark.parametrize("hostile", [False, True], ids=["plain", "hostile"])
def test_it_runs(tmp_path, hostile):
  path = tmp_path / "r.html"
  text = page(record_of(hostile), ModelFile(optimized(hostile)[1].model, None))
  # Open, so that the table of all nodes is made.
  path.write_text(text.replace("<details><summary>All", "<details open><summary>All"), encoding="utf-8")
  command = [
    CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
    "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", path.as_uri(),
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
  if "<html" not in done.stdout:
    pytest.skip(f"chromium does not start here: {done.stderr[-200:]}")
  assert 'data-ready="true"' in done.stdout
  assert "CONSOLE" not in done.stderr, done.stderr
  rows = re.search(r'<div class="all-nodes scroll">(.*?)</div>', done.stdout, re.DOTALL)
  assert rows is not None and rows[1].count("<tr>") == len(record_of(hostile).nodes) + 1
  assert done.stdout.count("<script") == 2
