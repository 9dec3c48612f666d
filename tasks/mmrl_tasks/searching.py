"""Tasks of finding what is asked in documents, long clips, and a corpus."""

from __future__ import annotations

from mmrl.registry import register
from mmrl_tasks.task import Task

TEXT = "The answer is a word, a number or a short phrase."

document_qa = register("task", "document_qa", paper="UniDoc-RL")(
    Task("document_qa", TEXT, tools=("document_retrieve", "document_rerank", "document_crop", "ocr"))
)
long_video_qa = register("task", "long_video_qa", paper="ParaVT")(
    Task("long_video_qa", "The answer is one letter.", tools=("video_info", "video_window", "frame_select"))
)
multihop_search = register("task", "multihop_search", paper="OpenSearch-VL")(
    Task("multihop_search", TEXT, tools=("text_search", "page_fetch", "image_search", "crop"))
)
