"""What to do next about a suspect: fitted to what the dumps already hold.

Nobody is told to capture what has been captured: the level and the task of both runs, and whether
the call could be replayed, decide.
"""

from __future__ import annotations

from tensorprobe.blame.analyse import RankAnalysis, Suspect
from tensorprobe.blame.causes import PROOF_ADVICE, Cause, is_between_modules

__all__ = ["next_step"]

_INSIDE = "capture at level mix: it names the call inside this module"
_BETWEEN = "capture at level mix, which records what runs between modules"
_UNRECORDED = (
    "no recorded call inside it is at fault: look at what it runs beside them, such as kernels of "
    "its own or changes in place"
)


def next_step(cause: Cause, suspect: Suspect, analysis: RankAnalysis) -> str:
    """Return what to do next about a suspect.

    Args:
        cause: what it looks like, with the advice for that.
        suspect: the suspect.
        analysis: its rank.
    """
    is_module = suspect.call.startswith("Module.")
    has_calls = analysis.candidate.part.info.level not in ("L0", None)
    if suspect.basis == "state" and is_between_modules(suspect):
        return "see what makes this value: no recorded call does" if has_calls else _BETWEEN
    if suspect.basis == "gap":
        return _advise_gap(analysis)
    if suspect.basis == "replay":
        if is_module and not has_calls and cause.kind != "argument":
            more = (
                "a proof can be written of that" if cause.advice == PROOF_ADVICE else cause.advice
            )
            return f"{_INSIDE}; {more}"
        return _UNRECORDED if is_module and cause.advice == PROOF_ADVICE else cause.advice
    if suspect.basis != "inputs" or cause.kind in ("communication", "randomness"):
        return cause.advice
    if is_module and has_calls:
        return _UNRECORDED
    wants = _missing_data(suspect, analysis)
    if is_module:
        return f"{_INSIDE}; with task tensor, too, a replay can prove it" if wants else _INSIDE
    return wants or _advise_replay(suspect, analysis)


def _missing_data(suspect: Suspect, analysis: RankAnalysis) -> str:
    """Say which run must be captured with its data for a replay; empty where both are."""
    found = suspect.unexplained
    assert found is not None
    has_data = [
        side.data_name is not None for side in (found.output.candidate, found.output.reference)
    ]
    if all(has_data):
        return ""
    if any(has_data):
        lacks = "reference" if has_data[0] else "candidate"
        return f"capture the {lacks} with task tensor, too: a replay can prove it"
    if analysis.basis == "checksums":
        return (
            "capture both runs with task statistics, which shows how far it is off, or tensor, "
            "with which a replay can prove it"
        )
    return "capture this call with task tensor on both sides: a replay can prove it"


def _advise_replay(suspect: Suspect, analysis: RankAnalysis) -> str:
    reason = analysis.unreplayed.get(suspect.call)
    if reason is None and analysis.is_quick:
        # The data are there; nobody has looked at them closely yet.
        return "tensorprobe blame replays it: that proves it, and shows more"
    if reason is None:
        return PROOF_ADVICE
    return f"compare its implementation on both sides; it cannot be replayed here: {reason}"


def _advise_gap(analysis: RankAnalysis) -> str:
    info = analysis.candidate.part.info
    if info.tool != "tensorprobe":
        mix = "" if info.level == "mix" else ", or at level mix"
        return f"capture this call's gradients with tensorprobe{mix}"
    return "look at how its gradient is made: a backward or a hook of its own, or a custom kernel"
