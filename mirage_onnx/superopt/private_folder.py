"""Folders of what is executed later: nobody else may write there.

Kept texts are proven again and checksums notice damage, but machine code is run as it lies there. So
it is kept, and taken, only where no other user can put a file; a folder that a team shares keeps none.
"""

import os
import stat
from pathlib import Path


def make_private(folder: Path) -> None:
  """Make ``folder``, of which only its owner can do anything; one that exists stays as it is.

  Raises:
      OSError: it cannot be made.
  """
  folder.parent.mkdir(parents=True, exist_ok=True)
  folder.mkdir(mode=0o700, exist_ok=True)


def is_private(folder: Path) -> bool:
  """Whether ``folder`` is a folder of this user in which no other user (but root) can write."""
  if not hasattr(os, "geteuid"):
    return True
  try:
    found = folder.lstat()
  except OSError:
    return False
  others = stat.S_IWGRP | stat.S_IWOTH
  return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others
