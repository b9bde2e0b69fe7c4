"""Lists of bytes between a process and its worker: whatever comes, it is a list of bytes or the end."""

import io
import platform

import pytest

from mirage_onnx import worker_process
from mirage_onnx.worker_process import WorkerProcess, receive_parts, send_parts


@pytest.mark.parametrize("parts", [[], [b""], [b"a", b"", bytes(range(256)) * 300]])
def test_parts_arrive_as_they_are(parts):
  stream = io.BytesIO()
  send_parts(stream, parts)
  send_parts(stream, [b"next"])
  stream.seek(0)
  assert receive_parts(stream) == parts
  assert receive_parts(stream) == [b"next"]
  with pytest.raises(EOFError):
    receive_parts(stream)


def test_every_cut_is_the_end():
  stream = io.BytesIO()
  send_parts(stream, [b"some", b"bytes"])
  data = stream.getvalue()
  for end in range(len(data)):
    with pytest.raises(EOFError):
      receive_parts(io.BytesIO(data[:end]))


@pytest.mark.parametrize(
  "junk", [b"\xff" * 64, b"Traceback (most recent call last):\n", b"\x80\x04]q\x00.        "]
)
def test_what_is_no_message_is_the_end(junk):
  with pytest.raises(EOFError):
    receive_parts(io.BytesIO(junk))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told so")
def test_a_worker_keeps_what_it_has_freed(monkeypatch):
  """Of ten times eight arrays of 1024 pages all but the first lie where others were."""
  for name in worker_process.MALLOC:
    monkeypatch.delenv(name, raising=False)
  worker = WorkerProcess("arrays_worker")
  said, (pages,) = worker.receive()
  worker.kill()
  worker.close()
  assert said == "faults" and pages < 20 * 1024
