"""Results in, one self-contained HTML page out. Nothing here trains or evaluates: it reads run folders."""

from prosmin.report.page import write_report

__all__ = ["write_report"]
