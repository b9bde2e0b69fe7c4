"""What all reports are made of."""

from typing import Literal

import msgspec

SCHEMA: Literal[1] = 1


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
  """Frozen, keyword-only, and an unknown field is an error."""
