"""What ``--target`` means on this machine: a row, several, or the GPU that is here."""

from mirage_onnx import events
from mirage_onnx.argument_kinds import check_kinds
from mirage_onnx.target import H200, Target, get_target, get_targets


def present_target() -> Target | None:
  """The profile of the present GPU, None where there is none."""
  from mirage_onnx.tune.device import present_target as present

  return present()


def asked_target(name: str | None) -> tuple[Target, bool]:
  """The one of this name (None: of this machine), and whether kernels are timed on it."""
  check_kinds("a text", target=name)
  is_local = name is not None and name.lower() == "local"
  if name is not None and not is_local:
    return get_target(name), False
  if is_local or present_target() is not None:
    from mirage_onnx.tune.local import usable_profile

    return usable_profile(), True
  return H200, False


def asked_targets(name: str | None) -> tuple[tuple[Target, ...], bool]:
  """The same of several names."""
  check_kinds("a text", target=name)
  if name is not None and "," in name:
    return get_targets(name), False
  target, measure = asked_target(name)
  return (target,), measure


def warn_of_gpus(emit: events.Emit, used: Target, measure: bool) -> None:
  """Say which GPUs here nothing is made for; ``measure``: it is made for the first one."""
  from mirage_onnx.tune.local import others_here, unused_here

  if measure and (text := others_here()):
    emit(events.Warned(text))
  elif not measure and (text := unused_here()):
    emit(events.Warned(f"{text}; kernels are chosen by prediction, for {used.name}"))
