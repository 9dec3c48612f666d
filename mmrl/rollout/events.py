"""What happened to each call of a trajectory, as JSON: for logs, reports and the viewer."""

from __future__ import annotations

from typing import Any

from mmrl.types import MediaRef, Origin, Trajectory

SUMMARY = 300  # characters of a result


def call_events(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Every call in order: `turn` of the policy that made it, `name`, `arguments`, `error` (code of the fault in
    reading or running it, else None), and for those that were answered `result` (opening of the text), `media`,
    `tokens` that they added, `seconds` that they took and `cached`."""
    out = []
    number = -1
    for turn in trajectory.turns:
        if turn.origin is not Origin.POLICY:
            continue
        number += 1
        for place, call in enumerate(turn.calls):
            result = turn.results[place] if place < len(turn.results) else None
            fault = call.error or (result.fault if result else None)
            event = {
                "turn": number,
                "name": call.name,
                "arguments": dict(call.arguments),
                "error": fault.code if fault else None,
            }
            if result is not None:
                event |= {
                    "result": result.text[:SUMMARY],
                    "media": [media_event(m) for m in result.media],
                    "tokens": result.tokens,
                    "seconds": round(result.seconds, 4),
                    "cached": result.cached,
                }
            out.append(event)
    return out


def media_event(ref: MediaRef) -> dict[str, Any]:
    """A medium without its bytes: where it comes from and which part it shows."""
    event: dict[str, Any] = {"id": ref.id, "kind": ref.kind, "hash": ref.hash, "size": [ref.width, ref.height]}
    if ref.parent:
        event |= {"parent": ref.parent, "region": ref.region}
    if "window" in ref.info:
        event["window"] = ref.info["window"]
    return event
