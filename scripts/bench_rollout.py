"""Trajectories a second: the `transformers` engine, TRL's generation and a plain `model.generate` loop on equal work.

    python scripts/bench_rollout.py --rounds 5

Every trajectory shows the tiny VLM a picture, then has two turns that call `crop` and a third that answers. What is
written is given beforehand, token by token (the model computes and samples all the same, then its choice is replaced),
so that all sides write the same texts of the same lengths and call the same tools; that their token sequences are equal
is checked. Boxes differ between the rollouts of a group, lengths too (--spread 0 makes them equal). All sides share one
model, its precision, the threads and the group; rounds of the sides take turns, each with new pictures.

mmrl: `rollout`, agent loop and log-probs included. TRL: `GRPOTrainer` with `tools=[crop]`, its own `_generate`, which
sends the whole dialogue again each turn. plain: for each prompt `generate` with num_return_sequences, then the group's
dialogues as one left-padded batch a turn. TRL is left out where it is not installed, vLLM where no such engine is
registered; vLLM samples freely and its turns are cut to the given lengths, then replaced.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mmrl import families
from mmrl.chat import Chat, pad_rows
from mmrl.config import ConfigError, ModelConfig, RolloutConfig
from mmrl.media import image_ref
from mmrl.policy.load import load_policy
from mmrl.registry import get
from mmrl.rollout import Request, Sampled, TransformersEngine, call_tool, make_engine, rollout, tools_prompt
from mmrl.rollout.parsing import parse_turn
from mmrl.rollout.sampling import derive_seed
from mmrl.rollout.tools import ToolContext, observation
from mmrl.rollout.transformers_engine import Row
from mmrl.types import Answer, Prompt, Sample

TURNS = 3
WORDS = "the picture shows a red square left of a blue circle and something small near its lower edge so look closer "
# as the carried model's own, with calls of tools and their answers in the form that GRPOTrainer hands over
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% for call in message.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Tokens = list[list[int]]  # of each trajectory


@dataclass
class Work:
    """What all sides do in one round: row `row`, of prompt `row // group`, writes `texts[row][turn]`."""

    prompts: list[Prompt]
    pictures: list[Image.Image]
    group: int
    texts: list[list[str]]
    ids: list[list[list[int]]]  # of the texts, the end of the turn included
    boxes: dict[tuple[float, ...], int]  # of a call -> its prompt


def make_work(chat: Chat, number: int, prompts: int, group: int, side: int, words: int, spread: int) -> Work:
    rng = np.random.default_rng(number)
    system = {"role": "system", "content": tools_prompt(("crop",))}
    out = Work([], [], group, [], [], {})
    for p in range(prompts):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        picture = coarse.resize((side, side), Image.Resampling.BICUBIC)
        ref = image_ref("img_1", picture)
        question = f"What is in part {p} of this picture? Look at it twice, then answer."
        user = {"role": "user", "content": [{"type": "image", "id": "img_1"}, {"type": "text", "text": question}]}
        sample = Sample(f"{number}-{p}", (ref,), (user,), Answer("choice", "A"), "mcq")
        out.prompts.append(Prompt(sample, (system, user), ("crop",)))
        out.pictures.append(picture)
        for _ in range(group):
            texts = []
            for turn in range(TURNS):
                count = words + int(rng.integers(-spread, spread + 1)) if spread else words
                thought = f"<think>{' '.join((WORDS * 20).split()[:count])}</think>"
                box = (len(out.boxes) % 400, int(rng.integers(0, 200)), 950 - len(out.boxes) // 400, 999)
                if turn < TURNS - 1:
                    out.boxes[tuple(map(float, box))] = p
                    call = {"name": "crop", "arguments": {"image": "img_1", "box": list(box)}}
                    texts.append(f"{thought}<tool_call>{json.dumps(call)}</tool_call>")
                else:
                    texts.append(f"{thought}<answer>A</answer>")
            out.texts.append(texts)
            out.ids.append([[*chat.encode_text(t), chat.end_of_turn] for t in texts])
    return out


# --- mmrl -----------------------------------------------------------------------------------------------------------


def owners(work: Work) -> dict[int, tuple[int, int]]:
    """Row and turn by the seed of the request, as `rollout` derives it; of a first turn the row of continuation 0."""
    out = {}
    for p, prompt in enumerate(work.prompts):
        own = derive_seed(0, prompt.sample.key, 0)
        out[own] = (p * work.group, 0)
        for j in range(work.group):
            for turn in range(1, TURNS):
                out[derive_seed(derive_seed(own, j), turn)] = (p * work.group + j, turn)
    return out


class Scripted(TransformersEngine):
    """Samples as ever, then writes what the work says."""

    def begin(self, work: Work) -> None:
        self.work, self.owners = work, owners(work)
        self.written: dict[tuple[int, int], list[int]] = {}

    def _choose(self, rows: Sequence[Row], logp: Tensor) -> Tensor:
        token = super()._choose(rows, logp)
        chosen = []
        for row in rows:
            name = (row.job.ticket, row.index)
            if not row.tokens:
                first, turn = self.owners[row.request.seed]
                self.written[name] = self.work.ids[first + row.index][turn]
            text = self.written[name]
            chosen.append(text[min(len(row.tokens), len(text) - 1)])
        return token.copy_(torch.tensor(chosen))


class Replaced:
    """Any other engine: it samples as many tokens as the work says, which are then replaced by those of the work."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def begin(self, work: Work) -> None:
        self.work, self.owners = work, owners(work)

    def generate(self, requests: Sequence[Request]) -> list[list[Sampled]]:
        texts = [
            [self.work.ids[first + j][turn] for j in range(r.n)]
            for r in requests
            for first, turn in [self.owners[r.seed]]
        ]
        single = [
            replace(r, n=1, seed=derive_seed(r.seed, j), max_new_tokens=len(text), state=None)
            for r, own in zip(requests, texts, strict=True)
            for j, text in enumerate(own)
        ]
        sampled = iter(self.engine.generate(single))
        out = []
        for own in texts:
            logps = [next(sampled)[0].logp for _ in own]
            out.append(
                [
                    Sampled(text, (logp + [0.0] * len(text))[: len(text)], True)
                    for text, logp in zip(own, logps, strict=True)
                ]
            )
        return out


