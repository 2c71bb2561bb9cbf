"""A random history of one service: step after step, each followed by a look whether all is as the oracle says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.months.service import Service
from tests.months.steps import STEPS

STEPS_EACH = 8


class Wrong(AssertionError):
    """A seed that failed: what had been done, and how to do it again."""

    def __init__(self, seed: int, taken: list[str], error: BaseException) -> None:
        lines = "\n".join(f"  {number}. {one}" for number, one in enumerate(taken, 1))
        super().__init__(
            f"seed {seed}: {type(error).__name__}: {error}\nafter\n{lines}\n"
            f"Run it again: python -m tests.months {seed} 1"
        )


def months(seed: int, folder: Path, steps: int = STEPS_EACH) -> Counter[str]:
    """Some steps of a seed; how many there were of each kind.

    Raises:
        Wrong: Something is not as it must be.
    """
    folder.mkdir(parents=True)
    taken: list[str] = []
    try:
        service = Service(seed, folder)
        for _ in range(steps):
            possible = [one for one in STEPS if one.possible(service)]
            (step,) = service.random.choices(possible, [one.weight for one in possible])
            service.said.clear()
            taken.append(step.name)
            try:
                step.take(service)
            finally:
                taken[-1] = f"{step.name}: {'; '.join(service.said)}"
            service.counts[step.name] += 1
            if service.over:
                break
            if service.started and not service.pending:
                service.check()
    except Exception as error:
        raise Wrong(seed, taken, error) from error
    return service.counts
