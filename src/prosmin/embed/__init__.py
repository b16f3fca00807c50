"""`prosmin embed`: every image of a set as a row of one Parquet file, in parts that survive a kill."""

from prosmin.embed.run import embed

__all__ = ["embed"]
