"""The shape of a handler's parameters, as workers announce it and the root of the queue keeps it.

`client/shapes.py` tells what shapes mean, and checks arguments against them.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import DecodeError, Struct, msgpack


class HandlerShape(Struct, array_like=True, frozen=True):
    """The parameters of one handler, as its worker announces them."""

    function: str
    parameters: list[tuple[str, Any, bool]]
    """Name, type, and whether it has to be given; in order."""
    hidden: list[str] = []
    """Names of the parameters whose values no operator may see."""


encode_shape: Final = msgpack.Encoder().encode
decode_shape: Final = msgpack.Decoder(HandlerShape).decode


def known_shapes(announced: list[bytes]) -> list[HandlerShape]:
    """Return the shapes that tell parameters, in the same order; one that a later release announced
    in another form is left out."""
    found = []
    for one in announced:
        try:
            if one:
                found.append(decode_shape(one))
        except (DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found
