"""Pretrain the tiny VLM of mmrl/assets/tiny-vlm from nothing, on a CPU.

    python scripts/build_tiny_vlm.py --out mmrl/assets/tiny-vlm

Supervised dialogues about puzzles and scenes made from the training pictures of the demo (its held-out pictures are
never seen), in three parts:

- see: short dialogues without a system message, with the right answers;
- speak: the form of rollouts, half of them with a call of crop or zoom first, still with the right answers;
- habits: the base model is meant to be middling in a way that reinforcement learning can mend, so most dialogues now
  glance: they think and answer at once, with the position bias known of real models, letters A and B whatever the
  picture shows. A smaller part looks closer first and then answers right.

What the model sees in a picture is learned better than how to use it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from mmrl import families
from mmrl.chat import Chat, pad_rows
from mmrl.demo import HELDOUT, SIDE, SPLIT_SEED
from mmrl.families import VisionInput
from mmrl.media import file_ref, image_ref, load_image, load_video
from mmrl.policy import tiny
from mmrl.registry import get
from mmrl.rollout.tools import ToolContext, call_tool, observation
from mmrl.shards import ShardSet
from mmrl.types import Answer, MediaRef, Sample, ToolCall
from mmrl_prep.build import build
from mmrl_prep.pictures import demo_sources
from mmrl_prep.puzzles import PUZZLES
from mmrl_prep.scenes import draw_scene

TASKS = ("rotation", "jigsaw", "mcq")
PART = 24  # dialogues of one forward pass


@dataclass(frozen=True)
class Habits:
    """How the base model is taught to behave."""

    look: float  # share of dialogues that look closer before they answer
    honest: float  # share of glances at C or D that still say the right letter


PARTS: dict[str, Habits | None] = {"see": None, "speak": Habits(0.5, 1.0), "habits": Habits(0.2, 0.1)}


@dataclass(frozen=True)
class Example:
    """An encoded dialogue: token ids, 1 where the assistant wrote them, and the pictures."""

    tokens: list[int]
    mask: list[int]
    vision: list[VisionInput]


def training_pictures(folder: Path) -> list[Image.Image]:
    """The pictures that the demo trains on, at most 256 pixels a side; of each clip a frame a second."""
    sources = demo_sources(folder / "sources")
    build(sources, "rotation", folder / "split", heldout=HELDOUT, seed=SPLIT_SEED, per_image=1, size=64)
    train = ShardSet.open([folder / "split" / "train"])
    names = {train[i].meta["file"] for i in range(len(train))}
    pictures = []
    for path in sorted(p for source in sources for p in source.iterdir() if p.name in names):
        if path.suffix == ".mp4":
            clip = load_video(file_ref("vid_1", path, "video"), fps=1, max_frames=16)
            pictures += [Image.fromarray(frame) for frame in clip.frames]
        else:
            pictures.append(load_image(file_ref("img_1", path, "image")))
    for picture in pictures:
        picture.thumbnail((256, 256))
    return pictures


def augment(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A large part of the picture, mirrored or not, with other brightness, contrast and colour balance."""
    width, height = (round(v * rng.uniform(0.85, 1)) for v in picture.size)
    left, top = int(rng.integers(picture.width - width + 1)), int(rng.integers(picture.height - height + 1))
    picture = picture.crop((left, top, left + width, top + height))
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    values = np.asarray(picture, dtype=np.float32)
    if rng.random() < 0.7:
        values = (values - 128) * rng.uniform(0.6, 1.4) + 128 + rng.uniform(-40, 40, (1, 1, 3))
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def make_sample(pictures: list[Image.Image], rng: np.random.Generator) -> tuple[Sample, str]:
    """A sample of a random task, and what there is to see: the right option in words."""
    task = TASKS[rng.integers(len(TASKS))]
    picture = augment(pictures[rng.integers(len(pictures))], rng)
    if task == "mcq":
        scene = draw_scene(picture, rng, SIDE)
        images, options = [scene.image], scene.options
        answer = Answer("choice", "ABCD"[options.index(scene.answer)], options)
        text = "\n".join([scene.question, *(f"{'ABCD'[i]}) {o}" for i, o in enumerate(options))])
    else:
        puzzle = PUZZLES[task](picture, rng, SIDE)
        images, answer, text = list(puzzle.images), puzzle.answer, puzzle.question
    media = tuple(image_ref(f"img_{i + 1}", image) for i, image in enumerate(images))
    content: list[dict[str, Any]] = [{"type": "image", "id": m.id} for m in media]
    message = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
    sample = Sample(f"{task}-{rng.integers(1 << 60)}", media, (message,), answer, task)
    return sample, answer.options["ABCD".index(answer.value)]


def habit_letter(right: str, rng: np.random.Generator, habits: Habits) -> str:
    """The letter that a glance ends with."""
    if right in "AB" or rng.random() < habits.honest:
        return right
    return "AB"[rng.integers(2)]


def look_call(rng: np.random.Generator) -> ToolCall:
    """A closer look at the middle, or at a quarter."""
    if rng.random() < 0.5:
        return ToolCall("zoom", {"image": "img_1", "point": [500, 500], "factor": 2})
    x, y = (int(v) * 500 for v in rng.integers(0, 2, 2))
    return ToolCall("crop", {"image": "img_1", "box": [x, y, x + 500, y + 500]})


