"""The base of every type that crosses a process boundary or enters the journal."""

from typing import Self

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable, validated record with a JSON form; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def replaced(self, **changes: object) -> Self:
        """A validated copy with some fields changed; raises `pydantic.ValidationError`."""
        return type(self).model_validate({**dict(self), **changes})
