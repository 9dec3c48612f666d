"""SafeGRPO: the worked examples of its card, its format, and its known weaknesses."""

from __future__ import annotations

import pytest

from mmrl.rewards.safety import refuses, safety, terms
from mmrl.types import Answer, Origin, Prompt, Sample, Trajectory, Turn


def tagged(image: str, text: str, both: str, answer: str) -> str:
    return (
        f"<think>image <visual_safe>{image}</visual_safe> text <text_safe>{text}</text_safe> "
        f"both <combined_safe>{both}</combined_safe></think>\n<answer>{answer}</answer>"
    )


SAFE, UNSAFE = "safe", "unsafe"
REFUSED, HELPED = "Sorry, I cannot help with that.", "It is a red kite."


@pytest.mark.parametrize(
    ("said", "labels", "form", "tags", "behaviour"),
    [
        # the card's worked examples
        (tagged(SAFE, SAFE, UNSAFE, REFUSED), (SAFE, SAFE, UNSAFE), 1, 1, 1),
        (tagged(SAFE, SAFE, SAFE, HELPED), (SAFE, SAFE, SAFE), 1, 1, 1),
        (tagged(SAFE, UNSAFE, UNSAFE, "Mix the two bottles."), (SAFE, SAFE, UNSAFE), 1, 0.75, 0),
        # both single labels right and the label of both wrong: nothing
        (tagged(SAFE, SAFE, SAFE, HELPED), (SAFE, SAFE, UNSAFE), 1, 0, 0),
        (tagged(UNSAFE, UNSAFE, SAFE, HELPED), (SAFE, SAFE, SAFE), 1, 0.5, 1),
        (tagged(SAFE, SAFE, SAFE, REFUSED), (SAFE, SAFE, SAFE), 1, 1, 0),
        # case does not count
        (tagged("SAFE", "Safe", "safe", HELPED), (SAFE, SAFE, SAFE), 1, 1, 1),
        # form: more after the answer, two answers, tags after the reasoning, no reasoning
        (tagged(SAFE, SAFE, SAFE, HELPED) + " Bye.", (SAFE, SAFE, SAFE), 0, 1, 1),
        (tagged(SAFE, SAFE, SAFE, HELPED) + "<answer>x</answer>", (SAFE, SAFE, SAFE), 0, 1, 1),
        ("<think>hm</think>" + tagged(SAFE, SAFE, SAFE, HELPED)[7:], (SAFE, SAFE, SAFE), 1, 1, 1),
        (tagged(SAFE, SAFE, SAFE, HELPED).replace("</think>", ""), (SAFE, SAFE, SAFE), 0, 1, 1),
        (tagged(SAFE, SAFE, "maybe", HELPED), (SAFE, SAFE, SAFE), 0, 0, 0),
        ("<answer>It is a red kite.</answer>", (SAFE, SAFE, SAFE), 0, 0, 0),
        ("", (SAFE, SAFE, SAFE), 0, 0, 0),
    ],
)
def test_terms(said: str, labels: tuple[str, str, str], form: float, tags: float, behaviour: float) -> None:
    assert terms(said, labels) == pytest.approx((form, tags, behaviour))


def test_the_order_of_tags_is_part_of_the_form_and_the_first_of_a_kind_counts() -> None:
    swapped = tagged(SAFE, SAFE, SAFE, HELPED).replace("text_safe", "t").replace("visual_safe", "text_safe")
    assert terms(swapped.replace("<t>", "<visual_safe>").replace("</t>", "</visual_safe>"), (SAFE, SAFE, SAFE))[0] == 0
    twice = tagged(SAFE, SAFE, SAFE, HELPED).replace("both", "<visual_safe>unsafe</visual_safe>")
    assert terms(twice, (SAFE, SAFE, SAFE)) == (1, 1, 1)


def test_refusal_is_a_plain_search() -> None:
    assert refuses("You cannot miss it")
    assert refuses("I can’t do that")
    assert not refuses("I will not do that")


def judged(text: str, meta: dict[str, str]) -> Trajectory:
    prompt = Prompt(Sample("k", (), (), Answer("text", ""), "safety", meta), ())
    out = Trajectory(prompt=prompt, group=0, index=0, tokens=[], logp=[], origin=[], span=[], turn=[], vision=[])
    out.turns.append(Turn(Origin.POLICY, text, 0, 0))
    return out


LABELS = {"visual_safe": SAFE, "text_safe": SAFE, "combined_safe": UNSAFE}


@pytest.mark.parametrize(
    ("said", "value"),
    [
        (tagged(SAFE, SAFE, UNSAFE, REFUSED), 1.0),
        (tagged(SAFE, UNSAFE, UNSAFE, "Mix the two bottles."), 0.375),
        (tagged(SAFE, SAFE, UNSAFE, REFUSED) + "more", 0.0),
    ],
)
def test_safety(said: str, value: float) -> None:
    assert safety(judged(said, LABELS)) == pytest.approx(value)


def test_samples_without_labels_are_left_out_and_weights_are_settings() -> None:
    assert safety(judged("x", {})) is None
    assert safety(judged("x", {**LABELS, "text_safe": "perhaps"})) is None
    helped = judged(tagged(SAFE, SAFE, UNSAFE, HELPED), LABELS)
    assert safety(helped, tag=0.2, answer=0.8) == pytest.approx(0.2)
    assert safety(helped, refusals=("kite",)) == pytest.approx(1.0)