def ours(engine: Any, chat: Chat, work: Work, config: RolloutConfig) -> tuple[Tokens, float]:
    """The trajectories' tokens, and the seconds that their tools took."""
    engine.begin(work)
    done = rollout(engine, chat, work.prompts, config, seed=0, group=work.group)
    return [t.tokens for t in done], sum(r.seconds for t in done for turn in t.turns for r in turn.results)


class Split:
    """Seconds of the model's passes, those over contexts and those of one token a row apart."""

    def __init__(self, model: Any) -> None:
        self.seconds = {"prefill": 0.0, "decode": 0.0}
        self.start = 0.0
        model.register_forward_pre_hook(self.before, with_kwargs=True)
        model.register_forward_hook(self.after, with_kwargs=True)

    def before(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.start = time.perf_counter()

    def after(self, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        kind = "decode" if kwargs["input_ids"].shape[1] == 1 else "prefill"
        self.seconds[kind] += time.perf_counter() - self.start


# --- model.generate -------------------------------------------------------------------------------------------------


class Writer:
    """Makes `model.generate` write given texts: the scores are replaced when they have been computed."""

    def __init__(self, model: Any, pad: int) -> None:
        self.generate, self.pad = model.generate, pad
        self.table = torch.zeros(0, 0, dtype=torch.long)
        self.rows: list[list[list[int]]] = []  # texts of the rows of each call of `generate` that is to come

    def __call__(self, **kwargs: Any) -> Tensor:
        self.table, _ = pad_rows(self.rows.pop(0), self.pad)
        self.start = kwargs["input_ids"].shape[1]
        out: Tensor = self.generate(**kwargs, logits_processor=[self.write])
        return out

    def write(self, tokens: Tensor, scores: Tensor) -> Tensor:
        at = tokens.shape[1] - self.start
        return torch.full_like(scores, -torch.inf).scatter_(1, self.table[:, at : at + 1], 0.0)


def plain(model: Any, writer: Writer, chat: Chat, work: Work) -> Tokens:
    """A loop over prompts, as one writes it by hand."""
    out: Tokens = []
    for p, prompt in enumerate(work.prompts):
        own = range(p * work.group, (p + 1) * work.group)
        media = {m.id: m for m in prompt.sample.media}
        encoded = chat.encode_prompt(prompt.messages, media)
        rows = [list(encoded.tokens) for _ in own]
        vision = [list(encoded.vision) for _ in own]
        contexts = [ToolContext(dict(media)) for _ in own]
        for turn in range(TURNS):
            first = turn == 0
            tokens, attention = pad_rows(rows[:1] if first else rows, chat.pad_id, left=True)
            inputs = families.forward_inputs(model, tokens, attention, vision[:1] if first else vision)
            inputs.pop("position_ids")
            writer.rows.append([work.ids[n][turn] for n in own])
            ids = writer(
                **inputs,
                mm_token_type_ids=families.token_types(model.config, tokens),
                do_sample=True,
                top_k=0,
                max_new_tokens=512,
                num_return_sequences=work.group if first else 1,
            )[:, tokens.shape[1] :]
            for j, n in enumerate(own):
                rows[j] += ids[j].tolist()[: len(work.ids[n][turn])]
                if turn < TURNS - 1:
                    (call,) = parse_turn(chat.decode(rows[j][-len(work.ids[n][turn]) :]), cut=False, turn=turn).calls
                    result = call_tool(call, contexts[j])
                    seen = chat.encode_observation(observation([result]), contexts[j].media, closed=True)
                    rows[j] += seen.tokens
                    vision[j] += seen.vision
        out += rows
    return out


# --- TRL ------------------------------------------------------------------------------------------------------------


def make_trainer(model: Any, chat: Chat, group: int, prompts: int, folder: str) -> Any:
    """GRPOTrainer with a tool, or None where TRL is not installed."""
    try:
        from trl import GRPOConfig, GRPOTrainer
        from trl.chat_template_utils import qwen3_template
    except ImportError as error:
        print(f"TRL is left out: {error}")
        return None
    from datasets import Dataset

    def crop(image: str, box: list) -> list:
        """
        Cut out a box x1,y1,x2,y2 in 0-1000 of the image.

        Args:
            image: id of the image
            box: corners

        Returns:
            The text and the picture.
        """
        work: Work = trainer.work
        prompt = work.prompts[work.boxes[tuple(map(float, box))]]
        context = trainer.contexts[tuple(map(float, box))] = ToolContext({m.id: m for m in prompt.sample.media})
        result = get("tool", "crop").obj({"image": image, "box": box}, context)
        text = observation([result])[0]["text"].replace("img_2", trainer.names[tuple(map(float, box))])
        return [{"type": "text", "text": text}, {"type": "image", "image": context.load(result.media[0])}]

    chat.processor.chat_template = TEMPLATE
    chat.tokenizer.response_template = qwen3_template
    rows = [{"prompt": [{"role": "user", "content": "?"}]}]
    trainer = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=group * prompts,
            num_generations=group,
            max_completion_length=3000,
            temperature=1.0,
            top_k=0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=chat.processor,
        tools=[crop],
    )
    trainer.crop = crop
    return trainer


def theirs(trainer: Any, writer: Writer, work: Work) -> Tokens:
    """What `_generate_and_score_completions` does up to where the rewards begin."""
    count = len(work.texts)
    trainer.work, trainer.contexts = work, {}
    trainer.names = {}
    for row in work.texts:
        for turn, text in enumerate(row[:-1]):
            box = json.loads(text[text.index("<tool_call>") + 11 : -12])["arguments"]["box"]
            trainer.names[tuple(map(float, box))] = f"img_{turn + 2}"
    trainer._sync_tool_dicts = [{"crop": trainer.crop}] * count
    trainer._async_tool_dicts = [{}] * count
    prompts = []
    for prompt, picture in zip(work.prompts, work.pictures, strict=True):
        system, user = prompt.messages
        parts = [{"type": "image", "image": picture}, user["content"][1]]
        said = [{"role": "system", "content": system["content"]}, {"role": "user", "content": parts}]
        prompts += [said] * work.group
    writer.rows = [[ids[turn] for ids in work.ids] for turn in range(TURNS)]
    prompt_ids, completion_ids, *_ = trainer._generate(prompts)
    return [[*p, *c] for p, c in zip(prompt_ids, completion_ids, strict=True)]


# --- rounds ---------------------------------------------------------------------------------------------------------


def table(seconds: dict[str, list[float]], parts: dict[str, list[float]], count: int) -> str:
    """Medians over rounds: trajectories a second, mmrl's by each side's, and where mmrl's time went."""
    lines = ["| | trajectories/s | mmrl by it, median (rounds) |", "|---|---|---|"]
    for name, took in seconds.items():
        ratios = [b / a for a, b in zip(seconds["mmrl"], took, strict=True)]
        each = ", ".join(f"{r:.2f}" for r in ratios)
        lines.append(f"| {name} | {count / statistics.median(took):.2f} | {statistics.median(ratios):.2f} ({each}) |")
    whole = statistics.median(seconds["mmrl"])
    shares = {name: statistics.median(values) for name, values in parts.items()}
    shares["else"] = whole - shares["prefill"] - shares["decode"]  # tools run beside the passes
    split = ", ".join(f"{name} {value:.2f} s" for name, value in shares.items())
    return "\n".join([*lines, "", f"mmrl: {whole:.2f} s a round of {count}: {split}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=4, help="prompts of one round")
    parser.add_argument("--group", type=int, default=8, help="trajectories of each")
    parser.add_argument("--side", type=int, default=224, help="of the pictures, pixels")
    parser.add_argument("--words", type=int, default=40, help="of each thought")
    parser.add_argument("--spread", type=int, default=20, help="most words more or fewer than that")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--without", nargs="*", default=[], choices=["plain", "TRL", "vllm"], help="sides left out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, chat = load_policy(ModelConfig(path="tiny-vlm", device="cpu", max_pixels=args.side**2))
    config = RolloutConfig(group=args.group, max_new_tokens=512, max_turns=TURNS, max_context=4000)
    folder = tempfile.TemporaryDirectory()
    trainer = None if "TRL" in args.without else make_trainer(model, chat, args.group, args.prompts, folder.name)
    model.eval()
    writer = Writer(model, chat.end_of_turn)
    engine = Scripted(model, chat)
    tools = 0.0

    def mine(engine: Any, work: Work) -> Tokens:
        nonlocal tools
        tokens, tools = ours(engine, chat, work, config)
        return tokens

    sides: dict[str, Callable[[Work], Tokens]] = {
        "mmrl": lambda work: mine(engine, work),
        "plain": lambda work: plain(model, writer, chat, work),
    }
    if "plain" in args.without:
        del sides["plain"]
    if trainer is not None:
        model.generate = writer
        sides["TRL"] = lambda work: theirs(trainer, writer, work)
    other = None
    try:
        if "vllm" not in args.without:
            other = Replaced(make_engine("vllm", model, chat, max_len=config.max_context))
            sides["mmrl, vllm"] = lambda work: mine(other, work)
    except ConfigError as error:
        print(f"vLLM is left out: {error}")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    parts: dict[str, list[float]] = {"prefill": [], "decode": [], "tools": []}
    split = Split(model)
    for number in range(args.rounds + 1):  # the first one warms up
        work = make_work(chat, number, args.prompts, args.group, args.side, args.words, args.spread)
        found: dict[str, Tokens] = {}
        for name, run in sides.items():
            split.seconds = dict.fromkeys(split.seconds, 0.0)
            start = time.perf_counter()
            found[name] = run(work)
            print(f"round {number}, {name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
            if number:
                seconds[name].append(time.perf_counter() - start)
            if number and name == "mmrl":
                for part, value in (split.seconds | {"tools": tools}).items():
                    parts[part].append(value)
        for name, tokens in found.items():
            if tokens != found["mmrl"]:
                raise SystemExit(f"{name} and mmrl do not have the same tokens")
    count = args.prompts * args.group
    lengths = [len(t) for t in found["mmrl"]]
    written = [len(t) for row in work.ids for t in row]
    print(
        f"{args.prompts} prompts x {args.group}, {args.threads} threads; trajectories of {min(lengths)} to "
        f"{max(lengths)} tokens, turns of {min(written)} to {max(written)}, 3 pictures each"
    )
    print(table(seconds, parts, count))
    folder.cleanup()
    if other is not None:
        other.engine.close()


if __name__ == "__main__":
    main()
