"""The page in a browser, where there is one: its script runs under its own policy, and by keyboard alone."""

import json
import re
import shutil
import subprocess

import pytest
from reported import optimized, record_of

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.inspection.printable import printable
from mirage_onnx.report.page import page
from mirage_onnx.report.page.timeline import lanes

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
#: Presses keys on the timeline, and writes down what it reads out.
DRIVER = """<script>
const frame = document.querySelector(".timeline"), said = [];
const press = (key) => {
  frame.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  said.push(document.querySelector(".readout").textContent);
};
["ArrowRight", "ArrowRight", "Home", "ArrowDown", "End", "ArrowUp"].forEach(press);
document.querySelector("[data-zoom='4']").click();
location.hash = "#region-0";
setTimeout(() => {
  const width = document.querySelector(".strip").style.width, focus = document.activeElement.id;
  const output = document.createElement("output");
  output.textContent = JSON.stringify({ said, width, focus });
  document.body.append(output);
}, 200);
</script>"""


def dom(path, folder):
  command = [
    CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
    "--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom", path.as_uri(),
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
  if "<html" not in done.stdout:
    pytest.skip(f"chromium does not start here: {done.stderr[-200:]}")
  assert "CONSOLE" not in done.stderr, done.stderr
  return done.stdout


def text(hostile=False):
  return page(record_of(hostile), ModelFile(optimized(hostile)[1].model, None))


@pytest.mark.parametrize("hostile", [False, True], ids=["plain", "hostile"])
def test_it_runs_under_its_policy(tmp_path, hostile):
  path = tmp_path / "r.html"
  # Open, so that the table of all nodes is made.
  opened = text(hostile).replace("<details><summary>All", "<details open><summary>All")
  path.write_text(opened, encoding="utf-8")
  found = dom(path, tmp_path)
  assert 'data-ready="true"' in found
  rows = re.search(r'<div class="all-nodes scroll">(.*?)</div>', found, re.DOTALL)
  assert rows is not None and rows[1].count("<tr>") == len(record_of(hostile).nodes) + 1
  assert found.count("<script") == 2


def test_the_timeline_by_keyboard(tmp_path):
  path, record = tmp_path / "r.html", record_of()
  free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text())
  path.write_text(free.replace("</body>", f"{DRIVER}</body>"), encoding="utf-8")
  output = re.search(r"<output>(.*?)</output>", dom(path, tmp_path), re.DOTALL)
  found = json.loads(output[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
  before, _ = lanes(record)
  timed = [p for p in before if p.us > 0]
  first, second, home, down, end, up = found["said"]
  assert first.startswith(f"{record.nodes[timed[0].node].name} (")
  assert second.startswith(f"{record.nodes[timed[1].node].name} (") and " µs" in second
  assert home.startswith(f"{printable(record.nodes[0].name)} (")
  assert down.startswith("r") and "in place of" in down  # the kernel that the first node went into
  assert len({end, up, down}) == 3
  assert found["width"] == "400%" and found["focus"] == "region-0"
