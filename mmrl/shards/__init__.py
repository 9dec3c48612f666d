"""Shards: the one format in which samples are stored, and the loader that deals them out.

A shard set is a folder of WebDataset tars (`shard-000000.tar`), an index for each (`shard-000000.idx.json`) and
`dataset.json`, which is written last and says that the set is complete.
"""

from mmrl.shards.dataset import ShardSet
from mmrl.shards.filters import Filter, FilterError, parse_filter
from mmrl.shards.foreign import Group, read_groups, scan, tars
from mmrl.shards.loader import Failure, Loader
from mmrl.shards.mixture import Mixture, Part, open_data, write_mixture
from mmrl.shards.order import permute
from mmrl.shards.record import Record, ShardError
from mmrl.shards.repair import Repair, repair
from mmrl.shards.verify import verify
from mmrl.shards.writer import ShardFile, ShardWriter, atomic_write, write_manifest

__all__ = [
    "Failure",
    "Filter",
    "FilterError",
    "Group",
    "Loader",
    "Mixture",
    "Part",
    "Record",
    "Repair",
    "ShardError",
    "ShardFile",
    "ShardSet",
    "ShardWriter",
    "atomic_write",
    "open_data",
    "parse_filter",
    "permute",
    "read_groups",
    "repair",
    "scan",
    "tars",
    "verify",
    "write_manifest",
    "write_mixture",
]
