"""Parts of a finished file that are still there: the command was interrupted just before it removed them."""

import json
import shutil
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from prosmin.embed.parts import SETTINGS, take
from prosmin.interrupts import if_interrupted


def remove_parts(folder: Path, settings: dict[str, Any]) -> None:
    """Remove a folder of parts with these settings, unless a process still uses it."""
    try:
        found = json.loads((folder / SETTINGS).read_text())
    except (OSError, ValueError):  # the usual case: there is no folder
        return
    with ExitStack() as stack:
        try:
            locks = [stack.enter_context(file.open("r+")) for file in folder.glob(".lock.*")]
        except OSError:  # another process removes them
            return
        if found == settings and all(take(lock) for lock in locks):
            remove = partial(shutil.rmtree, folder, ignore_errors=True)
            with if_interrupted(remove):
                remove()