def make_example(chat: Chat, pictures: list[Image.Image], rng: np.random.Generator, habits: Habits | None) -> Example:
    """One dialogue, encoded exactly as a rollout would be; a short and right one for None."""
    sample, seen = make_sample(pictures, rng)
    prompt = get("task", sample.task).obj.prompt(sample)
    messages: list[dict[str, Any]] = list(prompt.messages if habits else sample.messages)
    media: dict[str, MediaRef] = {m.id: m for m in sample.media}
    letter = str(sample.answer.value)
    if habits and rng.random() < habits.look:
        call = look_call(rng)
        text = json.dumps({"name": call.name, "arguments": dict(call.arguments)})
        messages.append({"role": "assistant", "content": f"<think>look closer</think><tool_call>{text}</tool_call>"})
        context = ToolContext(media)
        result = call_tool(call, context)
        messages.append({"role": "user", "content": observation([result])})
        media = context.media
    elif habits:
        letter = habit_letter(letter, rng, habits)
    messages.append({"role": "assistant", "content": f"<think>{seen}</think><answer>{letter}</answer>"})
    encoded, mask = chat.encode_dialogue(messages, media)
    return Example(encoded.tokens, mask, encoded.vision)


class Examples(torch.utils.data.IterableDataset[list[tuple[Any, ...]]]):
    """Endless batches, in padded parts of dialogues of like length; worker w of W makes the batches w, w + W ..."""

    def __init__(self, chat: Chat, pictures: list[Image.Image], habits: Habits | None, batch: int, seed: int) -> None:
        self.chat, self.pictures, self.habits, self.batch, self.seed = chat, pictures, habits, batch, seed

    def __iter__(self) -> Iterator[list[tuple[Any, ...]]]:
        torch.set_num_threads(1)
        worker = torch.utils.data.get_worker_info()
        number, step = (worker.id, worker.num_workers) if worker else (0, 1)
        while True:
            rng = np.random.Generator(np.random.Philox(key=[self.seed, number]))
            rows = [make_example(self.chat, self.pictures, rng, self.habits) for _ in range(self.batch)]
            rows.sort(key=lambda r: len(r.tokens))
            parts = []
            for part in (rows[i : i + PART] for i in range(0, len(rows), PART)):
                tokens, attention = pad_rows([r.tokens for r in part], self.chat.pad_id)
                mask, _ = pad_rows([r.mask for r in part], 0)
                parts.append((tokens, attention, mask, [r.vision for r in part]))
            yield parts
            number += step


def pretrain(model: Any, chat: Chat, pictures: list[Image.Image], args: argparse.Namespace) -> None:
    """Next-token loss on what the assistant wrote, part after part."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, betas=(0.9, 0.95))
    model.train()
    start = time.time()
    for name, habits in PARTS.items():
        steps, lr = getattr(args, name), args.lr if name == "see" else args.lr / 2
        data = Examples(chat, pictures, habits, args.batch, args.seed)
        batches = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=args.workers, prefetch_factor=4))
        recent = []
        for step in range(1, steps + 1):
            for group in optimiser.param_groups:
                group["lr"] = lr * min(1, step / 50) * max(0.05, 1 - step / steps)
            optimiser.zero_grad()
            recent.append(backward(model, next(batches)))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            if step % args.every == 0:
                mean = sum(recent[-args.every :]) / args.every
                print(f"{name} {step}/{steps}: loss {mean:.4f}, {time.time() - start:.0f} s", flush=True)
        save(model, chat, args.out)


def backward(model: Any, parts: list[tuple[Any, ...]]) -> float:
    """Gradient of the mean loss over all tokens that the assistant wrote; the loss."""
    count = sum(int(mask[:, 1:].sum()) for _, _, mask, _ in parts)
    total = 0.0
    for tokens, attention, mask, vision in parts:
        hidden = model.model(**families.forward_inputs(model, tokens, attention, vision)).last_hidden_state
        chosen = mask[:, 1:].bool()
        logits = model.lm_head(hidden[:, :-1][chosen])
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:][chosen], reduction="sum") / count
        loss.backward()
        total += loss.item()
    return total


def save(model: Any, chat: Chat, out: Path) -> None:
    model.save_pretrained(out)
    chat.processor.save_pretrained(out)


def corpus(chat_free: list[Image.Image], seed: int) -> Iterator[str]:
    """Everything that is said in the dialogues: what the tokenizer is trained on."""
    for number in range(600):
        rng = np.random.Generator(np.random.Philox(key=[seed + 1, number]))
        sample, seen = make_sample(chat_free, rng)
        for message in get("task", sample.task).obj.prompt(sample).messages:
            content = message["content"]
            yield content if isinstance(content, str) else content[-1]["text"]
        call = look_call(rng)
        yield json.dumps({"name": call.name, "arguments": dict(call.arguments)})
        yield f"look closer {seen}"
        yield call_tool(call, ToolContext({m.id: m for m in sample.media})).text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("mmrl/assets/tiny-vlm"))
    parser.add_argument("--work", type=Path, default=Path("runs/tiny-vlm"), help="folder for the source pictures")
    parser.add_argument("--see", type=int, default=1800, help="steps of the first part")
    parser.add_argument("--speak", type=int, default=350, help="steps of the second part")
    parser.add_argument("--habits", type=int, default=150, help="steps of the third part")
    parser.add_argument("--start", type=Path, help="go on from this model (with --see 0: only the later parts)")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that make examples")
    parser.add_argument("--every", type=int, default=100, help="steps between lines")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    pictures = training_pictures(args.work)
    if args.start:
        model = AutoModelForImageTextToText.from_pretrained(args.start)
        chat = Chat.from_pretrained(args.start)
    else:
        tokenizer = tiny.train_tokenizer(corpus(pictures, args.seed), 768)
        model = tiny.make_model(tiny.make_config("qwen3_vl", tokenizer), seed=args.seed)
        chat = Chat(tiny.make_processor("qwen3_vl", tokenizer), model.config)
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {len(chat.tokenizer)} tokens", flush=True
    )
    pretrain(model, chat, pictures, args)
    save(model, chat, args.out)


if __name__ == "__main__":
    main()
