"""Several GPUs for one file: their names, and what cannot be in one."""

import pytest

from mirage_onnx.errors import MirageError
from mirage_onnx.targets import get_target, get_targets, joined


def test_names_in_any_spelling_and_in_their_order():
  found = get_targets("RTX 4090, h200,A100,sm_86x46")
  assert [t.name for t in found] == ["rtx4090", "h200", "a100-80gb", "sm_86x46"]
  assert get_targets(joined(found)) == found
  assert get_targets("h200") == (get_target("h200"),)


@pytest.mark.parametrize(
  ("names", "code", "said"),
  [
    (
      "h200,gh200",
      "OPTION_INVALID",
      "h200 and gh200 are both of sm_90a: what is made for one runs on the other",
    ),
    ("a100,a100", "OPTION_INVALID", "a100-80gb and a100-80gb are both of sm_80"),
    ("sm_90,h100", "OPTION_INVALID", "sm_90 and h100 are both of sm_90a"),
    ("h200,local", "OPTION_INVALID", "local is timed on the GPU that is here"),
    ("h200,", "TARGET_UNKNOWN", "no target ''"),
    ("h200,t4", "TARGET_UNKNOWN", "kernels need sm_80"),
  ],
)
def test_refused_by_name(names, code, said):
  with pytest.raises(MirageError, match=said) as caught:
    get_targets(names)
  assert caught.value.code == code
