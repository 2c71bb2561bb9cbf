"""Messages for misspelt options, choices and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tailrace.core.suggestions import did_you_mean

if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # generic only since Click 8.2


class Choice(_Choice):
    """A choice of words. The error for an unknown word suggests the nearest one."""

    @property
    def example(self) -> str:
        """An example value, for messages."""
        return str(self.choices[0])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ``click.Choice``."""
        if value not in self.choices:
            known = ", ".join(map(repr, self.choices))
            meant = did_you_mean(value, self.choices)
            self.fail(f"{value!r} is not one of {known}. {meant}".rstrip(), param, ctx)
        return super().convert(value, param, ctx)


class WholeNumber(click.IntRange):
    """A whole number in a range. The error for other text names no type of Click."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ``click.IntRange``."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return super().convert(value, param, ctx)


def no_such_option(error: click.NoSuchOption) -> str:
    """The message for an option that a command does not have."""
    known: list[str] = []
    if error.ctx is not None:
        known = [
            name
            for one in error.ctx.command.get_params(error.ctx)
            if isinstance(one, click.Option)
            for name in (*one.opts, *one.secondary_opts)
        ]
    return f"{error.message}. {did_you_mean(error.option_name, known)}".rstrip()
