"""docs/extending.md names places in the code: they are there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = [line for line in (ROOT / "docs/extending.md").read_text().splitlines() if line.startswith("| ")]


def test_names_in_a_row_stand_in_the_files_of_that_row():
    found = 0
    files: list[str] = []
    for row in ROWS:
        code = re.findall(r"`([^`]+)`", row)
        files = [part for part in code if "/" in part and "NAME" not in part] or (
            files if "the same file" in row else []
        )
        text = "\n".join((ROOT / file).read_text() for file in files if (ROOT / file).is_file())
        for name in code if text else ():
            if re.fullmatch(r"\w+", name):
                assert re.search(rf"\b{name}\b", text), f"{name} is not in {', '.join(files)}"
                found += 1
    assert found > 20  # the tables were read
