"""Option likelihoods against one plain forward pass each, and the verdict on constructed likelihoods."""

import pytest
import torch

from mmrl.families import forward_inputs
from mmrl.types import Answer, Sample, StopReason
from mmrl_eval.consistency import consistent, continuation_logps, option_logps, reasoning_end


def plainly(model, tokens, vision, count):
    """Summed log-prob of the last `count` tokens by one unpadded forward pass."""
    row = torch.tensor([tokens])
    with torch.no_grad():
        logits = model(**forward_inputs(model, row, torch.ones_like(row), [vision]), use_cache=False).logits[0]
    logp = logits.float().log_softmax(-1)
    return sum(float(logp[t - 1, tokens[t]]) for t in range(len(tokens) - count, len(tokens)))


def test_continuations_of_any_length_match_plain_forward_passes(both, make_sample):
    chat, model = both
    prefixes, continuations = [], []
    for colour, text in (("red", "I think"), ("blue", "it looks rather more like this")):
        of = make_sample("k", colour=colour)
        head = chat.encode_prompt(of.messages, {m.id: m for m in of.media})
        prefixes.append((head.tokens + chat.encode_text(text), head.vision))
        continuations.append([chat.encode_text(t) for t in ("A", "B", "grey, all grey", "<answer>C")])
    found = continuation_logps(model, chat, prefixes, continuations, rows=3)
    for (tokens, vision), options, values in zip(prefixes, continuations, found, strict=True):
        for option, value in zip(options, values, strict=True):
            assert value == pytest.approx(plainly(model, [*tokens, *option], vision, len(option)), abs=1e-4)


def test_option_logps_condition_on_the_sampled_reasoning_only(tiny, make_sample, make_trajectory):
    chat, model = tiny
    of = make_sample("k", options=3)
    said = make_trajectory(chat, of, "<think>it is red</think><answer> (B), surely</answer>")
    other = make_trajectory(chat, of, "<think>it is red</think><answer>C</answer>")
    first, second = option_logps(model, chat, [said, other])
    assert first is not None
    assert list(first) == ["A", "B", "C"]
    assert first == pytest.approx(second)  # what was answered does not matter, what came before does
    end = reasoning_end(said)
    assert chat.decode(said.tokens[said.turns[0].start : end]) == "<think>it is red</think>"
    for letter in "ABC":
        tokens = chat.encode_text(f"<answer>{letter}")
        assert first[letter] == pytest.approx(
            plainly(model, said.tokens[:end] + tokens, said.vision, len(tokens)), abs=1e-4
        )


def test_options_apply_only_where_there_is_a_choice_after_reasoning(tiny, make_sample, make_trajectory):
    chat, model = tiny
    of = make_sample("k")
    number = Sample("n", of.media, of.messages, Answer("number", 3.0), "number")
    texts = ["<answer>A</answer>", "<think>hm</think> A", "<think>so A"]
    rows = [make_trajectory(chat, of, t) for t in texts]
    rows[-1].stop = StopReason.MAX_TOKENS
    rows.append(make_trajectory(chat, number, "<think>three</think><answer>3</answer>"))
    assert option_logps(model, chat, rows) == [None] * 4


@pytest.mark.parametrize(
    ("options", "answer", "verdict"),
    [
        ({"A": -0.1, "B": -2.5}, "A", True),
        ({"A": -0.1, "B": -2.5}, "B", False),
        ({"A": -1.0, "B": -1.0}, "A", False),
        ({"A": -0.1, "B": -2.5}, None, None),
        (None, "A", None),
    ],
)
def test_verdict(options, answer, verdict):
    assert consistent(options, answer) is verdict
