"""Shards: the one format in which samples are stored, and the loader that deals them out.

A shard set is a folder of WebDataset tars (`shard-000000.tar`), an index for each (`shard-000000.idx.json`) and
`dataset.json`, which is written last and says that the set is complete.
"""

from mmrl.shards.dataset import ShardSet
from mmrl.shards.loader import Loader, permute
from mmrl.shards.record import Record, ShardError
from mmrl.shards.verify import verify
from mmrl.shards.writer import ShardFile, ShardWriter, atomic_write, write_manifest

__all__ = [
    "Loader",
    "Record",
    "ShardError",
    "ShardFile",
    "ShardSet",
    "ShardWriter",
    "atomic_write",
    "permute",
    "verify",
    "write_manifest",
]
