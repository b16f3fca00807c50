"""`prosmin embed`: one row per image in a Parquet file, written in parts so that a killed command can continue."""

from prosmin.embed.request import Request
from prosmin.embed.run import embed

__all__ = ["Request", "embed"]
