"""Several GPUs for one file: their names, and what cannot be in one."""

import pytest

from mirage_onnx.errors import MirageError
from mirage_onnx.targets import get_target, get_targets, joined, suffixes_that_run, target_of_domain


def test_names_in_any_spelling_and_in_their_order():
  found = get_targets("RTX 4090, h200,A100,sm_86x46")
  assert [t.name for t in found] == ["rtx4090", "h200", "a100-80gb", "sm_86x46"]
  assert get_targets(joined(found)) == found
  assert get_targets("h200") == (get_target("h200"),)


def test_a_further_one_of_an_architecture_is_for_itself_alone():
  found = get_targets("sm_90, h200, a100-40gb, H100, sm_90ax60, a100-80gb, rtx3090")
  assert [t.suffix for t in found] == [
    "sm90a", "sm90a_h200", "sm80", "sm90a_h10080gbhbm3", "sm90a_x60", "sm80_a100sxm480gb", "sm86",
  ]  # fmt: skip
  assert get_targets(joined(found)) == found
  for t in found:
    of_domain = target_of_domain(t.suffix)
    assert (of_domain.suffix, of_domain.capability) == (t.suffix, t.capability)
    assert t.suffix in suffixes_that_run(get_target(t.name)) and "_" not in suffixes_that_run(t)[-1]
  assert target_of_domain("sm90a_h300") is None and target_of_domain("sm75_x40") is None
  assert suffixes_that_run(get_target("gh200")) == ("sm90a_gh200480gb", "sm90a_x132", "sm90a")


@pytest.mark.parametrize(
  ("names", "code", "said"),
  [
    ("a100,h200,a100-80gb", "OPTION_INVALID", "a100-80gb is given twice"),
    ("h100,sm_90", "OPTION_INVALID", "sm_90 is an architecture, not a GPU: give it before GPUs of it"),
    ("h200,local", "OPTION_INVALID", "local is timed on the GPU that is here"),
    ("h200,", "OPTION_INVALID", "a comma stands between two names"),
    ("h200,t4", "TARGET_UNKNOWN", "kernels need sm_80"),
  ],
)
def test_refused_by_name(names, code, said):
  with pytest.raises(MirageError, match=said) as caught:
    get_targets(names)
  assert caught.value.code == code
