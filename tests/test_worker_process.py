"""Lists of bytes between a process and its worker: whatever comes, it is a list of bytes or the end."""

import io

import pytest

from mirage_onnx.worker_process import receive_parts, send_parts


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
