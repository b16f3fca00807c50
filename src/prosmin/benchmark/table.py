"""What a person reads after a benchmark: the parts of each method, and the table of efficiency."""

from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 120


def print_parts(row: dict[str, Any]) -> None:
    """The parts of one method and the whole, and what bounds it."""
    console = Console(width=WIDTH, soft_wrap=True)
    how = "not compiled" if row["compiled"] == "none" else f"compiled: {row['compiled']}"
    arithmetic = f"{row['precision']}, {how}"
    console.print(
        f"{row['title']}, {row['backbone']}, {row['views']}, batch {row['batch_size']}, {arithmetic}", highlight=False
    )
    table = Table(box=None, pad_edge=False)
    for heading, justify in (
        ("", "left"),
        ("ms a batch", "right"),
        ("img/s", "right"),
        ("fastest-slowest ms", "right"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for name, part in row["parts"].items():
        if part is None:
            table.add_row(name, "-", "-", "the pictures come decoded")
            continue
        spread = f"{part['ms_lowest']:.4g}-{part['ms_highest']:.4g}"
        table.add_row(name, f"{part['ms']:.4g}", f"{part['images_per_second']:,.0f}", spread)
    console.print(table)
    console.print(f"{row['views_share']:.0%} of the step goes into views. {row['bound']}\n", highlight=False)


def print_efficiency(rows: list[dict[str, Any]], left_out: dict[str, str]) -> None:
    """The paper's table: parameters, img/s, hours for 300 epochs of ImageNet's pictures, GPUs, memory."""
    others = dict.fromkeys(name for row in rows for name in row["parameters"])
    table = Table(box=None, pad_edge=False)
    table.add_column("method")
    headings = [*(f"{name} (M)" for name in others), "img/s", "hours / 300 ImageNet epochs", "devices", "memory (GiB)"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        sizes = (row["parameters"].get(name) for name in others)
        memory = row["peak_memory_gib"]
        table.add_row(
            row["title"],
            *("-" if size is None else f"{size / 1e6:.2f}" for size in sizes),
            f"{row['parts']['end to end']['images_per_second']:,.0f}",
            f"{row['hours']:,.1f}",
            str(row["devices"]),
            "-" if memory is None else f"{memory:.2f}",
        )
    console = Console(width=WIDTH, soft_wrap=True)
    console.print(table)
    for name, reason in left_out.items():
        console.print(f"left out: {name}. {reason}", highlight=False)
