"""Who is asked: the last one, while its block lasts, however that ends."""

import pytest

from mirage_onnx.delegates import Delegates


def test_the_last_one_is_asked_until_it_leaves():
  found = Delegates[str]()
  with found.asked("cluster"):
    with pytest.raises(ValueError, match="fails"), found.asked("processes"):
      assert found[-1] == "processes"
      raise ValueError("fails")
    assert found == ["cluster"]
  assert not found
